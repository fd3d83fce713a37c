"""A server that dies during a run is noticed within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.answer_models import ComparativeJudgment
from tests.fake_server import FakeServer, closes, status
from tests.llm.engines.test_server import question
from touche_llm.data import concurrency
from touche_llm.errors import EngineError
from touche_llm.llm import http
from touche_llm.llm.cache import Cache
from touche_llm.llm.chat import ChatServer
from touche_llm.llm.checks import Survey
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.settings import EngineConfig, SamplingConfig
from touche_llm.llm.startup import connect


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(http, "_LOOK_INTERVAL", 0.02)


@asynccontextmanager
async def client_of(server: FakeServer, path: Path) -> AsyncIterator[ModelClient]:
    """A client that retries for hours."""
    async with ChatServer(server.url, concurrency=8, request_timeout=5, chat_template_kwargs={}) as engine:
        info = await connect(Survey(engine, EngineConfig(), SamplingConfig()))
        with Cache(path / "answers.sqlite") as cache:
            yield ModelClient(engine_info=info, engine=engine, cache=cache, retry_for=36_000.0)


async def send(model: ModelClient, text: str = "A question.") -> Any:
    return await model.request(question(text), ComparativeJudgment)


async def test_a_server_that_has_ended_stops_the_run_within_seconds(tmp_path: Path) -> None:
    server = FakeServer()
    async with AsyncExitStack() as running:
        await running.enter_async_context(server.running())
        async with client_of(server, tmp_path) as model:
            assert isinstance(await send(model, "before"), AnsweredRequest)
            await running.aclose()
            async with asyncio.timeout(5):
                results = await asyncio.gather(*(send(model, str(n)) for n in range(20)), return_exceptions=True)
    for error in results:
        assert isinstance(error, EngineError)
        assert "cannot connect" in str(error) and "same command" in str(error)


async def test_a_server_that_reports_to_be_dead_stops_the_run(tmp_path: Path) -> None:
    server = FakeServer(rest=status(500), health=[503] * 1000)
    async with server.running(), client_of(server, tmp_path) as model:
        async with asyncio.timeout(5):
            with pytest.raises(EngineError, match="HTTP 500"):
                await send(model)
    assert len(server.bodies) == 1


@pytest.mark.parametrize("statuses", [[404], [503, 503, 200]])
async def test_a_server_that_lives_or_recovers_is_sent_the_request_again(statuses: list[int], tmp_path: Path) -> None:
    server = FakeServer([status(500), closes], health=statuses)
    async with server.running(), client_of(server, tmp_path) as model:
        assert isinstance(await send(model), AnsweredRequest)
    assert (len(server.bodies), model.counts.retries, server.health) == (3, 2, [])
