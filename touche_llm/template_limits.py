"""What the rendering of a template may cost: far more than an honest one needs, and less than would hang a machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from jinja2.utils import Namespace

# Of one rendering: rounds of its loops, and calls.
MOST_STEPS = 100_000
# Of one rendering, characters that its expressions make or insert, and those of the message. A document of the
# largest line of a corpus (16 MiB) fits several times, also with a space behind each character.
MOST_CHARS = 2**28
# Of the product of a text or a list with a number, and bits of that of two integers or of a power.
MOST_REPEATED = 1_000_000
MOST_BITS = 64
# So many characters more are counted for what is made or inserted, and for an element of a list: it takes longer.
_EACH, _ELEMENT = 20, 200
_NUMBER = re.compile(r"\d{1,18}")
# How often what is given to a filter or a method can stand in its result; elsewhere once.
_PLACES: dict[str, Callable[[str, tuple[Any, ...]], int]] = {
    "replace": lambda text, given: text.count(str(given[0])) if given else 1,
    "expandtabs": lambda text, given: text.count("\t"),
    "indent": lambda text, given: text.count("\n") + 1,
    "format": lambda text, given: text.count("%") + text.count("{"),
    "wordwrap": lambda text, given: len(text) if len(given) > 2 else 1,
}


class LimitError(Exception):
    """A template that does more than any prompt needs."""


class Meter:
    """Counts what a rendering costs; each method raises LimitError where that is too much."""

    def __init__(self) -> None:
        """Nothing is spent yet."""
        self.reset()

    def reset(self) -> None:
        """A rendering begins."""
        self._steps = self._chars = 0

    def step(self) -> None:
        """A round of a loop, or a call."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise LimitError(f"more than {MOST_STEPS:,} rounds of loops and calls in one message")

    def text(self, chars: int) -> None:
        """Text is made or inserted."""
        self._chars += chars + _EACH
        if self._chars > MOST_CHARS:
            raise LimitError(f"more than {MOST_CHARS:,} characters are made in one message")

    def call(self, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A filter or a method is called, of a value, with what can make its result longer: a width, a new text."""
        given = (*args, *kwargs.values())
        size = size_of(value)
        if not given:
            self.text(size)
            return
        if name == "join":
            places = size
        elif isinstance(value, str) and name in _PLACES:
            places = _PLACES[name](value, given)
        else:
            places = 1
        largest = max(abs(each) if isinstance(each, int) else size_of(each) for each in given)
        if name == "format":
            largest = max(largest, *(int(each) for each in _NUMBER.findall(str(value))), 0)
        self.text(size + places * largest)

    def operator(self, sign: str, left: Any, right: Any) -> None:
        """An arithmetic operator is about to be applied."""
        if sign == "%" and isinstance(left, str):
            self.call("format", left, (right,), {})
        elif sign == "+" and not isinstance(left, int | float):
            self.text(size_of(left) + size_of(right))
        elif sign in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if sign == "**" else left.bit_length() + right.bit_length()
            if bits > MOST_BITS:
                raise LimitError(f"{sign}: the result may have more than {MOST_BITS} bits")
        elif sign == "*" and (isinstance(left, int) or isinstance(right, int)):
            number, other = (left, right) if isinstance(left, int) else (right, left)
            if not isinstance(other, float) and number > 0 and number * size_of(other) > MOST_REPEATED:
                raise LimitError(f"*: the result may be longer than {MOST_REPEATED:,} characters")


def size_of(value: Any) -> int:
    """About how many characters the value has as text; not more than is allowed, plus one, is counted."""
    if isinstance(value, str | bytes):
        return len(value)
    size, waiting = 0, [value]
    # What holds itself twice, many times over, is a short list and an endless text.
    while waiting and size <= MOST_CHARS:
        each = waiting.pop()
        size += _ELEMENT
        if isinstance(each, str | bytes):
            size += len(each)
        elif isinstance(each, int | float):
            continue
        elif isinstance(each, Mapping):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each
        elif isinstance(each, Namespace):
            waiting.append(each._Namespace__attrs)
        elif is_dataclass(each) and not isinstance(each, type):
            waiting += [getattr(each, one.name) for one in fields(each)]
    return size
