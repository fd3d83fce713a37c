"""Retries of calls that failed for a time."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from touche_llm.data.concurrency import ResultT
from touche_llm.errors import TransientFailure, Warn

if TYPE_CHECKING:
    from tenacity import RetryCallState

# In seconds.
_FIRST_WAIT = 0.5
_MAX_WAIT = 60.0
_NOTICE_INTERVAL = 60.0


async def retry(
    call: Callable[[], Awaitable[ResultT]], retry_for: float, on_retry: Callable[[Any], None]
) -> ResultT:
    """Return the result of a call, which is repeated after transient failures.

    No retry begins later than `retry_for` seconds after the first failure. The first call does not
    count, since it may have waited long in the server's queue.

    Args:
        call: Call to make.
        retry_for: Seconds in which retries begin.
        on_retry: Called with each failure that is followed by a retry.

    Raises:
        TransientFailure: The last failure.
    """
    # 20 ms, which commands without requests do without.
    from tenacity import AsyncRetrying, retry_if_exception_type

    async def attempt() -> ResultT:
        return await call()

    schedule = _Schedule(retry_for)
    retrying = AsyncRetrying(
        retry=retry_if_exception_type(TransientFailure),
        wait=schedule.compute_wait,
        stop=schedule.is_over,
        before_sleep=lambda state: on_retry(_get_failure(state)),
        reraise=True,
    )
    return await retrying(attempt)


@dataclass(slots=True)
class _Schedule:
    """Schedule of the retries of one call.

    Attributes:
        retry_for: Seconds after the first failure in which retries begin.
        end: When they are over, by the monotonic clock; never before the first failure.
    """

    retry_for: float
    end: float = math.inf

    def compute_wait(self, state: RetryCallState) -> float:
        """Return the seconds until the next retry: as many as the server requests, or growing ones.

        It is called after each failure, before `is_over`.
        """
        self.end = min(self.end, time.monotonic() + self.retry_for)
        requested = _get_failure(state).retry_after or 0.0
        wait = max(_draw_wait(state.attempt_number), min(requested, _MAX_WAIT))
        remaining = self.end - time.monotonic()
        return min(wait, remaining)

    def is_over(self, state: RetryCallState) -> bool:
        """Return whether no retry follows: the time is over, or the failure allows no more tries."""
        if time.monotonic() >= self.end:
            return True
        max_tries = _get_failure(state).max_tries
        return max_tries is not None and state.attempt_number >= max_tries


def _draw_wait(attempt: int) -> float:
    """Return seconds to wait after an attempt, from 1: doubled each time, and random by a half."""
    # 2^16 is far above the maximum, and larger powers would overflow.
    doublings = min(attempt - 1, 16)
    max_wait = min(_MAX_WAIT, _FIRST_WAIT * 2.0**doublings)
    return max_wait * random.uniform(0.5, 1.0)


def _get_failure(state: RetryCallState) -> TransientFailure:
    """Return the failure of the last attempt."""
    assert state.outcome is not None, "an attempt has failed"
    failure = state.outcome.exception()
    assert isinstance(failure, TransientFailure)
    return failure


class RetryNotice:
    """Report of the failures of a server that are retried, at most one a minute, to explain the wait."""

    def __init__(self, warn: Warn, place: str, retry_for: float) -> None:
        """Make the report of a server.

        Args:
            warn: Receives the reports.
            place: Name of the server, for the reports.
            retry_for: Seconds after its first failure in which a call is retried.
        """
        self._warn = warn
        self._place = place
        self._retry_for = retry_for
        self._quiet_until = -math.inf

    def __call__(self, failure: TransientFailure) -> None:
        """Report a failure, unless another one was reported just before."""
        now = time.monotonic()
        if now < self._quiet_until:
            return
        self._quiet_until = now + _NOTICE_INTERVAL
        self._warn(f"{self._place}: {failure}; tried again for up to {self._retry_for:g} s")
