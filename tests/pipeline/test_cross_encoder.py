"""Runs that rank with a cross-encoder: what is sent, stored, counted, replayed, and refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fake_pooling import FakePooling
from tests.pipeline.test_rank import ids, judged, lines_of, short
from tests.sample_runs import Silent, run_directly
from tests.scripted_engine import ScriptedEngine
from tests.write_demo_cassette import script_of
from touche_llm.api.rank import Ranking
from touche_llm.config.configuration import Config
from touche_llm.errors import ReplayMiss, UsageError
from touche_llm.llm.cache import CacheMode
from touche_llm.regression.check import check_folder, load_finished_run
from touche_llm.regression.record import record
from touche_llm.runs.dry_run import estimate_cost
from touche_llm.runs.stages import run_rank

STEPS = ("judge", "cross_encoder:6")
PROBES = 1  # of the start-up check: clearly different pairs


def crossing(folder: Path, url: str | None = None, **flags: Any) -> Config:
    return short(folder, **{"rank": STEPS, "ranking__cross_encoder__url": url, **flags})


async def rank_on(server: FakePooling, folder: Path, **flags: Any) -> Ranking:
    async with server.running():
        config = crossing(folder, server.url, ranking__cross_encoder__retry_for=0.0, **flags)
        return await run_rank(config, folder / "out", Silent())


def facts(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((out / "ir-metadata.yml").read_text())["stages"]["rank"][
        "cross_encoder"
    ]
    return found


async def test_the_best_are_ranked_by_their_scores_and_replayed_without_the_server(
    tmp_path: Path,
) -> None:
    await judged(tmp_path)
    out, server = tmp_path / "out", FakePooling()
    await run_rank(short(tmp_path), out, Silent())
    before = ids(lines_of(out))
    await rank_on(server, tmp_path)
    run = (out / "run.txt").read_bytes()
    assert [len(body["documents"]) for body in server.sent[PROBES:]] == [6, 6]
    after = ids(lines_of(out))
    assert sorted(after[:6]) == sorted(before[:6]) and after[:6] != before[:6]
    assert after[6:] == before[6:]
    assert facts(out)["model"]["name"] == "pooling"
    sent = {"requests": 2, "cache_hits": 0, "retries": 0}
    assert facts(out)["counts"].items() > sent.items()
    assert facts(out)["templates"] == {"query": "{query}", "document": "{document}"}
    # Nothing is sent again, with the server or without it, and without its address.
    again = FakePooling()
    await rank_on(again, tmp_path, ranking__cross_encoder__model="pooling")
    assert again.sent == [] and (out / "run.txt").read_bytes() == run
    for mode in (CacheMode.REPLAY, CacheMode.REUSE):
        (out / "run.txt").unlink()
        await run_rank(crossing(tmp_path, cache__mode=mode), out, Silent())
        assert (out / "run.txt").read_bytes() == run
        sent = {"requests": 0, "cache_hits": 12, "retries": 0}
        assert facts(out)["counts"].items() > sent.items()


async def test_the_dry_run_counts_the_requests_that_are_sent(tmp_path: Path) -> None:
    await judged(tmp_path)
    config, server = crossing(tmp_path, ranking__cross_encoder__batch=4), FakePooling()
    (cost,) = (await estimate_cost(config, tmp_path / "out", ("rank",), Silent())).costs
    assert (cost.stage, cost.prompt) == ("rank", "comparative/cross_encoder")
    # Two topics, six documents in two requests.
    assert cost.usage.requests == 4
    assert cost.usage.prompt_tokens > 100
    await rank_on(server, tmp_path, ranking__cross_encoder__batch=4)
    assert len(server.sent) == PROBES + cost.usage.requests
    after = await estimate_cost(config, tmp_path / "out", ("rank",), Silent())
    assert (after.costs, after.known) == ([], {"rank": 12})


async def test_without_address_or_scores_the_setting_is_named_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    await judged(tmp_path)
    with pytest.raises(UsageError, match=r"^ranking\.cross_encoder\.url: missing"):
        await run_rank(crossing(tmp_path), tmp_path / "out", Silent())
    with pytest.raises(UsageError, match="nothing to replay of model any"):
        await run_rank(crossing(tmp_path, cache__mode=CacheMode.REPLAY), tmp_path / "out", Silent())
    await rank_on(FakePooling(), tmp_path, topic=("3",))
    before = (tmp_path / "out" / "run.txt").read_bytes()
    for mode in (CacheMode.REPLAY, CacheMode.REUSE):
        with pytest.raises(ReplayMiss, match="lacks 6 results of pooling.*topic 20"):
            await run_rank(crossing(tmp_path, cache__mode=mode), tmp_path / "out", Silent())
    assert (tmp_path / "out" / "run.txt").read_bytes() == before


async def test_a_recorded_run_has_its_scores_and_no_address(tmp_path: Path) -> None:
    out, target = tmp_path / "out", tmp_path / "recorded"
    await run_directly(short(tmp_path), out, ScriptedEngine(script_of("comparative")))
    await rank_on(FakePooling(), tmp_path)
    await record(load_finished_run(out), out, target)
    kinds = Counter(
        entry["kind"]
        for entry in map(json.loads, (target / "cassette.jsonl").read_text().splitlines())
    )
    assert (kinds["score"], kinds["score engine"]) == (12, 1)
    assert (
        "url"
        not in yaml.safe_load((target / "config.yaml").read_text())["ranking"]["cross_encoder"]
    )
    (tmp_path / "answers.sqlite").unlink()
    assert (await check_folder(target)).is_same
