from __future__ import annotations

from typing import Any

import pytest

from touche_llm.retrieval.settings import to_texts


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (2, ("2",)),
        ("title", ("title",)),
        ([2, "b", 10**20], ("2", "b", "100000000000000000000")),
        (("a",), ("a",)),
        ([], ()),
        # Not an id by any reading, so it is left to be refused.
        (True, (True,)),
        ([False, 2.5, None], (False, 2.5, None)),
    ],
)
def test_ids_that_yaml_reads_as_whole_numbers_are_texts(value: Any, texts: tuple[Any, ...]) -> None:
    assert to_texts(value) == texts
