"""Many questions at a time, results in the order asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


async def in_order(
    call: Callable[[ItemT], Awaitable[ResultT]], items: Iterable[ItemT], concurrency: int
) -> list[ResultT]:
    """Results of `call` in the order of `items`, with at most `concurrency` calls at a time.

    Items are taken one by one when a call is free for them, in order, and no call waits for another to end. The first
    exception cancels the rest and is raised itself.
    """
    waiting = enumerate(items)
    results: dict[int, ResultT] = {}

    async def work() -> None:
        for position, item in waiting:
            results[position] = await call(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    return [results[position] for position in range(len(results))]
