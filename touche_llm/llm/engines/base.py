"""The engine protocol: what every way to a model offers, and how it says that it failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from touche_llm.data.json_records import JsonModel
from touche_llm.data.transport import TransientFailure
from touche_llm.llm.answers import FailureKind, Token
from touche_llm.llm.request import Message, Request


class EngineInfo(JsonModel):
    """What is known of an engine. `context` is in tokens; `overhead` is what the chat template adds to two messages."""

    model: str
    revision: str
    context: int
    overhead: int
    engine: str


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back for one request, before anything is believed of it.

    `cached_tokens` are those prompt tokens that the engine took from its prefix cache, None where it does not tell.
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
    """A failure of an engine that may pass; `is_overload` says that fewer requests at a time would help."""

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


class Unreachable(Transient):
    """Nothing listens where the engine should be. When it lasts, the run stops instead of failing every request."""


class MissingLogprobs(Transient):
    """An answer came without the log-probabilities that were requested; never stored, so that nothing hides it."""


class Rejected(Exception):
    """The engine does not accept this request; asking again would not help. `status` is the HTTP status.

    Unless it ends the run, it is stored as a failure of the request.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def is_fatal(self) -> bool:
        """Whether every other request would end like this one: a redirect, a key that is not taken, no such place."""
        return self.status < 400 or self.status in (401, 403, 404)


class Engine(Protocol):
    """A way to a model. Methods raise Transient or Rejected."""

    async def complete(self, request: Request) -> Completion:
        """Answer one request."""
        ...

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Number of prompt tokens of a chat, template included."""
        ...

    async def truncate(self, text: str, max_tokens: int) -> str:
        """The beginning of `text` that has about this many tokens."""
        ...
