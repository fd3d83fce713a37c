"""The last stage: steps that compare documents, what is written of them, and when no engine is needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sample_runs import (
    Silent,
    config_for,
    judge_stage,
    rank_stage,
    retrieve_stage,
    run_lines,
    scripted_model,
)
from tests.scripted_engine import FACTS, Label
from tests.write_demo_cassette import script_of
from touche_llm.api.rank import Ranking
from touche_llm.config.configuration import Config
from touche_llm.data.files import read_records
from touche_llm.data.records import Comparison, Failure, Objects, RunLine
from touche_llm.errors import ReplayMiss
from touche_llm.evaluation.validation import validate_run
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.request import Request
from touche_llm.tasks import get_task

SCRIPT = script_of("comparative")
Answer = Mapping[str, Label | Mapping[Label, float]]
COMPARED = ("comparisons.jsonl", "comparison_failures.jsonl")


def short(folder: Path, **flags: Any) -> Config:
    return config_for(folder, **{"topic": ("3", "20"), "depth": 8, **flags})


async def judged(folder: Path, script: Any = SCRIPT) -> None:
    """The sample in `folder/out`, judged."""
    config = short(folder)
    await retrieve_stage(config, folder / "out", Silent())
    with scripted_model(config, script) as (model, _):
        await judge_stage(config, folder / "out", Silent(), model)


async def ranked(config: Config, out: Path, script: Any = SCRIPT) -> tuple[Ranking, list[Request]]:
    with scripted_model(config, script) as (model, engine):
        return await rank_stage(config, out, Silent(), model), engine.requests


def lines_of(out: Path, topic: str = "3") -> list[RunLine]:
    return [line for line in run_lines(out / "run.txt") if line.topic_id == topic]


def ids(lines: list[RunLine]) -> list[str]:
    return [line.document_id for line in lines]


def last_is_best(request: Request) -> Answer:
    """The later a document stands in the candidates' alphabet, the better."""
    if request.origin.document_id is None or "best" not in list_fields(request.schema):
        return SCRIPT(request)
    documents = request.origin.document_id.split()
    return {
        "best": {
            "AB"[documents.index(each)]: 0.9 if each == max(documents) else 0.1
            for each in documents
        }
    }


async def test_a_step_orders_the_best_and_leaves_those_below_and_all_stances(
    tmp_path: Path,
) -> None:
    await judged(tmp_path)
    out = tmp_path / "out"
    await rank_stage(short(tmp_path), out, Silent())
    before = lines_of(out)
    ranking, asked = await ranked(short(tmp_path, rank=("judge", "pairwise:4")), out, last_is_best)
    after = lines_of(out)
    assert ids(after) == sorted(ids(before)[:4], reverse=True) + ids(before)[4:]
    assert {line.document_id: line.stance for line in after} == {
        line.document_id: line.stance for line in before
    }
    assert validate_run(out / "run.txt", get_task("comparative")) == []
    # Both orders of all pairs of four, for two topics.
    assert len(asked) == 2 * 4 * 3 and ranking.failures == []
    assert len(ranking.lines) == len(run_lines(out / "run.txt"))


async def test_what_was_compared_is_written_and_counted(tmp_path: Path) -> None:
    await judged(tmp_path)
    out = tmp_path / "out"
    _, asked = await ranked(short(tmp_path, rank=("judge", "listwise:5", "pairwise:3")), out)
    comparisons = read_records(out / "comparisons.jsonl", Comparison, "comparisons")
    assert len(comparisons) == len(asked) == 2 * (1 + 6)
    assert {(each.step, len(each.documents)) for each in comparisons} == {
        ("listwise:5", 5),
        ("pairwise:3", 2),
    }
    for each in comparisons:
        assert (each.order is None) is (each.step == "pairwise:3") is not (each.best is None)
    assert (out / "comparison_failures.jsonl").read_bytes() == b""
    llm = yaml.safe_load((out / "ir-metadata.yml").read_text())["stages"]["rank"]["llm"]
    assert (llm["model"]["name"], llm["failures"]) == (FACTS.model, {})
    assert set(llm["prompts"]) == {"best", "order"}
    # The objects of one topic are those that the judge stage found.
    assert (llm["counts"]["requests"], llm["counts"]["cache_hits"]) == (14, 0)
    of_tea = [request for request in asked if request.origin.topic_id == "20"]
    (found,) = read_records(out / "objects.jsonl", Objects, "objects")
    assert of_tea and all(
        f"First object: {found.objects[0]}\n" in each.messages[1].content for each in of_tea
    )


async def test_a_comparison_without_a_usable_answer_is_recorded_and_the_run_is_whole(
    tmp_path: Path,
) -> None:
    await judged(tmp_path)
    out = tmp_path / "out"
    await rank_stage(short(tmp_path), out, Silent())
    before = ids(lines_of(out))

    def one_fails(request: Request) -> Answer:
        if set((request.origin.document_id or "").split()) == set(before[:2]):
            return {"best": "Z"}
        return last_is_best(request)

    ranking, _ = await ranked(short(tmp_path, rank=("judge", "pairwise:3")), out, one_fails)
    failures = read_records(out / "comparison_failures.jsonl", Failure, "failures")
    assert ranking.failures == failures
    assert {
        (each.topic_id, each.document_id, each.kind, len(each.attempts)) for each in failures
    } == {("3", " ".join(shown), "outside_schema", 3) for shown in (before[:2], before[1::-1])}
    assert sorted(ids(lines_of(out))) == sorted(before)
    stage = yaml.safe_load((out / "ir-metadata.yml").read_text())["stages"]["rank"]
    assert stage["llm"]["failures"] == {"outside_schema": 2}


async def test_a_replay_is_the_same_to_the_byte_and_says_what_it_lacks(tmp_path: Path) -> None:
    await judged(tmp_path)
    out = tmp_path / "out"
    steps = ("judge", "setwise:6", "pairwise:3")
    await ranked(short(tmp_path, rank=steps), out)
    names = ("run.txt", *COMPARED)
    first = [(out / name).read_bytes() for name in names]
    _, asked = await ranked(short(tmp_path, rank=steps, cache__mode=CacheMode.REPLAY), out)
    assert asked == [] and [(out / name).read_bytes() for name in names] == first
    with pytest.raises(ReplayMiss, match="prompt comparative/order"):
        await ranked(
            short(tmp_path, rank=("judge", "listwise:4"), cache__mode=CacheMode.REPLAY), out
        )
    # What was there stays.
    assert [(out / name).read_bytes() for name in names] == first
