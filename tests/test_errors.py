"""Names in messages."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

import touche_llm
from touche_llm import errors
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


def list_exceptions() -> dict[str, str]:
    """The exceptions that the package defines, each with the name of its base."""
    bases: dict[str, str] = {}
    for found in pkgutil.walk_packages(touche_llm.__path__, "touche_llm."):
        if found.name in ("touche_llm.__main__", "touche_llm.engines.ray_job"):
            continue
        for value in vars(importlib.import_module(found.name)).values():
            is_exception = isinstance(value, type) and issubclass(value, Exception)
            if not is_exception or value.__module__ != found.name:
                continue
            if not issubclass(value, Warning):
                bases[value.__name__] = value.__bases__[0].__name__
    return bases


def test_the_tree_of_exceptions_is_drawn_as_it_is() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+)(?: {2,}|$)", line)
        if found is None:
            continue
        depth = len(found[1]) // 4
        path[depth:] = [found[2]]
        if depth:
            drawn[found[2]] = path[depth - 1]
    assert drawn.pop("ValueError") == "Exception"
    assert drawn == list_exceptions()
