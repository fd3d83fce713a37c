"""Names in messages."""

from __future__ import annotations

import pytest

from touche_llm.errors import shorten


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["10", "2", "b", "1"], "1, 2, b, 10"),
        ({"topic 10 document b", "topic 2 document c"}, "topic 2 document c, topic 10 document b"),
        ([], ""),
        (map(str, range(1, 12)), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, … (11 in all)"),
    ],
)
def test_names_in_a_message_are_in_natural_order_and_at_most_ten(
    names: list[str], expected: str
) -> None:
    assert shorten(names) == expected
