"""The retry policy: how often and how long a request that fails is repeated, and what a server may ask for."""

from __future__ import annotations

import asyncio
import time

import pytest

from touche_llm.engines.connections import parse_retry_after
from touche_llm.errors import Transient
from touche_llm.llm import retries
from touche_llm.llm.retries import retry


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of every wait; nobody really waits."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


class Failing:
    """A call that fails so many times, each time asking for a wait."""

    def __init__(self, times: int, retry_after: float | None) -> None:
        self.left, self.retry_after = times, retry_after

    async def __call__(self) -> str:
        if self.left:
            self.left -= 1
            raise Transient("server_error", "HTTP 429: busy", self.retry_after)
        return "done"


def ignore(_: Transient) -> None:
    pass


async def test_a_failure_after_a_long_wait_in_the_queue_of_a_server_is_retried_too(
    slept: list[float],
) -> None:
    failing = Failing(1, None)

    async def queued() -> str:
        time.sleep(0.06)
        return await failing()

    assert await retry(queued, 0.05, ignore) == "done"
    assert failing.left == 0 and len(slept) == 1


@pytest.mark.parametrize(("retry_after", "expected"), [(25.0, 25.0), (3600.0, 60.0)])
async def test_a_server_gets_the_wait_that_it_asks_for_up_to_a_minute(
    retry_after: float, expected: float, slept: list[float]
) -> None:
    assert await retry(Failing(1, retry_after), 600.0, ignore) == "done"
    assert slept == [expected]


async def test_waits_double_with_jitter_up_to_a_minute(slept: list[float]) -> None:
    assert await retry(Failing(12, None), 600.0, ignore) == "done"
    ceilings = [min(60.0, 0.5 * 2**number) for number in range(12)]
    assert all(top / 2 <= wait <= top for wait, top in zip(slept, ceilings, strict=True))
    assert any(wait != top for wait, top in zip(slept, ceilings, strict=True))


async def test_the_last_failure_is_raised_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.001)
    with pytest.raises(Transient) as failed:
        await retry(Failing(1000, retry_after=25.0), 0.05, ignore)
    assert failed.value.reason == "HTTP 429: busy"


@pytest.mark.parametrize(
    ("header", "seconds"), [(None, None), ("soon", None), ("", None), ("3", 3.0)]
)
def test_retry_after_is_in_seconds(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header) == seconds
