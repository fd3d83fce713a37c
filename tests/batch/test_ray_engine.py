"""Runs answered by Ray Data jobs, with libraries that stand in for Ray's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.batch.conftest import FakeRay
from tests.sample_runs import Silent, config_for, with_cache
from touche_llm.config.configuration import Config
from touche_llm.errors import EngineError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.runs import stages as pipeline

RUN_FILES = ("run.txt", "judgments.jsonl", "failures.jsonl", "comparisons.jsonl", "stances.jsonl")


@pytest.fixture
def config(tmp_path: Path, ray: FakeRay) -> Config:
    return config_of(tmp_path, ray)


def config_of(folder: Path, ray: FakeRay, **flags: Any) -> Config:
    engine = {
        "engine__name": "ray",
        "engine__model": str(ray.model),
        "engine__context": 32768,
        "engine__options": {"placement_group_config": {"bundles": [{"CPU": 1}]}},
    }
    given: dict[str, Any] = {
        "topic": ("3",),
        "depth": 4,
        "stance__depth": 2,
        "rank": "judge,pairwise:3",
    }
    return config_for(folder, **(engine | given | flags))


def sent(ray: FakeRay) -> list[int]:
    """Number of requests of each job."""
    return [len(rows) for rows in ray.seen("rows")]


async def test_a_run_takes_a_job_for_each_set_of_requests_that_do_not_wait_for_others(
    config: Config, ray: FakeRay, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    progress = Silent()
    outcome = await pipeline.run_all(config, out, progress)
    assert (outcome.judgments.requested, outcome.failures) == (4, [])
    rounds = [message.partition(" to ")[0] for message in progress.notices if "round" in message]
    assert rounds == ["round 1: 4 requests", "round 2: 4 requests", "round 3: 6 requests"]
    # Judgments, the stances of the best two and the orders of three pairs, both twice.
    assert sent(ray) == [4, 4, 6]
    written = yaml.safe_load((out / "config.yaml").read_text())
    assert (written["engine"]["name"], written["engine"]["context"]) == ("ray", 32768)
    assert written["cache"]["mode"] == "reuse"
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()
    assert not (out / "batch.json").exists()
    metadata = yaml.safe_load((out / "ir-metadata.yml").read_text())
    assert metadata["stages"]["judge"]["llm"]["model"]["engine"] == "Ray Data job"

    # The same command again sends nothing; a replay for a server makes the same run from the same
    # answers.
    await pipeline.run_all(config, out, Silent())
    assert len(sent(ray)) == 3
    mode = config.cache.model_copy(update={"mode": CacheMode.REPLAY})
    engine = config.engine.model_copy(update={"name": "server", "model": "tiny"})
    replay = config.model_copy(update={"cache": mode, "engine": engine})
    await pipeline.run_all(replay, tmp_path / "replayed", Silent())
    for name in RUN_FILES:
        assert (tmp_path / "replayed" / name).read_bytes() == (out / name).read_bytes()


async def test_thoughts_take_a_job_before_that_of_the_answers(ray: FakeRay, tmp_path: Path) -> None:
    flags: dict[str, Any] = {"rank": "judge", "stance__depth": 0}
    config = config_of(tmp_path, ray, sampling={"thinking": {"judge": 50}}, **flags)
    outcome = await pipeline.run_all(config, tmp_path / "out", Silent())
    assert (outcome.judgments.requested, outcome.failures) == (4, [])
    assert sent(ray) == [4, 4]
    # A replay for a server makes the same run.
    engine = config.engine.model_copy(update={"name": "server", "model": "tiny"})
    mode = config.cache.model_copy(update={"mode": CacheMode.REPLAY})
    replay = config.model_copy(update={"cache": mode, "engine": engine})
    await pipeline.run_all(replay, tmp_path / "replayed", Silent())
    assert (tmp_path / "replayed" / "run.txt").read_bytes() == (
        tmp_path / "out" / "run.txt"
    ).read_bytes()


async def test_a_run_whose_job_failed_resumes_with_what_is_missing(
    config: Config, ray: FakeRay, tmp_path: Path
) -> None:
    ray.behave(fails_in_job=2)
    with pytest.raises(EngineError, match="not enough memory"):
        await pipeline.run_all(config, tmp_path / "out", Silent())
    assert not (tmp_path / "out" / "judgments.jsonl").exists()
    ray.behave()
    await pipeline.run_all(config, tmp_path / "out", Silent())
    assert sent(ray) == [4, 4, 6]


async def test_a_request_without_an_answer_is_sent_once_more_and_then_fails_without_being_stored(
    ray: FakeRay, tmp_path: Path
) -> None:
    ray.behave(errors=["RuntimeError: out of memory"])
    config = config_of(tmp_path, ray, rank="judge", stance__depth=0)
    outcome = await pipeline.run_all(config, tmp_path / "out", Silent())
    assert sent(ray) == [4, 1]
    (failure,) = outcome.failures
    assert failure.attempts[-1].kind == "server_error" and "HTTP 500" in failure.attempts[-1].reason
    with Cache(config.cache.file) as cache:
        assert cache.find("unusable") == []
    # The server was at fault, so the same command sends the request again.
    ray.behave()
    assert (await pipeline.run_all(config, tmp_path / "out", Silent())).failures == []
    assert sent(ray)[2:] == [1]


async def test_a_rejected_request_is_a_stored_failure_and_sent_again_only_if_wanted(
    ray: FakeRay, tmp_path: Path
) -> None:
    ray.behave(errors=["VLLMValidationError: too long"])
    config = config_of(tmp_path, ray, rank="judge", stance__depth=0)
    (failure,) = (await pipeline.run_all(config, tmp_path / "out", Silent())).failures
    assert failure.attempts[-1].kind == "server_error" and "HTTP 400" in failure.attempts[-1].reason
    ray.behave()
    assert (await pipeline.run_all(config, tmp_path / "out", Silent())).failures == [failure]
    assert sent(ray) == [4]
    assert (
        await pipeline.run_all(with_cache(config, retry_failures=True), tmp_path / "out", Silent())
    ).failures == []
    assert sent(ray) == [4, 1]
