from __future__ import annotations

import pytest

from touche_llm.data.io import is_word


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("ä,…😀", True),
        ("a" * 1000, True),
        ("a" * 1001, False),
        ("", False),
        ("a b", False),
        ("a\n", False),
        ("a\u200b", False),
        (None, False),
    ],
)
def test_an_id_is_one_printable_word_of_at_most_a_thousand_characters(value: object, expected: bool) -> None:
    assert is_word(value) is expected
