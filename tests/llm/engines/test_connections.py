"""Connections to a server: time limits of queued requests, with a clock that jumps, and limits of open files."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.answer_models import ComparativeJudgment
from tests.fake_server import FakeServer, good
from tests.jumping_clock import run_jumping
from tests.llm.engines.test_server import question
from tests.sample_runs import config_for
from touche_llm.data.concurrency import map_in_order
from touche_llm.llm.chat import ChatServer
from touche_llm.llm.engine import Transient
from touche_llm.llm.http import allow_open_files
from touche_llm.llm.model import AnsweredRequest
from touche_llm.pipeline.engines import open_model


class OneAtATime(FakeServer):
    """Server that answers one request at a time, each in `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(rest=self.serve)
        self.seconds = seconds
        self._turn = asyncio.Lock()

    async def serve(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        async with self._turn:
            await asyncio.sleep(self.seconds)
        return await good(request, body)


def test_a_run_with_the_default_settings_ends_without_a_timeout_at_half_a_request_a_second(tmp_path: Path) -> None:
    async def main() -> None:
        server, requests = OneAtATime(2.0), 300
        async with server.running():
            config = config_for(tmp_path, engine__base_url=server.url, engine__retry_for=600.0)
            # The last request of a full queue waits longer than a request may take.
            assert config.engine.concurrency * server.seconds > config.engine.request_timeout
            async with open_model(config.engine, config.sampling, config.cache) as model:
                begun = asyncio.get_running_loop().time()
                found = await map_in_order(
                    lambda number: model.request(question(f"Question {number}?"), ComparativeJudgment),
                    range(requests),
                    config.engine.concurrency,
                )
                seconds = asyncio.get_running_loop().time() - begun
        assert all(isinstance(each, AnsweredRequest) for each in found)
        assert (server.most_open, len(server.bodies)) == (config.engine.concurrency, requests)
        assert (model.counts.retries, model.counts.failures) == (0, 0)
        assert seconds >= requests * server.seconds

    run_jumping(main())


async def test_the_time_of_a_request_begins_again_with_each_reply_and_a_server_that_hangs_has_it_once() -> None:
    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(float(body["messages"][-1]["content"]))
        return await good(request, body)

    async def send(client: ChatServer, seconds: float) -> str:
        try:
            return (await client.complete(question(str(seconds)))).text and "answered"
        except Transient as error:
            return error.kind

    async with FakeServer(rest=slow).running() as server:
        async with ChatServer(server.url, concurrency=8, request_timeout=0.4, chat_template_kwargs={}) as client:
            assert await asyncio.gather(*(send(client, seconds) for seconds in (0.3, 0.6, 9.0))) == [
                "answered",
                "answered",
                "timeout",
            ]
            assert await send(client, 9.0) == "timeout"


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((256, 1_048_576), 384),
        ((256, 300), 300),
        ((256, resource.RLIM_INFINITY), 384),
        ((1024, 1_048_576), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_the_system_allows(
    limits: tuple[int, int], raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: calls.append(new))
    allow_open_files(384)
    assert calls == ([] if raised is None else [(raised, limits[1])])
