"""Settings of all tests, and the counters of the fault harness: summed over all processes, printed at the end."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.faults.tally import Tally

# Collections while modules and tests are collected would find nothing; see `pytest_collection_finish`.
gc.disable()
pytest_plugins = ["tests.time_limits"]
TOTALS: dict[str, Counter[str]] = {}
PROPERTY = "tally"
# Number of new objects from which garbage is collected, as in the program.
_COLLECTION_THRESHOLD = 20_000


# The speed of a busy machine is no property of the program.
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")
# ir_datasets reads the place of its files when it is imported; without this, tests would use those
# of the user.
IR_DATASETS_HOME = tempfile.mkdtemp(prefix="ir-datasets-")
os.environ["IR_DATASETS_HOME"] = IR_DATASETS_HOME
# The folders of runs that tests write are recorded there.
STATE_HOME = tempfile.mkdtemp(prefix="touche-llm-state-")
os.environ["XDG_STATE_HOME"] = STATE_HOME
# Without bytecode every worker and every program that a test starts compiles all modules again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A shell starts commands in the background with Ctrl-C ignored, which tests of it and their
# processes would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """Files of tests need not survive a power failure: a cache opens and closes in 7 ms instead of 75."""
    connect = sqlite3.connect

    def hasty(*place: Any, **options: Any) -> sqlite3.Connection:
        database: sqlite3.Connection = connect(*place, **options)
        with suppress(sqlite3.DatabaseError):  # not a database: that is for the program to find out
            database.execute("PRAGMA synchronous = OFF")
        return database

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", hasty)
        patch.setattr(os, "fsync", lambda number: None)
        patch.setattr("touche_llm.llm.cache.SYNCHRONOUS", "OFF")
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fault-seed", type=int, default=1, help="seed of the trials in tests/faults (default: 1)"
    )
    parser.addoption(
        "--fault-trial", type=int, default=None, help="the number of the one trial to repeat"
    )


def pytest_unconfigure() -> None:
    shutil.rmtree(IR_DATASETS_HOME, ignore_errors=True)
    shutil.rmtree(STATE_HOME, ignore_errors=True)


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collection, which took a quarter of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTION_THRESHOLD)
    gc.enable()


@pytest.fixture
def fault_seed(request: pytest.FixtureRequest) -> int:
    """Return the seed of this session's random trials."""
    seed: int = request.config.getoption("--fault-seed")
    return seed


@pytest.fixture
def fault_trial(request: pytest.FixtureRequest) -> int | None:
    """Return the number of the one trial to repeat, or None for all."""
    trial: int | None = request.config.getoption("--fault-trial")
    return trial


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """Count what is tried: `tally.add("kill run", tried=1, held=1)`.

    Printed in a table when pytest ends.
    """
    counts = Tally()
    yield counts
    request.node.user_properties.append(
        (PROPERTY, {name: dict(line) for name, line in counts.lines.items()})
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the counters.

    With xdist, the reports of all workers arrive at the process that prints.
    """
    if report.when != "teardown":
        return
    for name, value in report.user_properties:
        if name == PROPERTY and isinstance(value, dict):
            for line, counts in value.items():
                TOTALS.setdefault(line, Counter()).update(counts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not TOTALS:
        return
    seed = terminalreporter.config.getoption("--fault-seed")
    terminalreporter.section(f"faults, seed {seed}")
    columns = list(dict.fromkeys(column for line in TOTALS.values() for column in line))
    width = max(len(name) for name in (*TOTALS, "total"))
    heads = [max(len(column), 7) for column in columns]
    terminalreporter.write_line(
        "  ".join([" " * width, *(f"{c:>{w}}" for c, w in zip(columns, heads, strict=True))])
    )
    for name, counts in [*sorted(TOTALS.items()), ("total", sum(TOTALS.values(), Counter[str]()))]:
        cells = [
            f"{counts[c] if c in counts else '':>{w}}" for c, w in zip(columns, heads, strict=True)
        ]
        terminalreporter.write_line("  ".join([f"{name:<{width}}", *cells]))
