"""Calls of servers: concurrent and in order; retries; and the replies of aiohttp."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from touche_llm.errors import Warn

if TYPE_CHECKING:  # takes a while to load
    import aiohttp

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


# Max tries after a complete but malformed reply: a proxy may damage one, a broken server sends only
# such replies.
BROKEN_TRIES = 3
# In seconds.
_FIRST_WAIT, _MAX_WAIT, _NOTICE_EVERY = 0.5, 60.0, 60.0
# Max characters of a server's text that an error quotes.
_MAX_QUOTED = 300


class TransientFailure(Exception):
    """Failure of a request that may succeed when it is retried, after the seconds that the server requested."""

    def __init__(
        self, reason: str, retry_after: float | None = None, max_tries: int | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.max_tries = max_tries


async def retry(
    call: Callable[[], Awaitable[ResultT]], retry_for: float, on_retry: Callable[[Any], None]
) -> ResultT:
    """Return the result of a call.

    After a transient failure, retry it with growing waits, and raise the last one.

    No retry begins later than `retry_for` seconds after the first failure. The first call does not
    count, since it may have waited long in the server's queue.
    """
    end = math.inf

    async def attempt() -> ResultT:
        return await call()

    def get_failure(state: RetryCallState) -> TransientFailure:
        error = state.outcome and state.outcome.exception()
        assert isinstance(error, TransientFailure)
        return error

    def compute_wait(state: RetryCallState) -> float:  # before `is_last`
        nonlocal end
        end = min(end, time.monotonic() + retry_for)
        backoff = min(
            _MAX_WAIT, _FIRST_WAIT * 2.0 ** min(state.attempt_number - 1, 16)
        ) * random.uniform(0.5, 1.0)
        requested = min(get_failure(state).retry_after or 0.0, _MAX_WAIT)
        return min(max(backoff, requested), end - time.monotonic())

    def is_last(state: RetryCallState) -> bool:
        return time.monotonic() >= end or state.attempt_number >= (
            get_failure(state).max_tries or math.inf
        )

    return await AsyncRetrying(
        retry=retry_if_exception_type(TransientFailure),
        wait=compute_wait,
        stop=is_last,
        before_sleep=lambda state: on_retry(get_failure(state)),
        reraise=True,
    )(attempt)


class RetryNotice:
    """Report of the failures of a server that are retried, at most one a minute, to explain the wait."""

    def __init__(self, warn: Warn, place: str, retry_for: float) -> None:
        self._warn, self._place, self._retry_for = warn, place, retry_for
        self._quiet_until = -math.inf

    def __call__(self, failed: TransientFailure) -> None:
        """Report a failure, unless another one was reported just before."""
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _NOTICE_EVERY
            self._warn(f"{self._place}: {failed}; tried again for up to {self._retry_for:g} s")


def parse_retry_after(header: str | None) -> float | None:
    """Return the seconds to wait by a Retry-After header.

    None if it is missing, a date or invalid.
    """
    return float(header) if header and header.isdecimal() else None


def to_line(text: str) -> str:
    """Return the beginning of an untrusted text on one line."""
    return " ".join(text[:_MAX_QUOTED].split())


def describe_connection_error(
    error: Exception, seconds: float, clean: Callable[[str], str] = to_line
) -> str:
    """Return why a request of aiohttp, with a limit in seconds, got no reply.

    `clean` shortens a server's text.
    """
    import aiohttp

    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect ({error.strerror or error})"
    return f"the connection broke: {type(error).__name__}: {clean(str(error))}"


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body of a reply, cut after `limit + 1` bytes."""
    try:
        return await response.content.readexactly(limit + 1)
    except asyncio.IncompleteReadError as complete:
        return complete.partial
