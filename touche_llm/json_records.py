"""Records that are JSON in files and in the cache.

pydantic reads those of which there are few; msgspec those that come by the ten thousand, in a tenth of the time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol, Self, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError

ValueT = TypeVar("ValueT")


class Malformed(ValueError):
    """A text is no JSON, or JSON of another form; says what is wrong and where in it."""


class JsonRecord(Protocol):
    """A record of either kind."""

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """The record that `to_json` made; raises Malformed, for any content whatever."""
        ...

    def to_json(self) -> bytes:
        """The record in one line, without its end."""
        ...


class JsonModel(BaseModel):
    """Base of records of which there are few."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """The record that `to_json` made; raises Malformed, for any content whatever."""
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "line"
            raise Malformed(f"{where}: {first['msg']}") from error

    def to_json(self) -> bytes:
        """The record in one line, without its end."""
        return self.model_dump_json().encode()


class JsonStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of records that come by the ten thousand. What is read is checked; what the program makes is not."""

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """The record that `to_json` made; raises Malformed, for any content whatever."""
        return decoded(content, cls)

    def to_json(self) -> bytes:
        """The record in one line, without its end."""
        return _ENCODER.encode(self)


_ENCODER = msgspec.json.Encoder()


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
