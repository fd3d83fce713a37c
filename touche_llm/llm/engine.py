"""Interfaces of engines and tokenizers, their failures, and counts of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

from touche_llm.data.concurrency import BROKEN_TRIES, TransientFailure
from touche_llm.data.records import Model
from touche_llm.errors import EngineError, UsageError
from touche_llm.llm.answers import FailureKind, Token
from touche_llm.llm.request import Message, Request, to_prompt


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


class Transient(TransientFailure):
    """Transient failure of an engine."""

    def __init__(
        self,
        kind: FailureKind,
        reason: str,
        retry_after: float | None = None,
        max_tries: int | None = None,
    ) -> None:
        super().__init__(reason, retry_after, max_tries)
        self.kind: FailureKind = kind


class Unreachable(Transient):
    """Failure to connect to a server.

    A run ends if it lasts, since every other request would fail too.
    """


class BrokenReply(Transient):
    """Complete but malformed reply, tried a few times.

    At an address that a server does not know, it may be a page.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("server_error", reason, max_tries=BROKEN_TRIES)


class MissingLogprobs(BrokenReply):
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
        return text[: len((await self._decode(tokens[:max_tokens])).rstrip("\ufffd"))]

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


class ChatTokenizer(TokenCounter):
    """Counter that uses the tokenizer and chat template of a local folder."""

    name = "the tokenizer of a folder"

    def __init__(self, folder: Path, chat_template_kwargs: Mapping[str, Any]) -> None:
        """Load the tokenizer; no code from the folder is executed."""
        if not (folder / "tokenizer_config.json").is_file():
            raise UsageError(
                f"{folder}: no tokenizer; give a folder with tokenizer_config.json (`engine.tokenizer`)"
            )
        try:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        except ImportError as error:
            raise EngineError(
                "engine.tokenizer: needs transformers: pip install transformers"
            ) from error
        except Exception as error:  # depends on the library that reads the file
            raise UsageError(f"{folder}: cannot load the tokenizer: {_describe(error)}") from error
        self._folder = folder
        self._chat_template_kwargs = dict(chat_template_kwargs)
        if not self._tokenizer.chat_template:
            raise UsageError(f"{folder}: the tokenizer has no chat template")

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat.

        Raise UsageError if the chat template refuses the messages.
        """
        try:
            fields = {"add_generation_prompt": True} | to_prompt(messages)
            text = self._tokenizer.apply_chat_template(
                fields.pop("messages"), tokenize=False, **fields, **self._chat_template_kwargs
            )
        except Exception as error:  # templates can raise anything
            raise UsageError(
                f"{self._folder}: the chat template refuses the messages: {_describe(error)}"
            ) from error
        return len(await self._encode(text))

    async def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens))

    async def _encode(self, text: str) -> list[int]:
        # The chat template writes the special tokens. The library would warn about texts longer
        # than the context.
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        return tokens


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


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


@dataclass(slots=True)
class Counts:
    """Counts of a stage.

    Attributes:
        cache_hits: Answers taken from the cache, with their `cached_prompt_tokens` and
            `cached_completion_tokens`.
        requests: Requests sent to the engine, including resamples but not retries.
        ended: Those of `requests` that are not under way any more, with or without an answer.
        thoughts: Those of `requests` in which the model reasons.
        thought_tokens: Those of `completion_tokens` that are reasoning.
        unusable_records: Unusable answers found in the cache, whether or not another sample was
            usable.
        known_failures: Requests that failed because of unusable answers in the cache, without being
            sent.
        prefix_cached_tokens: Those of `prompt_tokens` that the engine reported as taken from its
            prefix cache.
        prefix_reports: Replies that report such tokens.
        problem: Reason of the last retry.
    """

    cache_hits: int = 0
    requests: int = 0
    ended: int = 0
    retries: int = 0
    resamples: int = 0
    failures: int = 0
    unusable_records: int = 0
    known_failures: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    cached_completion_tokens: int = 0
    prefix_cached_tokens: int = 0
    prefix_reports: int = 0
    thoughts: int = 0
    thought_tokens: int = 0
    problem: str = ""

    def since(self, before: Counts) -> Counts:
        """Return the increase since `before`, an earlier copy, with the present `problem`."""
        names = [count.name for count in fields(self) if count.name != "problem"]
        return replace(
            self, **{name: getattr(self, name) - getattr(before, name) for name in names}
        )
