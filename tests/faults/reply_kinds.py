"""Kinds of chat completions, each with what may become of a request that gets it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import orjson

from tests.answer_models import ComparativeJudgment
from tests.scripted_engine import spell
from touche_llm.llm.answer_schema import AnswerForm, Layout, get_labels

LABELS = get_labels(ComparativeJudgment)
# Replies that carry no answer, and those whose answer cannot be used.
LOST = frozenset({"server_error"})
ANSWER = frozenset({"answer"})
ANY = frozenset(
    {
        "answer",
        "refused",
        "cut_off",
        "not_json",
        "outside_schema",
        "impossible_logprobs",
        "server_error",
        "timeout",
    }
)


class Good(NamedTuple):
    """A completion as vLLM sends it: the decoded body, and the probabilities of its labels."""

    body: dict[str, Any]
    shares: Mapping[str, Mapping[str, float]]

    @property
    def choice(self) -> dict[str, Any]:
        choice: dict[str, Any] = self.body["choices"][0]
        return choice

    @property
    def tokens(self) -> list[dict[str, Any]]:
        tokens: list[dict[str, Any]] = self.choice["logprobs"]["content"]
        return tokens

    def say(self, text: str | None) -> None:
        """Replace the answer, and its tokens by characters."""
        self.choice["message"]["content"] = text
        self.choice["logprobs"]["content"] = [
            {"token": c, "logprob": -0.1, "top_logprobs": [{"token": c, "logprob": -0.1}]}
            for c in (text or "")[:300]
        ]


def good(
    rng: random.Random,
    serial: str,
    fields: Mapping[str, Sequence[int | str]] = LABELS,
    form: AnswerForm = AnswerForm.OBJECT,
) -> Good:
    """Return a completion with probabilities of all labels of the fields.

    `serial` is its fingerprint.
    """
    shares: dict[str, dict[int | str, float]] = {}
    for field, labels in fields.items():
        weights = [rng.uniform(0.01, 1.0) ** 3 for _ in labels]
        shares[field] = {
            label: weight / sum(weights) for label, weight in zip(labels, weights, strict=True)
        }
    text, tokens = spell(shares, Layout(form, tuple(shares)))
    content = [
        {
            "token": token.token,
            "bytes": list(token.token.encode()),
            "logprob": token.logprob,
            "top_logprobs": [{"token": label, "logprob": logprob} for label, logprob in token.top],
        }
        for token in tokens
    ]
    body = {
        "id": "chatcmpl-1",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
                "logprobs": {"content": content},
            }
        ],
        "usage": {"prompt_tokens": 50, "completion_tokens": len(tokens)},
        "system_fingerprint": serial,
    }
    return Good(
        body,
        {
            field: {str(label): share for label, share in each.items()}
            for field, each in shares.items()
        },
    )


class End(Enum):
    """What the server does to the connection instead of keeping it."""

    CLOSE = "close"
    RESET = "reset"


# Bytes to send, seconds to wait, and the end of the connection.
Pieces = Iterable[bytes | float | End]


@dataclass(frozen=True)
class Kind:
    """A kind of reply.

    Attributes:
        make: Returns what to send, given the good completion.
        outcomes: What may become of a request that gets nothing else: "answer", "ends" (the run) or
            kinds of failure.
        exact: Whether an answer has the probabilities that were sent (False: it has none); None if
            either is fine.
        named: Whether the fingerprint is left as it was.
    """

    name: str
    family: str
    make: Callable[[random.Random, Good], Pieces]
    outcomes: frozenset[str]
    exact: bool | None
    named: bool


KINDS: dict[str, Kind] = {}
_Body = Callable[[random.Random, Good], bytes | None]
_Make = Callable[[random.Random, Good], Pieces]
_Outcomes = frozenset[str] | set[str]


def body_kind(
    family: str, outcomes: _Outcomes, *, exact: bool | None = True, named: bool = True
) -> Callable[[_Body], _Body]:
    """Register a function that changes the good completion in place, or returns the body to send instead."""

    def add(change: _Body) -> _Body:
        def make(rng: random.Random, reply: Good) -> Pieces:
            changed = change(rng, reply)
            return [http(orjson.dumps(reply.body) if changed is None else changed)]

        wire_kind(family, outcomes, exact=exact, named=named, name=change.__name__)(make)
        return change

    return add


def wire_kind(
    family: str,
    outcomes: _Outcomes,
    *,
    exact: bool | None = True,
    named: bool = True,
    name: str = "",
) -> Callable[[_Make], _Make]:
    """Register a function that returns what to send."""

    def add(make: _Make) -> _Make:
        plain = (name or make.__name__).strip("_").replace("_", " ")
        KINDS[plain] = Kind(plain, family, make, frozenset(outcomes), exact, named)
        return make

    return add


def http(body: bytes, *headers: str, status: str = "200 OK", sized: bool = True) -> bytes:
    """Return a reply of HTTP/1.1."""
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *headers]
    lines += [f"Content-Length: {len(body)}"] if sized else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
