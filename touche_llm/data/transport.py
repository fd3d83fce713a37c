"""Shared parts of the HTTP clients: failures that may pass, the one retry policy, replies read up to a limit."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_delay

if TYPE_CHECKING:  # takes a while to load
    import aiohttp

ResultT = TypeVar("ResultT")
FailureT = TypeVar("FailureT", bound="TransientFailure")

# Tries of a request whose reply came whole and is broken: a proxy may break one, a server breaks all of them.
BROKEN_TRIES = 3
# In seconds.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0


class TransientFailure(Exception):
    """A failure of a request that may pass: worth another try.

    Attributes:
        reason: What went wrong.
        retry_after: Seconds that the server wants the client to wait; None if it names none.
        max_tries: Max number of tries, where time alone should not bound them.
    """

    def __init__(self, reason: str, retry_after: float | None = None, max_tries: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.max_tries = max_tries


async def retry(
    call: Callable[[], Awaitable[ResultT]],
    retry_for: float,
    passing: type[FailureT],
    note: Callable[[FailureT], None],
) -> ResultT:
    """Return the result of a call, repeated while its failure may pass, with growing waits between the tries.

    Args:
        call: Called at least once.
        retry_for: Seconds from the first failure on. Those of the first call do not count: it may have waited long in
            the server's queue.
        passing: The type of the failures that may pass.
        note: Called with each failure that is followed by another try.

    Raises:
        TransientFailure: The last one. It says so if the server wanted a longer wait than `retry_for` allows.
    """
    failed: FailureT | None = None
    try:
        # Nearly all calls need no more than this; setting up the retries would cost more than the call.
        return await call()
    except passing as error:
        failed = error
    given_up = stop_after_delay(retry_for)

    def before_sleep(state: RetryCallState) -> None:
        error = _failure(state)
        assert isinstance(error, passing)
        note(error)

    def wait(state: RetryCallState) -> float:
        return min(_wait(state), retry_for - (state.seconds_since_start or 0.0))

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(passing),
        wait=wait,
        stop=lambda state: given_up(state) or _tried_enough(state),
        before_sleep=before_sleep,
        reraise=True,
    )
    try:
        async for attempt in retrying:
            with attempt:
                if failed is not None:
                    first, failed = failed, None
                    raise first
                return await call()
    except passing as error:
        if error.retry_after is not None and error.retry_after > retry_for:
            error.reason += f" (it asks for {error.retry_after:g} s, but --retry-for is {retry_for:g} s)"
        raise
    raise AssertionError("tenacity ended without a result")


def _failure(state: RetryCallState) -> TransientFailure:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, TransientFailure)
    return error


def _wait(state: RetryCallState) -> float:
    """Return the seconds before the next try: doubling, with jitter, and no less than the server asks for."""
    backoff = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(state.attempt_number - 1, 16)) * random.uniform(0.5, 1.0)
    return max(backoff, min(_failure(state).retry_after or 0.0, _LONGEST_WAIT))


def _tried_enough(state: RetryCallState) -> bool:
    max_tries = _failure(state).max_tries
    return max_tries is not None and state.attempt_number >= max_tries


def parse_retry_after(header: str | None) -> float | None:
    """Return the seconds from now that a Retry-After header asks for; None if there is none that can be read."""
    if header is None or header.isdecimal():
        return float(header) if header else None
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body of a reply; of one longer than `limit` bytes the first `limit + 1`."""
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > limit:
            break
    return bytes(content[: limit + 1])


def run_coroutine(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return the result of a coroutine to synchronous code, also where an event loop runs, which waits for it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
