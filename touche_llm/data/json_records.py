"""Records that are JSON in files and in the cache.

Those that people write by hand or that nest settings are pydantic's; those of which a run makes ten thousands, and
their like, are msgspec's, which takes a tenth of the time.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any, Protocol, Self, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError

from touche_llm.data.setting_problems import describe_problem
from touche_llm.errors import to_printable

ValueT = TypeVar("ValueT")
# Bytes of a record that pydantic reads: manifests have hundreds. It takes a hundred times the memory.
MAX_MODEL = 2**20


class Malformed(ValueError):
    """A text is no JSON, or JSON of another form; says what is wrong and where in it, in at most 400 characters."""

    def __init__(self, problem: str) -> None:
        # A name from the text may be of any length; the place comes last.
        super().__init__(problem if len(problem) <= 400 else f"{problem[:200]} … {problem[-197:]}")


class JsonRecord(Protocol):
    """A record of either kind."""

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """The record that a text is; raises Malformed for any other."""
        ...

    def to_json(self) -> bytes:
        """The record in one line, without its end."""
        ...


class JsonModel(BaseModel):
    """Base of records that pydantic checks, also when the program makes them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """The record that a text is; raises Malformed for any other."""
        if len(content) > MAX_MODEL:
            raise Malformed(f"longer than {MAX_MODEL:,} bytes")
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "line"
            raise Malformed(f"{where}: {describe_problem(first)}") from error

    def to_json(self) -> bytes:
        """The record in one line, without its end."""
        return self.model_dump_json().encode()


class JsonStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base of records that msgspec checks when they are read, and nobody when the program makes them.

    Trees of texts and numbers, like all our structs: there is no cycle that the garbage collector could find (`gc`).
    """

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """The record that a text is; raises Malformed for any other."""
        try:
            return decode_json(content, cls)
        except Malformed as error:
            raise Malformed(_with_key(str(error), content, cls)) from error

    def to_json(self) -> bytes:
        """The record in one line, without its end."""
        return _ENCODER.encode(self)


_ENCODER = msgspec.json.Encoder()
_IN_MAPPING = re.compile(r"`\$\.(\w+)\[\.\.\.\]")
# Characters; a key is text from outside.
_LONGEST_KEY = 80
# A number of tokens or characters. Larger integers are not the same in all that reads JSON.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


def decode_json(content: bytes | str | msgspec.Raw, form: type[ValueT]) -> ValueT:
    """The value of the type `form` (of msgspec's) that `content` is; raises Malformed for any other."""
    try:
        value: ValueT = _decoder(form).decode(content)  # type: ignore[arg-type]
    # The last two are what msgspec raises for what is no UTF-8, and for lists in lists in lists.
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(str(error)) from error
    return value


def _with_key(problem: str, content: bytes | str, form: type[JsonStruct]) -> str:
    """The problem with the key of the mapping in which it is: msgspec says `$.grades[...]` for each of them."""
    place = _IN_MAPPING.search(problem)
    if place is None:
        return problem
    record = decode_json(content, dict[str, Any])
    mapping = record[place[1]]
    for key in mapping:
        try:
            msgspec.convert(record | {place[1]: {key: mapping[key]}}, form)
        except msgspec.ValidationError:
            return problem.replace(f"{place[1]}[...]", f"{place[1]}.{to_printable(key)[:_LONGEST_KEY]}", 1)
    return problem


@lru_cache(maxsize=64)
def _decoder(form: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(form)
