"""The one retry policy of all engines."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_delay

from touche_llm.llm.engine import Transient

ResultT = TypeVar("ResultT")

# In seconds.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0


async def retried(
    call: Callable[[], Awaitable[ResultT]], retry_for: float, note: Callable[[Transient], None]
) -> ResultT:
    """What a call gives, made again while it fails with Transient, for so many seconds.

    Args:
        call: made at least once.
        retry_for: in seconds, those of the first call included.
        note: told of each failure after which the call is made again.

    Raises:
        Transient: the last one. It says so where the server asked for a wait that `retry_for` did not allow.
    """
    started = time.monotonic()
    failed: Transient | None = None
    try:
        # Hardly a call needs more than this, and what it takes to try again costs more than to ask.
        return await call()
    except Transient as error:
        failed = error
    left = max(retry_for - (time.monotonic() - started), 0.0)
    given_up = stop_after_delay(left)

    def before_sleep(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, Transient):
            note(error)

    def wait(state: RetryCallState) -> float:
        return min(_wait(state), left - (state.seconds_since_start or 0.0))

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(Transient),
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
    except Transient as error:
        if error.retry_after is not None and error.retry_after > retry_for:
            error.reason += f" (it asks for {error.retry_after:g} s, but --retry-for is {retry_for:g} s)"
        raise
    raise AssertionError("tenacity ended without a result")


def _wait(state: RetryCallState) -> float:
    """Seconds before the next try: doubling, with jitter, and no less than the server asks for."""
    error = state.outcome.exception() if state.outcome else None
    backoff = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(state.attempt_number - 1, 16)) * random.uniform(0.5, 1.0)
    asked = error.retry_after if isinstance(error, Transient) else None
    return max(backoff, min(asked or 0.0, _LONGEST_WAIT))


def _tried_enough(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    return isinstance(error, Transient) and error.most_tries is not None and state.attempt_number >= error.most_tries
