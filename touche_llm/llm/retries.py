"""Retries of calls that failed for a time."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from touche_llm.data.concurrency import ResultT
from touche_llm.errors import TransientFailure, Warn

if TYPE_CHECKING:
    from tenacity import RetryCallState

# In seconds.
_FIRST_WAIT, _MAX_WAIT, _NOTICE_EVERY = 0.5, 60.0, 60.0


async def retry(
    call: Callable[[], Awaitable[ResultT]], retry_for: float, on_retry: Callable[[Any], None]
) -> ResultT:
    """Return the result of a call.

    After a transient failure, retry it with growing waits, and raise the last one.

    No retry begins later than `retry_for` seconds after the first failure. The first call does not
    count, since it may have waited long in the server's queue.
    """
    # 20 ms, which commands without requests do without.
    from tenacity import AsyncRetrying, retry_if_exception_type

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
