from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from touche_llm.data import concurrency
from touche_llm.data.concurrency import Slots, map_in_order


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass(frozen=True)
class User:
    """Call that arrives after some turns of the event loop, holds its slot for some, and may be cancelled."""

    priority: int
    comes: int
    holds: int
    cancelled: int | None
    fails: bool


USERS = st.lists(
    st.builds(
        User,
        priority=st.integers(0, 3),
        comes=st.integers(0, 6),
        holds=st.integers(0, 4),
        cancelled=st.none() | st.integers(0, 14),
        fails=st.booleans(),
    ),
    max_size=10,
)


@given(USERS, st.integers(1, 3))
@settings(deadline=None)
async def test_no_more_slots_are_held_than_exist_and_none_is_lost(users: list[User], most: int) -> None:
    slots = Slots(most)
    held: set[int] = set()
    served: set[int] = set()

    async def use(number: int, user: User) -> None:
        await turns(user.comes)
        async with slots.hold(user.priority):
            held.add(number)
            served.add(number)
            assert len(held) <= most
            try:
                await turns(user.holds)
                if user.fails:
                    raise ValueError(number)
            finally:
                held.remove(number)

    tasks = [asyncio.create_task(use(number, user)) for number, user in enumerate(users)]
    for turn in range(15):
        for task, user in zip(tasks, users, strict=True):
            if user.cancelled == turn:
                task.cancel()
        await turns(1)
    # A lost slot would let somebody wait for ever; the time is only for that.
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    assert not any(isinstance(result, AssertionError) for result in results)
    for number, (result, user) in enumerate(zip(results, users, strict=True)):
        if user.cancelled is None:
            assert number in served
            assert isinstance(result, ValueError) is user.fails

    # All slots are free again, and no more than those.
    inside = 0

    async def stay() -> None:
        nonlocal inside
        async with slots.hold(0):
            inside += 1
            await turns(5)

    again = [asyncio.create_task(stay()) for _ in range(most + 1)]
    await turns(2)
    assert inside == most
    await asyncio.gather(*again)


async def test_a_call_with_a_lower_number_overtakes_waiting_calls_but_not_running_ones() -> None:
    slots = Slots(1)
    served: list[str] = []
    release = asyncio.Event()

    async def use(name: str, priority: int) -> None:
        async with slots.hold(priority):
            served.append(name)
            await release.wait()

    tasks = [asyncio.create_task(use("holds", 5))]
    await turns(1)
    for name, priority in (("late", 7), ("early", 0)):
        tasks.append(asyncio.create_task(use(name, priority)))
        await turns(1)
    assert served == ["holds"]
    release.set()
    await asyncio.gather(*tasks)
    assert served == ["holds", "early", "late"]


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

    # Two at a time: while the first waits the other one does all the rest, and the last of them lets the first go.
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
