"""Base classes of records stored as JSON in files and in the cache.

Records written by hand or with nested settings use pydantic. Records of which a run has tens of thousands use msgspec,
which takes a tenth of the time.
"""

from __future__ import annotations

from typing import Annotated, Protocol, Self, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError

from touche_llm.data.settings import describe_first_problem

ValueT = TypeVar("ValueT")
# Max bytes of a record parsed by pydantic, which takes a hundred times the memory; manifests have hundreds.
MAX_MODEL = 2**20


class Malformed(ValueError):
    """Text that is not JSON or not of the expected form; the message has at most 400 characters."""

    def __init__(self, problem: str) -> None:
        # Names from the text may have any length, and the location comes last: cut the middle.
        super().__init__(problem if len(problem) <= 400 else f"{problem[:200]} … {problem[-197:]}")


class JsonRecord(Protocol):
    """Record of either kind."""

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """Parse a record; raises Malformed."""
        ...

    def to_json(self) -> bytes:
        """Return the record as one line, without line feed."""
        ...


class JsonModel(BaseModel):
    """Base of records that pydantic validates, also when the program creates them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """Parse a record; raises Malformed."""
        if len(content) > MAX_MODEL:
            raise Malformed(f"longer than {MAX_MODEL:,} bytes")
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise Malformed(describe_first_problem(error)) from error

    def to_json(self) -> bytes:
        """Return the record as one line, without line feed."""
        return self.model_dump_json().encode()


class JsonStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base of records that msgspec validates only when they are parsed.

    `gc=False`: the records are trees of strings and numbers, so there are no cycles to collect.
    """

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """Parse a record; raises Malformed."""
        return decode_json(content, cls)

    def to_json(self) -> bytes:
        """Return the record as one line, without line feed."""
        return _ENCODER.encode(self)


_ENCODER = msgspec.json.Encoder()
# A number of tokens or characters. Some JSON parsers round larger integers.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


def decode_json(content: bytes | str | msgspec.Raw, form: type[ValueT]) -> ValueT:
    """Decode JSON as a value of the type `form`; raises Malformed."""
    try:
        return msgspec.json.decode(content, type=form)
    # msgspec raises the last two for text that is not UTF-8 and for deep nesting.
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(str(error)) from error
