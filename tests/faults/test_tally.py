"""The counters that the fault harness prints."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SOME_TESTS = """
from tests.conftest import *

@pytest.mark.parametrize("n", range(4))
def test_some(tally, fault_seed, n):
    tally.add("kills of run", tried=10, held=9)
    tally.add("replies", tried=fault_seed)
    assert n
"""


@pytest.mark.slow
def test_counters_are_summed_over_processes_and_failed_tests_count(
    pytester: pytest.Pytester, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest(SOME_TESTS.split("@")[0])
    pytester.makepyfile(SOME_TESTS.replace("from tests.conftest import *", "import pytest"))
    monkeypatch.setenv("PYTHONPATH", str(request.config.rootpath))
    result = pytester.runpytest_subprocess("-n", "2", "--fault-seed", "7", "-p", "no:cacheprovider")
    lines = [line.split() for line in result.outlines]
    assert ["kills", "of", "run", "40", "36"] in lines
    assert ["replies", "28"] in lines
    assert ["total", "68", "36"] in lines
    result.assert_outcomes(passed=3, failed=1)
