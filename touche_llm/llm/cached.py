"""What an entry of the answer cache can hold."""

from __future__ import annotations

from typing import Protocol, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from touche_llm.decoding import Malformed


class Cached(Protocol):
    """A value that the cache keeps as JSON."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave; raises Malformed for any other text."""
        ...

    def to_json(self) -> str:
        """As it is cached."""
        ...


class CachedModel(BaseModel):
    """Base of cached values of which there are few."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave; raises Malformed for any other text."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise Malformed(error.errors(include_url=False)[0]["msg"]) from error

    def to_json(self) -> str:
        """As it is cached."""
        return self.model_dump_json(exclude_none=True)
