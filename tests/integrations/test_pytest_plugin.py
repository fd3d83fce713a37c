"""Recorded runs as somebody's own tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.regression.conftest import Copy, edit
from tests.write_regressions import FOLDER

pytest_plugins = ["pytester"]
# Hypothesis would be imported anew each time, which takes a second; modules that are imported
# cannot be rewritten.
INI = (
    "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    "addopts = -p no:hypothesispytest -p no:xdist --assert=plain\n"
)


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makefile(".ini", pytest=INI)
    return pytester


def test_each_recorded_run_is_a_test_of_its_name(project: pytest.Pytester) -> None:
    result = project.runpytest(f"--touche-regress={FOLDER}", "-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [f"*::{task} PASSED*" for task in ("comparative", "controversial", "sentence_pairs")]
    )


def test_a_run_that_differs_fails_with_the_differences_alone(
    project: pytest.Pytester, copy_of: Copy
) -> None:
    folder = copy_of("controversial")
    edit(folder / "config.yaml", "setwise:3", "setwise:2")
    result = project.runpytest(f"--touche-regress={folder.parent}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["controversial: differs", "  topics: *", "  prompt best, *"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_nothing_of_the_program_is_loaded_where_it_is_not_asked_for() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import touche_llm.integrations.pytest_plugin; "
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    plugin = "touche_llm.integrations.pytest_plugin"
    assert done.stdout.strip() == str(["touche_llm", "touche_llm.integrations", plugin])
