from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.fake_server import FakeServer, good, status
from tests.llm.engines.test_server import question
from touche_llm.llm.adaptive import AdaptiveSlots
from touche_llm.llm.engines import server as vllm_server
from touche_llm.llm.engines.base import Transient
from touche_llm.llm.engines.server import VllmServer


@asynccontextmanager
async def under_way(slots: AdaptiveSlots, number: int) -> AsyncIterator[None]:
    """So many hold a slot, or as many as there are slots."""
    async with AsyncExitStack() as stack:
        for _ in range(min(number, slots.most)):
            await stack.enter_async_context(slots.held())
        yield


async def test_slots_are_added_while_all_are_held_and_nothing_queues() -> None:
    slots = AdaptiveSlots(100)
    seen = []
    for _ in range(6):
        async with under_way(slots, 1000):
            slots.look(0, slots.held_now)
        seen.append(slots.most)
    assert seen == [48, 64, 80, 96, 100, 100]


async def test_none_is_added_while_there_are_enough() -> None:
    slots = AdaptiveSlots(100)
    async with under_way(slots, 31):
        slots.look(0, slots.held_now)
    assert slots.most == 32


@pytest.mark.parametrize(("waiting", "then"), [(4, 48), (5, 31), (10, 26), (30, 16), (10_000, 16)])
async def test_there_are_as_many_fewer_as_wait_too_many_but_half_at_least(waiting: int, then: int) -> None:
    slots = AdaptiveSlots(100)
    async with under_way(slots, 1000):
        slots.look(waiting, slots.held_now - waiting if waiting < 32 else 0)
    assert slots.most == then


async def test_one_queue_makes_them_fewer_once() -> None:
    slots = AdaptiveSlots(100)
    async with under_way(slots, 32):
        slots.look(20, 12)
        slots.look(20, 12)
        assert (slots.held_now, slots.most) == (32, 16)
    async with under_way(slots, 16):
        slots.look(10, 6)
    assert slots.most == 10


async def test_refusals_of_requests_that_were_under_way_together_halve_once() -> None:
    slots = AdaptiveSlots(100)
    async with under_way(slots, 32):
        for _ in range(5):
            slots.refused()
        assert slots.most == 16
    slots.refused()
    assert slots.most == 8
    for _ in range(10):
        async with under_way(slots, 1):
            slots.refused()
    assert slots.most == 1


class Queueing(FakeServer):
    """Works on so many requests at a time; the others wait in its queue. `metrics` is what it says instead, if set."""

    def __init__(self, capacity: int) -> None:
        super().__init__(rest=self.slow)
        self._free = asyncio.Semaphore(capacity)
        self.metrics: str | None = ""
        self.working = 0

    async def slow(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        async with self._free:
            self.working += 1
            await asyncio.sleep(0.05)
            self.working -= 1
            return await good(request, body)

    def add_routes(self, app: web.Application) -> None:
        async def metrics(_: web.Request) -> web.Response:
            if self.metrics is None:
                return web.Response(status=503)
            waiting = self.open_now - self.working
            # Two engines, as with data parallelism.
            lines = [
                f'vllm:num_requests_waiting{{engine="0"}} {waiting}.0',
                'vllm:num_requests_waiting{engine="1"} 0.0',
            ]
            lines += [f'vllm:num_requests_running{{engine="0"}} {self.working}.0', "vllm:num_requests_waiting_by_x 7.0"]
            return web.Response(text=self.metrics or "\n".join(["# HELP vllm:num_requests_waiting W.", *lines, ""]))

        app.router.add_get("/metrics", metrics)


@asynccontextmanager
async def connected(server: FakeServer, concurrency: int | None = None) -> AsyncIterator[VllmServer]:
    async with server.running():
        async with VllmServer(
            server.url, concurrency=concurrency, request_timeout=30, chat_template_kwargs={}
        ) as engine:
            await engine.connect(None, "", 0)
            yield engine


@pytest.mark.parametrize("capacity", [1, 5, 30, 100, 200])
async def test_the_number_settles_a_little_above_what_the_server_works_on(capacity: int) -> None:
    slots = AdaptiveSlots(1024)
    seen = []
    held: list[AsyncExitStack] = []
    for _ in range(200):
        # Between two looks all that the server worked on ends, and what ended is asked anew.
        for each in held[:capacity]:
            await each.aclose()
        held = held[capacity:]
        while slots.held_now < slots.most:
            held.append(AsyncExitStack())
            await held[-1].enter_async_context(slots.held())
        slots.look(max(slots.held_now - capacity, 0), min(slots.held_now, capacity))
        seen.append(slots.most)
    for each in held:
        await each.aclose()
    settled = seen[100:]
    # Nearly never less than the server works on, and a queue that is short.
    assert sum(most < capacity for most in settled) <= len(settled) / 10
    assert sum(settled) / len(settled) <= 1.1 * capacity + 8


async def test_clients_of_one_server_share_it() -> None:
    capacity = 256
    one, other = AdaptiveSlots(1024), AdaptiveSlots(1024)
    shares = []
    async with AsyncExitStack() as stack:
        for turn in range(400):
            for slots in (one, other) if turn > 50 else (one,):
                while slots.held_now < slots.most:
                    await stack.enter_async_context(slots.held())
            total = one.held_now + other.held_now
            for slots in (one, other):
                slots.look(max(total - capacity, 0), min(total, capacity))
                # All that is under way ends before the next look, as far as it is too much.
                while slots.held_now > slots.most:
                    slots._give_back()
            shares.append((one.most, other.most))
        for slots in (one, other):
            slots.resize(10**6)
    assert min(shares[-1]) > capacity / 8 and sum(shares[-1]) < 1.2 * capacity + 16
    one.held_now = other.held_now = 10**6  # the stack gives back what was given back above


async def test_a_client_beside_one_that_keeps_to_its_number_gets_its_share() -> None:
    slots = AdaptiveSlots(1024)
    for _ in range(200):
        async with under_way(slots, 1000):
            total = slots.held_now + 64
            slots.look(max(total - 32, 0), min(total, 32))
    assert slots.most >= 4


@pytest.mark.slow
async def test_the_load_of_a_server_is_looked_at_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_server, "_LOOK_SECONDS", 0.02)
    server = Queueing(5)
    async with connected(server) as engine:
        await asyncio.gather(*(engine.complete(question()) for _ in range(120)))
        assert engine._slots.most < 32


@pytest.mark.slow
async def test_a_load_that_cannot_be_read_or_fails_later_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_server, "_LOOK_SECONDS", 0.01)
    for said in ("vllm:num_requests_waiting 1e999\n", "vllm:num_requests_waiting 1.2.3\n", None):
        server = Queueing(1000)
        server.metrics = said
        async with connected(server) as engine:
            await asyncio.gather(*(engine.complete(question()) for _ in range(200)))
            assert engine._slots.most == 64


async def test_a_refusal_makes_room_also_where_the_load_is_not_told() -> None:
    server = Queueing(1000)
    server.metrics = None
    server.behaviours = [status(429)]
    async with connected(server) as engine:
        with pytest.raises(Transient, match="429"):
            await engine.complete(question())
        assert engine._slots.most == 16


async def test_a_given_number_stays() -> None:
    server = Queueing(1000)
    async with connected(server, 7) as engine:
        await asyncio.gather(*(engine.complete(question()) for _ in range(50)))
    assert server.most_open == 7
