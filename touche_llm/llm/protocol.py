"""Protocols of engines and tokenizers, and failures of engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from touche_llm.data.records import Model
from touche_llm.llm.answer import Token
from touche_llm.llm.request import Message, Request


class EngineInfo(Model):
    """Description of an engine.

    Attributes:
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


@dataclass(frozen=True, slots=True)
class Completion:
    """Unchecked result of one request.

    Attributes:
        completion_tokens: Tokens of the completion, including reasoning.
        tokens: Tokens of the answer, if requested.
        refusal: Text with which the model refused, if it did.
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


class Counter(Protocol):
    """Access to a model's tokenizer. Methods raise Transient or Rejected."""

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return the beginning of `text` with about this many tokens."""


class TokenCounter(Counter, Protocol):
    """Counter that encodes and decodes texts; `name` describes it for people."""

    name: str

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return the beginning of `text` with about this many tokens."""
        tokens = await self._encode(text)
        if len(tokens) <= max_tokens:
            return text

        # The decoded text of a tokenizer that normalises differs, but has about as many characters.
        # It ends with replacement characters if the last token has only a part of a character.
        decoded = await self._decode(tokens[:max_tokens])
        char_count = len(decoded.rstrip("\ufffd"))
        return text[:char_count]

    async def _encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without those that a model adds to a prompt."""

    async def _decode(self, tokens: list[int]) -> str:
        """Return the text of tokens."""

    async def render(
        self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]
    ) -> str | None:
        """Return the text of a prompt with these switches of the chat template.

        None if the server does not show it.
        """
        return None


class CountingEngine(Protocol):
    """Engine that knows the tokenizer of its model."""

    @property
    def counter(self) -> Counter:
        """Counter of tokens."""


class Engine(CountingEngine, Protocol):
    """Access to a model. Methods raise Transient or Rejected."""

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request."""


class PoolingEngine(CountingEngine, Protocol):
    """Access to an embedding model or a cross-encoder. Methods raise as those of `Engine`."""

    async def embed(self, texts: Sequence[str], dimensions: int | None) -> list[bytes]:
        """Return the vector of each text as little-endian float32.

        `dimensions` None requests the model's own.
        """

    async def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """Return the relevance of each document to the query."""
