"""Connections to a server: number, reuse and time limits."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aiohttp

# Open files besides the connections: the cache, the index, outputs. macOS allows at most OPEN_MAX.
_OTHER_FILES, _OPEN_MAX = 128, 10_240


def allow_connections(wanted: int) -> int:
    """Raise the limit of open files as far as `wanted` connections need; return how many connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    files = min(wanted + _OTHER_FILES, _OPEN_MAX if hard == resource.RLIM_INFINITY else hard)
    if soft < files:
        soft = files
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(min(wanted, soft - _OTHER_FILES), 1)


class ConnectionPool(aiohttp.TCPConnector):
    """Pool that closes connections on which the server sends data without a request.

    aiohttp would take the data for the reply to the next request (its issue 13656), and store the label of one document
    for another.
    """

    async def _get(self, *args: Any) -> Any:
        while (connection := await super()._get(*args)) is not None:
            if connection.protocol is not None and not connection.protocol.should_close:
                break
            connection.close()
        return connection


class QueueTimeout:
    """Limit on the seconds that a server takes for a request, excluding its time in the queue.

    Servers process requests in the order of arrival. The time of a request therefore restarts with each reply to an
    earlier request, behind which it may have been queued. With 256 requests at a time and one reply every two seconds,
    a request can wait 512 s without timing out. A server that sends no reply at all has as many seconds as for a single
    request.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        # Start of the time of each request in flight, in the order of sending.
        self._started: dict[int, float] = {}
        self._numbers = count()

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Send a request and read its reply in this block; raise TimeoutError when its time is over."""
        loop, started, number = asyncio.get_running_loop(), self._started, next(self._numbers)
        timer: asyncio.TimerHandle

        def check() -> None:
            nonlocal timer
            end = started[number] + self.seconds
            if end <= loop.time():
                limit.reschedule(end)
            else:
                timer = loop.call_at(end, check)

        async with asyncio.timeout(None) as limit:
            started[number] = loop.time()
            timer = loop.call_at(started[number] + self.seconds, check)
            try:
                yield
                now = loop.time()
                for later in started:
                    if later > number:
                        started[later] = now
            finally:
                timer.cancel()
                del started[number]
