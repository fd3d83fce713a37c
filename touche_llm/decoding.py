"""JSON from outside that comes by the ten thousand: read by msgspec, where pydantic would take most of the time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

ValueT = TypeVar("ValueT")


class Malformed(ValueError):
    """A text is no JSON, or JSON of another form; says what is wrong and where in it."""


def decoded(content: bytes | str | msgspec.Raw, form: type[ValueT]) -> ValueT:
    """The value of the type `form` (of msgspec's) that `content` is; raises Malformed, for any content whatever."""
    try:
        value: ValueT = _decoder(form).decode(content)  # type: ignore[arg-type]
    # The last two are what msgspec raises for bytes that are no UTF-8, and for lists in lists in lists.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from error
    return value


@lru_cache(maxsize=64)
def _decoder(form: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(form)
