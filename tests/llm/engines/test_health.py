"""A server that dies during a run ends it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.answer_models import ComparativeJudgment
from tests.fake_server import FakeServer
from tests.llm.engines.test_server import model_of, question
from touche_llm.data import concurrency
from touche_llm.errors import EngineError
from touche_llm.llm.model import AnsweredRequest, ModelClient


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_FIRST_WAIT", 0.01)


async def send(model: ModelClient, text: str = "A question.") -> Any:
    return await model.request(question(text), ComparativeJudgment)


async def test_a_server_that_has_ended_ends_the_run_after_the_retries(tmp_path: Path) -> None:
    server = FakeServer()
    async with AsyncExitStack() as running:
        await running.enter_async_context(server.running())
        async with model_of(server, tmp_path, retry_for=0.3) as model:
            assert isinstance(await send(model, "before"), AnsweredRequest)
            await running.aclose()
            async with asyncio.timeout(5):
                results = await asyncio.gather(*(send(model, str(n)) for n in range(3)), return_exceptions=True)
    for error in results:
        assert isinstance(error, EngineError)
        assert "cannot connect" in str(error) and "answers.sqlite" in str(error)
    assert model.counts.retries > 3
