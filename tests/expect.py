"""Expectation of the program's errors by type, location and the values that they quote.

Their wording is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from touche_llm.errors import ToucheError

ErrorT = TypeVar("ErrorT", bound=ToucheError)


@contextmanager
def raises_at(
    kind: type[ErrorT], location: object, *values: object
) -> Iterator[pytest.ExceptionInfo[ErrorT]]:
    """Expect an error at a location.

    Args:
        kind: Type of the error.
        location: What stands before its problem: a file, `file:line`, an option or a setting.
        values: Values, names and flags that the message quotes, in any order.
    """
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.location == str(location)
    message = str(caught.value)
    assert [value for value in map(str, values) if value not in message] == [], message
