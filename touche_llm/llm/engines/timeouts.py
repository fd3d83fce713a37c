"""Time limits of requests that wait in the queue of a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count


class QueueTimeout:
    """A limit on the seconds that a server takes for a request, not counting those until its turn comes.

    A server takes requests in the order of their arrival. The time of a request therefore begins when it is sent, and
    anew with each reply to an earlier request, behind which it may have been waiting. With 256 requests at a time and
    one reply every two seconds, a request waits 512 s without being lost. A server that sends no reply at all has as
    many seconds as a single request.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        # When the time of each request under way began, in the order of sending.
        self._begun: dict[int, float] = {}
        self._numbers = count()

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Send a request and read its reply in this block; raise TimeoutError when its time is over."""
        loop, begun, number = asyncio.get_running_loop(), self._begun, next(self._numbers)
        timer: asyncio.TimerHandle

        def check() -> None:
            nonlocal timer
            end = begun[number] + self.seconds
            if end <= loop.time():
                limit.reschedule(end)
            else:
                timer = loop.call_at(end, check)

        async with asyncio.timeout(None) as limit:
            begun[number] = loop.time()
            timer = loop.call_at(begun[number] + self.seconds, check)
            try:
                yield
                now = loop.time()
                for later in begun:
                    if later > number:
                        begun[later] = now
            finally:
                timer.cancel()
                del begun[number]
