"""Interfaces of engines, and their failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from touche_llm.data.records import Count, Model
from touche_llm.data.transport import TransientFailure
from touche_llm.llm.answers import FailureKind, Token
from touche_llm.llm.request import Message, Request


class EngineInfo(Model):
    """Description of an engine.

    Attributes:
        revision: The user's name for the version of the weights.
        context: Context in tokens.
        overhead: Tokens that the chat template adds to two messages.
        serving: What the server reports of how it serves the model, by name.
    """

    model: str
    revision: str
    context: int
    overhead: int
    engine: str
    serving: dict[str, str] = {}


class ServedModel(msgspec.Struct):
    """Model in the list of a server; a LoRA adapter has a `parent`, the model that it adapts."""

    id: str
    owned_by: str | None = None
    max_model_len: Count | None = None
    root: str | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """Unchecked result of one request.

    Attributes:
        completion_tokens: Tokens of the completion, including reasoning.
        tokens: Tokens of the answer, if requested.
        refusal: Text with which the model refused, if it did.
        fingerprint: Fingerprint of the software, if reported.
        cached_tokens: Prompt tokens taken from the prefix cache, None if not reported.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    tokens: list[Token] = field(default_factory=list)
    refusal: str | None = None
    reasoning: str | None = None
    fingerprint: str | None = None
    cached_tokens: int | None = None


class Transient(TransientFailure):
    """Transient failure of an engine.

    Attributes:
        is_overload: Whether the server, or this process, has too many requests, so that it is certainly alive.
        is_busy: Whether a server that did not reply in time answers other requests.
    """

    def __init__(
        self,
        kind: FailureKind,
        reason: str,
        retry_after: float | None = None,
        max_tries: int | None = None,
        is_overload: bool = False,
    ) -> None:
        super().__init__(reason, retry_after, max_tries)
        self.kind: FailureKind = kind
        self.is_overload = is_overload
        self.is_busy = False


class BrokenReply(Transient):
    """Complete but malformed reply. At an address that a server does not know, it may be a page."""


class EngineDeath(Exception):
    """The engine has died and answers no request any more, so that the run stops instead of failing every request."""


class MissingLogprobs(Transient):
    """Answer without the log-probabilities requested; not stored, so that no replay uses it."""


class Rejected(Exception):
    """The engine rejects the request, so that a retry would not help; `status` is the HTTP status.

    Stored as a failure of the request unless `is_fatal`.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def is_fatal(self) -> bool:
        """Whether every other request would be rejected too: a redirect, an invalid key, an unknown path."""
        return self.status < 400 or self.status in (401, 403, 404)


class CountingEngine(Protocol):
    """Access to a model's tokenizer. Methods raise Transient, Rejected or EngineDeath."""

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        ...

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return the beginning of `text` with about this many tokens."""
        ...


class Engine(CountingEngine, Protocol):
    """Access to a model. Methods raise Transient, Rejected or EngineDeath."""

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request."""
        ...


class PoolingEngine(CountingEngine, Protocol):
    """Access to an embedding model or a cross-encoder. Methods raise as those of `Engine`."""

    async def embed(self, texts: Sequence[str], dimensions: int | None) -> list[bytes]:
        """Return the vector of each text as little-endian float32; `dimensions` None requests the model's own."""
        ...

    async def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """Return the relevance of each document to the query."""
        ...
