"""Unusable answers are stored: they are replayed, not requested again, and retried on demand."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.answer_models import ComparativeJudgment
from tests.fake_server import Behaviour, FakeServer, hangs, says, status
from tests.llm.engines.test_server import UNUSABLE, model_of, question, send_question
from tests.scripted_engine import FACTS
from touche_llm.llm import retries
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.client import FailedRequest, UnansweredRequest, UncachedRequest
from touche_llm.llm.counts import Counts
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.settings import SamplingConfig

BAD = says("Well, I think")
FAILING = [*UNUSABLE, (status(400), "server_error")]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.01)


async def replay(path: Path) -> tuple[AnsweredRequest[Any] | UnansweredRequest, ModelClient]:
    with Cache(path, CacheMode.REPLAY) as cache:
        model = ModelClient(engine_info=FACTS, engine=None, cache=cache, sampling=SamplingConfig())
        return await model.request(question(), ComparativeJudgment), model


def are_resamples(server: FakeServer) -> list[bool]:
    """Return for each request to a server whether it is for another sample than the first."""
    return [body["temperature"] > 0 for body in server.bodies]


def kinds(path: Path) -> list[tuple[str, int]]:
    with Cache(path / "answers.sqlite", CacheMode.REPLAY) as cache:
        return sorted((entry.kind, entry.sample) for entry in cache.iterate_entries())


@pytest.mark.parametrize(("behaviour", "kind"), FAILING)
async def test_a_failure_is_replayed_attempt_by_attempt_and_not_sent_again(
    behaviour: Behaviour, kind: str, tmp_path: Path
) -> None:
    failed, first = await send_question(FakeServer(rest=behaviour), tmp_path)
    assert isinstance(failed, FailedRequest)
    records = 1 if kind == "server_error" else 3
    assert [(each.sample, each.kind) for each in failed.attempts] == [
        (number, kind) for number in range(records)
    ]
    assert (first.counts.known_failures, first.counts.unusable_records) == (0, 0)
    replayed, offline = await replay(tmp_path / "answers.sqlite")
    server = FakeServer()
    again, second = await send_question(server, tmp_path)
    assert failed == replayed == again
    assert (server.bodies, offline.misses) == ([], [])
    assert (
        second.counts
        == offline.counts
        == Counts(failures=1, known_failures=1, unusable_records=records)
    )


@pytest.mark.parametrize(("stopped_after", "retry_failures"), [(1, True), (2, False)])
async def test_an_interrupted_request_resumes_with_the_next_sample(
    stopped_after: int, retry_failures: bool, tmp_path: Path
) -> None:
    server = FakeServer([BAD] * stopped_after, rest=hangs)
    async with server.running(), model_of(server, tmp_path) as model:
        sending = asyncio.create_task(model.request(question(), ComparativeJudgment))
        while len(server.bodies) <= stopped_after:
            await asyncio.sleep(0.01)
        sending.cancel()
        await asyncio.wait([sending])
    missed, offline = await replay(tmp_path / "answers.sqlite")
    assert missed == UncachedRequest(question()) and len(offline.misses) == 1
    resumed = FakeServer(rest=BAD)
    result, model = await send_question(resumed, tmp_path, retry_failures=retry_failures)
    assert are_resamples(resumed) == [sample > 0 for sample in range(stopped_after, 3)]
    assert isinstance(result, FailedRequest) and [each.sample for each in result.attempts] == [
        0,
        1,
        2,
    ]
    assert (model.counts.requests, model.counts.resamples) == (3 - stopped_after, 3 - stopped_after)
    assert (model.counts.unusable_records, model.counts.known_failures) == (stopped_after, 0)


@pytest.mark.parametrize("behaviour", [BAD, status(400)])
async def test_failures_are_sent_again_on_demand_and_replaced(
    behaviour: Behaviour, tmp_path: Path
) -> None:
    await send_question(FakeServer(rest=behaviour), tmp_path)
    server = FakeServer([says("Still not")])
    answered, model = await send_question(server, tmp_path, retry_failures=True)
    assert isinstance(answered, AnsweredRequest) and answered.sample == 1
    assert are_resamples(server) == [False, True]
    assert kinds(tmp_path) == [("answer", 1), ("unusable", 0)]
    assert (model.counts.known_failures, model.counts.failures) == (0, 0)
    assert (await replay(tmp_path / "answers.sqlite"))[0] == answered


async def test_refresh_forgets_unusable_answers_and_off_stores_none(tmp_path: Path) -> None:
    await send_question(FakeServer(rest=BAD), tmp_path)
    server = FakeServer()
    refreshed, model = await send_question(server, tmp_path, mode=CacheMode.REFRESH)
    assert isinstance(refreshed, AnsweredRequest) and refreshed.sample == 0
    assert (are_resamples(server), kinds(tmp_path)) == ([False], [("answer", 0)])
    assert model.counts.unusable_records == 0
    silent = FakeServer(rest=BAD)
    failed, _ = await send_question(silent, tmp_path / "off", mode=CacheMode.OFF)
    assert isinstance(failed, FailedRequest) and len(failed.attempts) == 3
    assert not (tmp_path / "off").exists()


@pytest.mark.parametrize("into", ["the answer", "the failure"])
async def test_an_answer_replaces_a_failure_when_caches_are_merged(
    tmp_path: Path, into: str
) -> None:
    answered, _ = await send_question(FakeServer(), tmp_path / "the answer")
    await send_question(FakeServer(rest=BAD), tmp_path / "the failure")
    (other,) = {"the answer", "the failure"} - {into}
    with Cache(tmp_path / other / "answers.sqlite", CacheMode.REPLAY) as cache:
        cache.export_cassette(tmp_path / "other.jsonl")
    with Cache(tmp_path / into / "answers.sqlite") as cache:
        # The failure has two more samples.
        assert (
            cache.import_cassette(tmp_path / "other.jsonl")
            == {"the answer": (2, 1), "the failure": (1, 0)}[into]
        )
        assert cache.import_cassette(tmp_path / "other.jsonl")[0] == 0
    assert kinds(tmp_path / into) == [("answer", 0), ("unusable", 1), ("unusable", 2)]
    assert (await replay(tmp_path / into / "answers.sqlite"))[0] == answered
