"""Many questions at a time, results in the order asked; and who goes first where not all can go at once."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from itertools import count
from typing import TypeVar

ItemT = TypeVar("ItemT")
# The priority number of what a task asks, where not all can go at once: the lowest goes first.
PRIORITY: ContextVar[int] = ContextVar("priority", default=0)
ResultT = TypeVar("ResultT")
# Seconds that the calls under way have to end when another has failed.
GRACE_SECONDS = 5.0


async def map_in_order(
    call: Callable[[ItemT], Awaitable[ResultT]], items: Iterable[ItemT], concurrency: int
) -> list[ResultT]:
    """Results of `call` in the order of `items`; see `for_each_in_order`."""
    results: list[ResultT] = []
    await for_each_in_order(call, items, concurrency, results.append)
    return results


async def for_each_in_order(
    call: Callable[[ItemT], Awaitable[ResultT]],
    items: Iterable[ItemT],
    concurrency: int,
    take: Callable[[ResultT], None],
) -> None:
    """Give the results of `call` to `take` in the order of `items`, with at most `concurrency` calls at a time.

    Items are taken one by one when a call is free for them, in order, and no call waits for another to end. A result is
    given away as soon as those before it are. After the first exception no call begins, those under way have
    `GRACE_SECONDS` seconds to end, so that their answers are stored, and the exception is raised itself. A call that
    ends as cancelled, because its answer is still to come, leaves the others to go on; when they have ended,
    CancelledError is raised.
    """
    listed = list(items)
    waiting = enumerate(listed)
    early: dict[int, ResultT] = {}
    errors: list[Exception] = []
    given = 0

    async def work() -> None:
        nonlocal given
        task = asyncio.current_task()
        for position, item in waiting:
            if errors:
                return
            try:
                early[position] = await call(item)
                while given in early and not errors:
                    take(early.pop(given))
                    given += 1
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
        pass  # only ever set after an error
    except BaseExceptionGroup as group_of_errors:
        raise group_of_errors.exceptions[0] from group_of_errors.exceptions[0].__cause__
    if errors:
        raise errors[0]
    if given < len(listed):
        raise asyncio.CancelledError


class Slots:
    """A bound on the calls at a time. A free slot goes to the waiting call with the lowest priority number.

    Attributes:
        size: Number of slots.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._held = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    @asynccontextmanager
    async def hold(self, priority: int = 0) -> AsyncIterator[None]:
        """Hold a slot while the block runs; calls of equal priority are served in the order of their arrival."""
        if self._held < self.size:
            self._held += 1
        else:
            given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (priority, next(self._numbers), given))
            try:
                await given
            except asyncio.CancelledError:
                if given.done() and not given.cancelled():
                    self._give_back()
                raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        self._held -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._held < self.size:
            given = heapq.heappop(self._waiting)[2]
            if not given.done():
                self._held += 1
                given.set_result(None)


class BackoffSlots(Slots):
    """Slots that are halved when a server is overloaded, and grow back by one for each round of replies.

    Additive increase and multiplicative decrease, as in RFC 5681. A call that holds a slot keeps it.

    Attributes:
        halvings: How often the slots were halved.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.halvings = 0
        self._max_size = size
        self._replies = 0

    def halve(self, halvings: int) -> None:
        """Halve the slots because of a call that began after so many `halvings`; once for all calls of one overload."""
        if halvings == self.halvings:
            self.halvings += 1
            self.size, self._replies = max(self.size // 2, 1), 0

    def grow(self) -> None:
        """Count a reply; after as many as there are slots, add one slot, up to the initial number."""
        self._replies += 1
        if self._replies >= self.size and self.size < self._max_size:
            self.size, self._replies = self.size + 1, 0
            self._hand_out()
