"""What is asked of an engine, and the key under which its answer is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import orjson

# Raised whenever the meaning of a key changes, so that no answer is found under a key of another meaning.
KEY_VERSION = 1


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is drawn. `top_logprobs` is the number of alternatives a token, 0 for no log-probabilities."""

    temperature: float = 0.0
    seed: int = 0
    max_tokens: int = 64
    top_logprobs: int = 20


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request comes from. For people and messages; no part of the key."""

    prompt: str
    prompt_version: int
    prompt_hash: str
    topic_id: str
    document_id: str | None


@dataclass(frozen=True)
class Request:
    """One question to one model, complete: everything that can change the answer is in it."""

    messages: tuple[Message, ...]
    schema: Mapping[str, Any]
    sampling: Sampling
    model: str
    revision: str
    chat_template_kwargs: Mapping[str, Any]
    origin: Origin
    sample: int = 0

    @cached_property
    def key(self) -> str:
        """SHA-256 in hexadecimal over the canonical JSON of all that can change the answer.

        Retry counts, addresses and concurrency are left out, and so is `origin`.
        """
        return hash_content(
            "answer",
            messages=[[message.role, message.content] for message in self.messages],
            schema=self.schema,
            sampling=[
                self.sampling.temperature,
                self.sampling.seed,
                self.sampling.max_tokens,
                self.sampling.top_logprobs,
            ],
            model=self.model,
            revision=self.revision,
            chat_template_kwargs=self.chat_template_kwargs,
            sample=self.sample,
        )

    @property
    def logprob_fields(self) -> tuple[str, ...]:
        """The fields of the answer whose probabilities are asked for."""
        return tuple(self.schema["properties"]) if self.sampling.top_logprobs else ()

    def resample(self, sample: int, temperature: float) -> Request:
        """The same question for another sample: drawn at `temperature` with a seed of its own."""
        sampling = replace(self.sampling, temperature=temperature, seed=self.sampling.seed + sample)
        return replace(self, sampling=sampling, sample=sample)


def hash_content(kind: str, **parts: Any) -> str:
    """SHA-256 in hexadecimal over the canonical JSON (sorted keys) of `parts`, `kind` and the key version."""
    content = orjson.dumps({"version": KEY_VERSION, "kind": kind, **parts}, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(content).hexdigest()
