"""Concurrent calls in order, and the library's event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # takes a while to load
    pass

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
# Seconds that calls in flight have to end after another call has failed.
GRACE_SECONDS = 5.0


async def map_in_order(
    call: Callable[[ItemT], Awaitable[ResultT]], items: Iterable[ItemT], concurrency: int
) -> list[ResultT]:
    """Return the results of `call` in the order of `items`, with at most `concurrency` calls at a time.

    Calls begin in the order of the items, and none waits for another to end. After the first
    exception no call begins; calls in flight have `GRACE_SECONDS` to end, so that their answers are
    stored, and the exception is raised. A call that is cancelled because its answer is pending does
    not stop the others; when they have ended, CancelledError is raised.
    """
    listed = list(items)
    waiting = enumerate(listed)
    results: dict[int, ResultT] = {}
    errors: list[Exception] = []

    async def work() -> None:
        task = asyncio.current_task()
        for position, item in waiting:
            if errors:
                return
            try:
                results[position] = await call(item)
            except asyncio.CancelledError:
                if task is None or task.cancelling():
                    raise
            except Exception as error:
                errors.append(error)
                if len(errors) == 1:
                    limit.reschedule(asyncio.get_running_loop().time() + GRACE_SECONDS)

    try:
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(listed))):
                group.create_task(work())
    except TimeoutError:
        pass  # the limit is set only after an error
    if errors:
        raise errors[0]
    if len(results) < len(listed):
        raise asyncio.CancelledError
    return [results[position] for position in range(len(listed))]


@cache
def _get_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of the library, in a thread of its own, so that it works where another loop runs."""
    loop = asyncio.new_event_loop()
    # A daemon: a program that leaves a model open must not hang at its end.
    threading.Thread(target=loop.run_forever, name="touche_llm", daemon=True).start()
    return loop


def run(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine and wait for its result.

    Ctrl-C, or stopping the notebook's cell, cancels it.
    """
    future = asyncio.run_coroutine_threadsafe(work, _get_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def run_async(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine and await its result in the caller's event loop.

    Cancelling the caller cancels it.
    """
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _get_loop()))
