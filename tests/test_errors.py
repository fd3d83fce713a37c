"""The exceptions of the program."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.expect import raises_at
from touche_llm.errors import (
    BadLine,
    DataError,
    EngineError,
    ToucheError,
    UsageError,
    describe_os_error,
    needs_extra,
    shorten,
)


@pytest.mark.parametrize(
    ("error", "location"),
    [
        (DataError("topics.xml: no such file"), "topics.xml"),
        (BadLine(Path("corpus.jsonl"), 7, "not JSON: see the file"), "corpus.jsonl:7"),
        (UsageError("--depth: must be at least 1; got 0"), "--depth"),
        (ToucheError("nothing is at fault"), ""),
    ],
)
def test_the_location_of_an_error_comes_before_its_problem(error: ToucheError, location: str) -> None:
    assert error.location == location


@pytest.mark.parametrize(
    ("names", "limit", "expected"),
    [
        (["10", "2", "b", "1"], 10, ["1", "2", "10", "b"]),
        ({"topic 10 document b", "topic 2 document c"}, 10, ["topic 2 document c", "topic 10 document b"]),
        (["2", "\u0663", "1" * 9999], 2, ["2", "\u0663"]),
        ([], 10, [""]),
    ],
)
def test_names_in_a_message_are_in_natural_order(names: list[str], limit: int, expected: list[str]) -> None:
    assert shorten(names, limit).split(", ")[: len(expected)] == expected


@pytest.mark.parametrize(("common", "is_sorted"), [(199, True), (200, False)])
def test_names_are_ordered_by_their_first_200_characters(common: int, is_sorted: bool) -> None:
    names = ["x" * common + end for end in "ba"]
    assert shorten(names).split(", ") == (sorted(names) if is_sorted else names)


def test_ten_names_are_in_a_message_and_the_number_of_more() -> None:
    ten = [str(number) for number in range(1, 11)]
    assert shorten(ten) == ", ".join(ten)
    assert shorten([*ten, "11"]).startswith(f"{', '.join(ten)}, …")
    assert "11 in all" in shorten([*ten, "11"])


@pytest.mark.parametrize(("error", "code"), [(UsageError, 2), (DataError, 1), (EngineError, 1)])
def test_an_error_of_use_has_an_exit_code_of_its_own(error: type[ToucheError], code: int) -> None:
    assert error("--depth: must be at least 1").exit_code == code


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.EFBIG, "`ulimit -f`"), (errno.EMFILE, "`ulimit -n`"), (errno.ENFILE, "`ulimit -n`")]
)
def test_a_limit_of_the_system_is_named_with_the_command_that_raises_it(number: int, remedy: str) -> None:
    described = describe_os_error(OSError(number, "cause", "run.txt"))
    assert described.startswith("run.txt: cause; ") and remedy in described
    assert describe_os_error(OSError(errno.EACCES, "cause", "run.txt")) == "run.txt: cause"
    assert describe_os_error(OSError("no number")) == "no number"


@pytest.mark.parametrize(
    ("error", "missing"),
    [(ImportError("libcuda.so: not found"), "libcuda.so"), (ModuleNotFoundError("No module", name="tabula"), "tabula")],
)
def test_an_optional_library_that_cannot_be_imported_is_named_with_its_extra(error: ImportError, missing: str) -> None:
    with raises_at(UsageError, "--corpus", f"needs {missing}", "touche-llm[warc]"), needs_extra("warc", "--corpus"):
        raise error
