"""The exceptions of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.expect import raises_at
from touche_llm.errors import (
    BadLine,
    DataError,
    ToucheError,
    UsageError,
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
        (["10", "2", "b", "1"], 10, ["1", "2", "b", "10"]),
        ({"topic 10 document b", "topic 2 document c"}, 10, ["topic 2 document c", "topic 10 document b"]),
        ([], 10, [""]),
    ],
)
def test_names_in_a_message_are_in_natural_order(names: list[str], limit: int, expected: list[str]) -> None:
    assert shorten(names, limit).split(", ")[: len(expected)] == expected


def test_ten_names_are_in_a_message_and_the_number_of_more() -> None:
    ten = [str(number) for number in range(1, 11)]
    assert shorten(ten) == ", ".join(ten)
    assert shorten([*ten, "11"]).startswith(f"{', '.join(ten)}, …")
    assert "11 in all" in shorten([*ten, "11"])


@pytest.mark.parametrize(
    ("error", "missing"),
    [(ImportError("libcuda.so: not found"), "libcuda.so"), (ModuleNotFoundError("No module", name="tabula"), "tabula")],
)
def test_an_optional_library_that_cannot_be_imported_is_named_with_its_extra(error: ImportError, missing: str) -> None:
    with raises_at(UsageError, "--corpus", f"needs {missing}", "touche-llm[warc]"), needs_extra("warc", "--corpus"):
        raise error
