"""Shared parts of the HTTP clients: transient failures, retries, bounded reading of replies."""

from __future__ import annotations

import errno
import math
import random
import time
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import AsyncRetrying, RetryCallState, Retrying

if TYPE_CHECKING:  # takes a while to load
    import aiohttp

ResultT = TypeVar("ResultT")
FailureT = TypeVar("FailureT", bound="TransientFailure")

# Max tries after a complete but malformed reply: a proxy may damage one, a broken server sends only such replies.
BROKEN_TRIES = 3
# In seconds.
_FIRST_WAIT, _MAX_WAIT = 0.5, 60.0
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
