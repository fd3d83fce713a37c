"""Plugin of pytest with the time limits of the tests: `timeout` in pyproject.toml, more for the markers below.

pytest-timeout reads the limits. Of its own two methods to end a test, one interrupts it only once,
which an event loop may swallow and a teardown that hangs outlives; the other ends the process with
all other tests.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest
import pytest_timeout

# Seconds by marker. The limit includes the fixtures of a test, so the first test of a session may
# wait for a server that starts: up to 400 s for vLLM, 900 s for a small real model.
_LIMITS = {"slow": 300, "browser": 600, "vllm": 1800, "model": 3600, "nightly": 3600}
# Seconds after which a test that reached its limit and still hangs is interrupted again.
_REPEAT_SECONDS = 5.0


class TimeLimitReached(BaseException):
    """A test reached its time limit.

    No Exception: the program must not handle it, and Hypothesis must not repeat the test to shrink
    its example.
    """


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set the limits of tests with markers, unless a test or the command line has a limit of its own."""
    if config.getoption("timeout") is not None:
        return

    for item in items:
        limits = [limit for name, limit in _LIMITS.items() if item.get_closest_marker(name)]
        has_own_limit = item.get_closest_marker("timeout") is not None
        if limits and not has_own_limit:
            item.add_marker(pytest.mark.timeout(max(limits)))


def pytest_timeout_set_timer(settings: pytest_timeout.Settings) -> bool:
    """Interrupt a test at its limit, and repeatedly until its teardown has ended too."""

    def interrupt(signal_number: int, frame: FrameType | None) -> None:
        if not pytest_timeout.is_debugging():
            raise TimeLimitReached(f"the test did not end within {settings.timeout:g} s")

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, _REPEAT_SECONDS)
    return True


def pytest_timeout_cancel_timer() -> bool:
    """Do nothing: pytest-timeout would stop the clock before the teardown of a failed test."""
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Stop the clock after the teardown of a test."""
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
