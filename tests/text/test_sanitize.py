"""What it takes to neutralise a text."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from touche_llm.text.sanitize import sanitize


def count_calls(text: str) -> int:
    """The number of functions that are called to neutralise a text."""
    calls = 0

    def count(_: object, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        sanitize(text)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("bracket", ["<", "[", "a<", "<b>\n", "]~", "＜"])
def test_a_text_of_brackets_takes_as_many_calls_as_one_bracket(bracket: str) -> None:
    sanitize(bracket)  # makes the pattern
    assert count_calls(bracket * 10_000) == count_calls(bracket)


@given(st.text("<[]~a1 \n＜［］～é"))
def test_a_space_comes_after_each_bracket_that_could_begin_a_token_and_nowhere_else(
    text: str,
) -> None:
    bracket = r"[<＜](?=\S|$)|[\[［](?=[^\s\d]|$)|[\]］](?=[~～])"
    assert sanitize(text) == re.sub(bracket, lambda match: f"{match[0]} ", text)
