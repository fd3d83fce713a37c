"""Connections to a server: time limits of queued requests, and limits of open files."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import pytest
from aiohttp import web

from tests.fake_server import FakeServer, good
from tests.llm.engines.test_server import question
from touche_llm.engines.chat import ChatServer
from touche_llm.engines.dialects import make_vllm_dialect
from touche_llm.engines.http import allow_open_files
from touche_llm.errors import Transient


async def test_the_time_of_a_request_begins_again_with_each_reply_and_a_server_that_hangs_has_it_once() -> (
    None
):
    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(float(body["messages"][-1]["content"]))
        return await good(request, body)

    async def send(client: ChatServer, seconds: float) -> str:
        try:
            return (await client.complete(question(str(seconds)))).text and "answered"
        except Transient as error:
            return error.kind

    async with FakeServer(rest=slow).running() as server:
        async with ChatServer(
            server.url, concurrency=8, request_timeout=1.0, chat_template_kwargs={}
        ) as client:
            client.dialect = make_vllm_dialect(client, "fake")
            assert await asyncio.gather(
                *(send(client, seconds) for seconds in (0.6, 1.4, 9.0))
            ) == [
                "answered",
                "answered",
                "timeout",
            ]
            assert await send(client, 9.0) == "timeout"


class BehindOthers(FakeServer):
    """Server that is busy for others for a while, and says so."""

    ready = 0.0

    async def chat(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(self.ready - asyncio.get_running_loop().time())
        return await super().chat(request)

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)

        async def metrics(_: web.Request) -> web.Response:
            is_waiting = asyncio.get_running_loop().time() < self.ready
            return web.Response(
                text=f"vllm:num_requests_waiting {is_waiting:d}\nvllm:num_requests_running 8\n"
            )

        app.router.add_get("/metrics", metrics)


async def test_requests_behind_those_of_others_are_sent_once() -> None:
    async with BehindOthers().running() as server:
        async with ChatServer(
            server.url, concurrency=8, request_timeout=0.4, chat_template_kwargs={}
        ) as client:
            client.dialect = make_vllm_dialect(client, "fake")
            server.ready = asyncio.get_running_loop().time() + 1.0
            found = await asyncio.gather(
                *(client.complete(question(f"Question {n}?")) for n in range(6))
            )
    assert all(completion.text for completion in found) and len(server.bodies) == 6


async def test_a_queue_is_read_from_the_server_alone() -> None:
    class Elsewhere(FakeServer):
        def add_routes(self, app: web.Application) -> None:
            super().add_routes(app)

            async def metrics(_: web.Request) -> web.Response:
                raise web.HTTPFound(other.url + "/metrics")

            app.router.add_get("/metrics", metrics)

    async with BehindOthers().running() as other, Elsewhere().running() as server:
        other.ready = asyncio.get_running_loop().time() + 60.0
        async with ChatServer(
            server.url, concurrency=8, request_timeout=5.0, chat_template_kwargs={}
        ) as client:
            assert await client.count_waiting() == 0
        async with ChatServer(
            other.url, concurrency=8, request_timeout=5.0, chat_template_kwargs={}
        ) as client:
            assert await client.count_waiting() == 1


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
