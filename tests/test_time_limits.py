"""Tests that hang fail at their limit, and those after them still run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
HANGING = """
import asyncio, queue, subprocess, sys, threading, time

import pytest
from hypothesis import given, strategies as st


async def test_event_loop():
    await asyncio.Event().wait()


def test_thread():
    thread = threading.Thread(target=queue.Queue().get, daemon=True)
    thread.start()
    thread.join()


def test_process():
    subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])


@given(st.integers())
def test_generated_inputs(number):
    time.sleep(60)


@pytest.fixture
def hanging_teardown():
    yield
    time.sleep(60)


def test_failure_before_a_hang(hanging_teardown):
    assert False


def test_no_hang():
    pass


@pytest.mark.slow
def test_longer_limit():
    time.sleep(3)
"""
NAMES = ("event_loop", "thread", "process", "generated_inputs", "failure_before_a_hang")


def test_each_test_that_hangs_fails_under_its_name(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    file = pytester.makepyfile(test_hanging=HANGING)
    settings = ("-c", ROOT / "pyproject.toml", "-o", "addopts=", "-o", "timeout=2")
    plugins = ("-p", "tests.time_limits", "-p", "no:cacheprovider", "-n", "2")
    folder = ("--rootdir", pytester.path)
    result = pytester.runpytest_subprocess(*settings, *plugins, *folder, file)
    for name in NAMES:
        result.stdout.fnmatch_lines(f"FAILED test_hanging.py::test_{name}*")
    result.stdout.fnmatch_lines("ERROR test_hanging.py::test_failure_before_a_hang*")
    result.assert_outcomes(passed=2, failed=len(NAMES), errors=1)
