"""A dry run says what the run after it sends, and leaves everything as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.sample_runs import TASK_OF_EACH_KIND, Silent, config_for, run_directly, with_cache
from tests.scripted_engine import FACTS, Script, ScriptedEngine
from tests.write_demo_cassette import script_of, script_with_queries
from touche_llm.config.configuration import Config
from touche_llm.llm.cache import CacheMode
from touche_llm.runs.dry_run import DryRun, estimate_cost
from touche_llm.runs.record import StageName

STAGES: tuple[StageName, ...] = ("retrieve", "judge", "rank")
# Methods of which the answers do not change how often they ask.
EXACT = ("judge", "tournament:5", "listwise:6", "pairwise:4", "fusion:4", "balance:6")
SHORT: Mapping[str, Mapping[str, Any]] = {
    "comparative": {"topic": ("3", "20"), "depth": 7, "stance__depth": 3},
    "controversial": {"limit_topics": 2, "depth": 7, "stance__depth": 3},
    "sentence_pairs": {
        "limit_topics": 1,
        "depth": 60,
        "pairs__judged": 10,
        "pairs__both_orders": 3,
    },
}


async def dry(
    config: Config, folder: Path | None = None, stages: Sequence[StageName] = STAGES
) -> DryRun:
    return await estimate_cost(config, folder, stages, Silent())


async def real(config: Config, out: Path, script: Script) -> Counter[str]:
    """Number of requests of each prompt in the same run with a scripted engine."""
    engine = ScriptedEngine(script)
    await run_directly(config, out, engine)
    return Counter(request.origin.prompt for request in engine.requests)


def requests(result: DryRun) -> Counter[str]:
    """The requests of each prompt, where the answers do not change how many there are."""
    assert result.max_requests == {}
    found: Counter[str] = Counter()
    for cost in result.costs:
        found[cost.prompt] += cost.usage.requests
    return found


def everything_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def short(folder: Path, task: str = "comparative", **flags: Any) -> Config:
    return config_for(folder, task=task, **{**SHORT[task], **flags})


@pytest.mark.parametrize("task", TASK_OF_EACH_KIND)
async def test_the_run_sends_as_many_requests_as_the_dry_run_said(
    tmp_path: Path, task: str
) -> None:
    config = short(
        tmp_path,
        task,
        rank=EXACT,
        expansion__use=True,
        ranking__listwise={"window": 4, "stride": 2},
    )
    said = await dry(config)
    assert said.context is None  # nothing is known of the engine yet
    assert said.has_unknown_queries
    assert {path.name for path in tmp_path.iterdir()} == {"index"}
    assert requests(said) == await real(config, tmp_path / "out", script_with_queries(task))
    # What is in the cache now would not be sent again.
    again = await dry(config)
    assert (again.costs, again.context) == ([], FACTS.context)
    assert sum(again.known.values()) >= sum(requests(said).values())
    if task == "comparative":  # A cache that is not read spares nothing.
        assert requests(await dry(with_cache(config, mode=CacheMode.REFRESH))) == requests(said)


async def test_thoughts_are_counted_as_they_are_sent(tmp_path: Path) -> None:
    budgets = {"judge": 100, "stance": 50, "compare": 200}
    config = short(
        tmp_path,
        rank=EXACT,
        sampling={"thinking": budgets},
        ranking__listwise={"window": 4, "stride": 2},
    )
    without = short(tmp_path, rank=EXACT, ranking__listwise={"window": 4, "stride": 2})
    said, plain = await dry(config), requests(await dry(without))
    # A thought and an answer each, but for the objects of a topic.
    assert requests(said) == {
        prompt: count * (1 if "objects" in prompt else 2) for prompt, count in plain.items()
    }
    (judge,) = (cost.usage for cost in said.costs if cost.prompt == "comparative/judge")
    assert judge.completion_tokens == plain["comparative/judge"] * (100 + 64)
    assert requests(said) == await real(
        config, tmp_path / "out", script_with_queries("comparative")
    )
    assert (await dry(config)).costs == []


async def test_a_stage_of_a_folder_is_counted_and_the_folder_and_the_cache_stay_as_they_are(
    tmp_path: Path,
) -> None:
    config = short(tmp_path)
    await real(config, tmp_path / "out", script_of("comparative"))
    before = everything_in(tmp_path)
    other = config.model_copy(update={"rank": ("judge", "pairwise:4")})
    said = await dry(other, tmp_path / "out", ("judge",))
    # Two topics, one without objects; 7 documents, of which 3 are asked in both orders; 4 * 3
    # pairs.
    assert (said.costs, said.known["judge"], said.has_unknown_queries) == ([], 1 + 14 + 12, False)
    said = await dry(other, tmp_path / "out", ("rank",))
    assert requests(said) == {"comparative/best": 24} and said.costs[0].stage == "rank"
    after = everything_in(tmp_path)
    # SQLite's own files beside a database may come.
    assert {name: after[name] for name in before} == before
    assert {name for name in after if name not in before} <= {
        "answers.sqlite-shm",
        "answers.sqlite-wal",
    }


async def test_documents_are_cut_to_a_context_that_is_known(tmp_path: Path) -> None:
    config = short(tmp_path, "controversial")
    whole = await dry(config)
    cut = await dry(short(tmp_path, "controversial", engine__context=1200))
    assert (whole.context, cut.context) == (None, 1200)
    assert requests(cut) == requests(whole)
    assert cut.costs[0].usage.prompt_tokens < whole.costs[0].usage.prompt_tokens


async def test_where_the_answers_decide_how_often_is_compared_there_is_a_maximum(
    tmp_path: Path,
) -> None:
    for step, thinking, expected, maximum in (
        # Pairs in both orders. Answers that confirm leave the neighbours: every later pass knows
        # its pairs already. Answers that turn it round make every pass ask anew.
        ("sliding:6", {}, 2 * 5, 2 * (6 * 5 // 2)),
        # Answers that confirm need a comparison for each node of the heap and each of the best;
        # others need up to ten.
        ("setwise:7", {"compare": 200}, 2 * 7, 2 * 10),
    ):
        config = short(
            tmp_path, rank=("judge", step), stance__depth=0, sampling={"thinking": thinking}
        )
        result = await dry(config)
        (cost,) = (cost for cost in result.costs if cost.stage == "rank")
        # Two topics.
        assert cost.usage.requests == 2 * expected
        assert result.max_requests == {step: 2 * maximum}


async def test_each_step_has_a_maximum_of_its_own_if_the_answers_decide_and_are_not_known(
    tmp_path: Path,
) -> None:
    steps = ("judge", "pairwise:3", "sliding:4", "setwise:7")
    config = short(tmp_path, rank=steps, stance__depth=0)
    # Three, two and one pair in both orders, or ten questions, of each topic.
    assert (await dry(config)).max_requests == {"sliding:4": 2 * 12, "setwise:7": 2 * 10}
    one_topic = config.model_copy(update={"topic": ("3",)})
    await real(one_topic, tmp_path / "out", script_of("comparative"))
    assert (await dry(one_topic)).max_requests == {}
    assert (await dry(config)).max_requests == {"sliding:4": 12, "setwise:7": 10}
