from __future__ import annotations

import asyncio

import pytest

from touche_llm.data import concurrency
from touche_llm.data.concurrency import map_in_order


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_calls_begin_in_the_order_of_the_items_and_a_slow_one_delays_no_other() -> None:
    begun: list[int] = []
    release = asyncio.Event()

    async def call(item: int) -> int:
        begun.append(item)
        if item == 0:
            await release.wait()
        elif item == 5:
            release.set()
        await turns(1)
        return -item

    # Two at a time: while the first waits the other one does all the rest, and the last of them
    # lets the first go.
    assert await asyncio.wait_for(map_in_order(call, range(6), 2), 30) == [0, -1, -2, -3, -4, -5]
    assert begun == list(range(6))


async def test_the_first_exception_cancels_the_other_calls_and_is_raised_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(concurrency, "GRACE_SECONDS", 0.01)
    ended: list[str] = []

    async def call(item: int) -> None:
        if item == 1:
            await turns(2)
            raise KeyError("mine") from ValueError("the cause")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(f"{item} cancelled")
            raise

    with pytest.raises(KeyError, match="mine") as caught:
        await map_in_order(call, range(4), 3)
    assert isinstance(caught.value.__cause__, ValueError)
    # The fourth call never began.
    assert sorted(ended) == ["0 cancelled", "2 cancelled"]


async def test_no_call_begins_after_a_cancellation_from_outside() -> None:
    begun: list[int] = []

    async def call(item: int) -> None:
        begun.append(item)
        await asyncio.sleep(3600)

    task = asyncio.create_task(map_in_order(call, range(9), 2))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert begun == [0, 1]
