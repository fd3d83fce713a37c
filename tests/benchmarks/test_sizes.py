"""What the benchmarks take for a size."""

from __future__ import annotations

import argparse
import importlib

import pytest

from benchmarks.sizes import at_least


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "many", "", "²"])
def test_what_is_no_size_is_told(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        at_least(1)(text)


def test_a_size_is_an_integer() -> None:
    assert (at_least(0)("0"), at_least(1)("868655")) == (0, 868_655)


@pytest.mark.parametrize(
    ("module", "given", "said"),
    [
        ("first_stage", ["--passages", "-3"], "argument --passages: '-3' is no integer of 0 or more"),
        ("judging", ["--topics", "0"], "argument --topics: '0' is no integer of 1 or more"),
        ("judging", ["--depth", "100", "--passages", "20"], "--depth 100: there are 20 --passages"),
        ("evaluation", ["--judged", "0"], "argument --judged: '0' is no integer of 1 or more"),
    ],
)
def test_a_benchmark_of_no_size_says_so_and_measures_nothing(
    module: str, given: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [module, *given])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{module}").main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert said in printed.err
