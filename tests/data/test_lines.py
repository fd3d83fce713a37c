from __future__ import annotations

import pytest

from touche_llm.data.io import is_word


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", True),
        ("ä,…😀", True),
        ("a" * 999, True),
        ("a" * 1000, True),
        ("a" * 1001, False),
        ("", False),
        ("a b", False),
        ("a\u2003b", False),
        (" a", False),
        ("a\n", False),
        ("a\x00", False),
        ("a\u200b", False),
        ("\ud800", False),
        (b"a", False),
        (1, False),
        (None, False),
    ],
)
def test_an_id_is_one_printable_word_of_at_most_a_thousand_characters(value: object, expected: bool) -> None:
    assert is_word(value) is expected
