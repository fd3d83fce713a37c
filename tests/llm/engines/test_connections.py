"""Connections to a server: time limits of queued requests, with a clock that jumps, and limits of open files."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Coroutine
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
from touche_llm.llm.http import QueueTimeout, allow_connections
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


class BehindOthers(OneAtATime):
    """Server that is busy for others for a while, and says so."""

    async def serve(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(1000.0 - asyncio.get_running_loop().time())
        return await super().serve(request, body)

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)

        async def metrics(_: web.Request) -> web.Response:
            waiting = asyncio.get_running_loop().time() < 1000.0
            return web.Response(text=f"vllm:num_requests_waiting {waiting:d}\nvllm:num_requests_running 8\n")

        app.router.add_get("/metrics", metrics)


def test_requests_behind_those_of_others_are_sent_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with BehindOthers(2.0).running() as server:
            config = config_for(tmp_path, engine__base_url=server.url, engine__request_timeout=300.0)
            async with open_model(config.engine, config.sampling, config.cache) as model:
                sent = (model.request(question(f"Question {number}?"), ComparativeJudgment) for number in range(20))
                found = await asyncio.gather(*sent)
        assert all(isinstance(each, AnsweredRequest) for each in found)
        assert (len(server.bodies), model.counts.retries) == (20, 0)

    run_jumping(main())


Send = Callable[[float, float], Coroutine[Any, Any, float]]


def times_of(
    seconds: float, main: Callable[[Send], Coroutine[Any, Any, list[float]]], queue_until: float = 0.0
) -> list[float]:
    """Return the times at which requests end, rounded; negative for those that time out."""

    async def has_queue() -> bool:
        return asyncio.get_running_loop().time() < queue_until

    timeout = QueueTimeout(seconds, has_queue)

    async def send(at: float, lasts: float) -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.sleep(at)
        try:
            async with timeout.limit():
                await asyncio.sleep(lasts)
        except TimeoutError:
            return round(begun - loop.time(), 3)
        return round(loop.time() - begun, 3)

    return run_jumping(main(send))


@pytest.mark.parametrize(
    ("requests", "ends"),
    [
        # When they are sent, and how long their replies take; when they end, negative if by a timeout.
        ([(0, 11)], [-10]),
        # Replies to earlier requests extend the time, those to later requests do not.
        ([(0, 9), (0, 18), (1, 26)], [9, 18, 27]),
        ([(0, 30), (1, 1), (2, 1), (3, 1)], [-10, 2, 3, 4]),
        # A timeout is no reply: a server that hangs has the time of one request.
        ([(0, 99), (1, 99), (2, 99), (3, 99)], [-10, -11, -12, -13]),
    ],
)
def test_the_time_of_a_request_restarts_with_replies_to_earlier_ones(
    requests: list[tuple[float, float]], ends: list[float]
) -> None:
    async def main(send: Send) -> list[float]:
        return await asyncio.gather(*(send(at, lasts) for at, lasts in requests))

    assert times_of(10.0, main) == ends


@pytest.mark.parametrize(
    ("queue_until", "ends"),
    [
        # The look after 10 s, when the first request is late, gives all of them 10 s more.
        (15, [-20, 18, 9]),
        (25, [25, 18, 9]),
    ],
)
def test_the_time_of_all_requests_restarts_while_the_server_has_a_queue(queue_until: float, ends: list[float]) -> None:
    async def main(send: Send) -> list[float]:
        return list(await asyncio.gather(send(0, 25), send(5, 13), send(0, 9)))

    assert times_of(10.0, main, queue_until) == ends


@pytest.mark.parametrize(
    ("limits", "wanted", "possible", "raised"),
    [
        ((256, 1_048_576), 256, 256, 384),
        ((256, 256), 256, 128, None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 65_536, 65_536, None),
    ],
)
def test_the_limit_of_open_files_is_raised_and_bounds_the_connections(
    limits: tuple[int, int], wanted: int, possible: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: calls.append(new))
    assert allow_connections(wanted) == possible
    assert calls == ([] if raised is None else [(raised, limits[1])])
