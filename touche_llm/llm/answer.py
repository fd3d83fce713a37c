"""Answers of a model, as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from touche_llm.data.records import Count, JsonStruct
from touche_llm.errors import UnusableKind

# Max characters stored of the text, and of the reason, of an unusable answer.
MAX_CHARS = 2000
_ShortText = Annotated[str, msgspec.Meta(max_length=MAX_CHARS)]


# Always finite: JSON cannot express infinity or NaN, and logprobs come from nowhere else.
Logprob = Annotated[float, msgspec.Meta(le=0.0)]


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Token of an answer; validated when it is parsed, not when the program creates it.

    Attributes:
        at: Offset of its first byte in the text.
        logprob: Its log-probability, a natural logarithm.
        top: The most probable alternatives, itself included, with their log-probabilities.
    """

    at: Count
    token: str
    logprob: Logprob
    top: list[tuple[str, Logprob]]


class Answer(JsonStruct, frozen=True, omit_defaults=True):
    """Usable answer, as it is cached.

    `tokens` are those of the labels, empty if no logprobs were sent.
    """

    text: str
    finish_reason: str
    tokens: list[Token]
    prompt_tokens: Count
    completion_tokens: Count
    fingerprint: str | None = None


class UnusableAnswer(JsonStruct, frozen=True, omit_defaults=True):
    """Unusable answer, as it is cached under the key of its sample; another sample is requested.

    Of kind "server_error", it is the server's rejection of the request, and no other sample is
    requested.
    """

    kind: UnusableKind | Literal["server_error"]
    reason: _ShortText
    text: _ShortText = ""


# Types of the values that the cache stores under the key of a sample, by the kind of the entry.
OUTCOMES: Mapping[str, type[Answer] | type[UnusableAnswer]] = {
    "answer": Answer,
    "unusable": UnusableAnswer,
}
