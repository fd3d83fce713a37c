"""The layout of the help, and errors of the option parser and of the program."""

from __future__ import annotations

import re
import sys

import pytest

from tests.cli.conftest import Touche
from touche_llm import cli

_RUN = ("run", "--topics", "t", "--corpus", "c", "--out", "o", "--set")
# The narrowest help.


def names(text: str) -> set[str]:
    return set(re.findall(r"^  (--[\w-]+)", text, re.MULTILINE))


def test_the_help_of_all_options_comes_before_any_error_of_the_others(touche: Touche) -> None:
    short, long = touche("run", "--help"), touche("run", "--depth", "many", "--help-all")
    assert (short.returncode, long.returncode, long.stderr) == (0, 0, "")
    assert {"--depth", "--out"} < names(short.stdout) < names(long.stdout)


def test_an_option_that_may_be_left_out_but_is_a_number_is_parsed_as_one(touche: Touche) -> None:
    assert "--limit-topics N" in touche("run", "--help-all").stdout
    done = touche("run", "--out", "o", "--limit-topics", "many")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and done.stderr.startswith("error: --limit-topics: ")


def test_an_option_without_its_value_is_one_line(touche: Touche) -> None:
    done = touche("run", "--depth")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: ") and "--depth" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "--dept", "5"], {"--dept", "--depth"}),
        (["run", "--toppic", "5"], {"--toppic", "--topic"}),
        (["run", "--zzz"], {"--zzz"}),
        ([*_RUN, "retrieval.dept=5"], {"retrieval.dept", "depth"}),
        ([*_RUN, "rankin.listwise.window=5"], {"rankin.listwise.window", "ranking.listwise.window"}),
    ],
)
def test_a_misspelt_name_gets_the_one_suggestion_that_is_like_it(
    touche: Touche, arguments: list[str], named: set[str]
) -> None:
    done = touche(*arguments)
    message, _, _ = done.stderr.partition("; see ")
    words = set(re.findall(r"[\w.-]+", message)) - {
        "error",
        "no",
        "such",
        "option",
        "name",
        "did",
        "you",
        "mean",
        "--set",
    }
    assert (done.returncode, words) == (2, named)


def test_a_bug_ends_with_the_traceback_of_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def validate() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("touche_llm.cli.run_files.validate", validate)
    monkeypatch.setattr(sys, "argv", ["touche-llm", "validate"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(RuntimeError) as caught:
        cli.main()
    sys.excepthook(caught.type, caught.value, caught.tb)
    lines = capsys.readouterr().err.splitlines()
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "RuntimeError: a bug")
