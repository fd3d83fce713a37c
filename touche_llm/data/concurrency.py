"""Calls of servers: concurrent, in order, with priorities; retries; and the replies of aiohttp."""

from __future__ import annotations

import asyncio
import errno
import heapq
import math
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import AsyncRetrying, RetryCallState, Retrying

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

    Calls begin in the order of the items, and none waits for another to end. After the first exception no call begins;
    calls in flight have `GRACE_SECONDS` to end, so that their answers are stored, and the exception is raised. A call
    that is cancelled because its answer is pending does not stop the others; when they have ended, CancelledError is
    raised.
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


class Slots:
    """Limit on concurrent calls. A free slot goes to the waiting call with the lowest priority number."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._held = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    @asynccontextmanager
    async def hold(self, priority: int = 0) -> AsyncIterator[None]:
        """Hold a slot while the block runs; calls of equal priority get slots in the order of their arrival."""
        if self._held < self.size:
            self._held += 1
        else:
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (priority, next(self._numbers), granted))
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():
                    self._release()
                raise
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        self._held -= 1
        while self._waiting and self._held < self.size:
            granted = heapq.heappop(self._waiting)[2]
            if not granted.done():
                self._held += 1
                granted.set_result(None)


@cache
def _get_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of the library, in a thread of its own, so that it works where another loop runs."""
    loop = asyncio.new_event_loop()
    # A daemon: a program that leaves a model open must not hang at its end.
    threading.Thread(target=loop.run_forever, name="touche_llm", daemon=True).start()
    return loop


def run(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine and wait for its result; Ctrl-C, or stopping the notebook's cell, cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, _get_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def run_async(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine and await its result in the caller's event loop; cancelling the caller cancels it."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _get_loop()))


FailureT = TypeVar("FailureT", bound="TransientFailure")

# Max tries after a complete but malformed reply: a proxy may damage one, a broken server sends only such replies.
BROKEN_TRIES = 3
# In seconds.
_FIRST_WAIT, _MAX_WAIT, _NOTICE_EVERY = 0.5, 60.0, 60.0
# Max characters of a server's text that an error quotes.
_MAX_QUOTED = 300


class TransientFailure(Exception):
    """Failure of a request that may succeed when it is retried.

    Attributes:
        retry_after: Seconds to wait that the server requested, or None.
        max_tries: Max number of tries, or None if only time limits them.
    """

    def __init__(self, reason: str, retry_after: float | None = None, max_tries: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.max_tries = max_tries


async def retry(
    call: Callable[[], Awaitable[ResultT]],
    retry_for: float,
    transient: type[FailureT],
    on_retry: Callable[[FailureT], None],
) -> ResultT:
    """Return the result of a call; after a transient failure, retry it with growing waits.

    Args:
        call: Call to make, at least once.
        retry_for: Seconds from the first failure after which no retry begins. The first call does not count, since it
            may have waited long in the server's queue.
        transient: Type of the failures to retry.
        on_retry: Called with each failure before it is retried.

    Raises:
        TransientFailure: The last failure. Its reason mentions a requested wait that is longer than `retry_for`.
    """

    async def attempt() -> ResultT:
        return await call()

    return await AsyncRetrying(**_build_policy(retry_for, transient, on_retry))(attempt)


def retry_blocking(
    call: Callable[[], ResultT], retry_for: float, transient: type[FailureT], on_retry: Callable[[FailureT], None]
) -> ResultT:
    """Return the result of a call as `retry`, in synchronous code."""
    return Retrying(**_build_policy(retry_for, transient, on_retry))(call)


def _build_policy(retry_for: float, transient: type[FailureT], on_retry: Callable[[FailureT], None]) -> dict[str, Any]:
    end = math.inf

    def is_transient(state: RetryCallState) -> bool:
        nonlocal end
        if state.outcome is None or not isinstance(state.outcome.exception(), transient):
            return False
        end = min(end, time.monotonic() + retry_for)
        return True

    def is_last(state: RetryCallState) -> bool:
        error = _get_failure(state, transient)
        if time.monotonic() < end and (error.max_tries is None or state.attempt_number < error.max_tries):
            return False
        if error.retry_after is not None and error.retry_after > retry_for:
            error.reason += (
                f" (it requests a wait of {error.retry_after:g} s, but requests are retried for {retry_for:g} s)"
            )
        return True

    return {
        "retry": is_transient,
        "wait": lambda state: min(_compute_wait(state), end - time.monotonic()),
        "stop": is_last,
        "before_sleep": lambda state: on_retry(_get_failure(state, transient)),
        "reraise": True,
    }


def _get_failure(state: RetryCallState, transient: type[FailureT]) -> FailureT:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, transient)
    return error


def _compute_wait(state: RetryCallState) -> float:
    """Return the seconds before the next try: exponential with jitter, at least those that the server requested."""
    backoff = min(_MAX_WAIT, _FIRST_WAIT * 2.0 ** min(state.attempt_number - 1, 16)) * random.uniform(0.5, 1.0)
    return max(backoff, min(_get_failure(state, TransientFailure).retry_after or 0.0, _MAX_WAIT))


class RetryNotice:
    """Report of the failures of a server that are retried, at most one a minute, to explain the wait."""

    def __init__(self, warn: Warn, place: str, retry_for: float) -> None:
        """Name the server, and for how many seconds its requests are retried."""
        self._warn, self._place, self._retry_for = warn, place, retry_for
        self._quiet_until = -math.inf

    def __call__(self, failed: TransientFailure) -> None:
        """Report a failure, unless another one was reported just before."""
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _NOTICE_EVERY
            self._warn(f"{self._place}: {failed}; tried again for up to {self._retry_for:g} s")


def parse_retry_after(header: str | None) -> float | None:
    """Return the seconds to wait by a Retry-After header; None if it is missing or invalid."""
    if header is None or header.isdecimal():
        return float(header) if header else None
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def to_line(text: str) -> str:
    """Return the beginning of an untrusted text on one line."""
    return " ".join(text[:_MAX_QUOTED].split())


def describe_connection_error(error: Exception, seconds: float, clean: Callable[[str], str] = to_line) -> str:
    """Return why a request of aiohttp got no reply.

    Args:
        error: A TimeoutError, a ClientError or an OSError.
        seconds: Time limit of the request.
        clean: Shortens a text from the server.
    """
    import aiohttp

    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many open files (ulimit -n)"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect ({error.strerror or error})"
    return f"the connection broke: {type(error).__name__}: {clean(str(error))}"


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body of a reply, cut after `limit + 1` bytes."""
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > limit:
            break
    return bytes(content[: limit + 1])
