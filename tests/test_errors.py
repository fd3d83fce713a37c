"""The exceptions of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from touche_llm.errors import BadLine, DataError, ToucheError, UsageError


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
