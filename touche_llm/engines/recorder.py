"""Engine that records requests and answers them from a function: dry runs, batch files, replays and tests."""

from __future__ import annotations

import asyncio
import hashlib
import math
import string
import struct
from bisect import bisect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from touche_llm.llm.answer import Token
from touche_llm.llm.answer_schema import AnswerForm, Layout, list_fields
from touche_llm.llm.label_probabilities import Label
from touche_llm.llm.protocol import Completion, Counter
from touche_llm.llm.request import Message, Request

# Characters per token, about, in English text.
TOKEN_CHARS = 4


class EstimatingTokenizer:
    """Tokenizer that estimates tokens by the number of characters."""

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the estimated number of prompt tokens of a chat."""
        return estimate_tokens(_join(messages))

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return the beginning of `text` with about this many tokens."""
        return text[: max_tokens * TOKEN_CHARS]


@dataclass(slots=True)
class Usage:
    """Estimated usage of the requests of one prompt, without the chat template.

    Attributes:
        completion_tokens: Max tokens that the model writes, including reasoning.
        shared_tokens: Those of `prompt_tokens` that are also the beginning of the prompt before,
            which are about the tokens that a prefix cache can save.
    """

    requests: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    completion_tokens: int = 0
    topics: set[str] = field(default_factory=set, compare=False)


class RecordingEngine:
    """Engine of chats and of pooling models that sends nothing: it records requests and answers from a function.

    Scores fall with each document, so that they confirm the order of the ranking; vectors depend on
    the text alone and mean nothing.

    Attributes:
        pending: Requests without an answer, by key.
        answered: Keys of the requests with an answer.
        usage: Usage by name of the prompt, in order of first use; requests to pooling models are
            under the name of the task and `embeddings` or `cross_encoder`.
        needs_tokenizer: Whether tokens had to be counted without a tokenizer.
    """

    def __init__(
        self,
        answer: Callable[[Request], Completion | None],
        tokenizer: Counter | None = None,
        *,
        task: str = "",
        answered: set[str] | None = None,
    ) -> None:
        """Initialise the engine.

        `answer` returns the completion of a request, or None if its answer is pending; it may raise
        as an engine. Without a tokenizer, a task that needs a count is cancelled. Keys of new
        answers are added to `answered`.
        """
        self._answer, self._tokenizer, self._task = answer, tokenizer, task
        self.pending: dict[str, Request] = {}
        self.answered = set() if answered is None else answered
        self.repeated = 0
        self.usage: dict[str, Usage] = {}
        self.needs_tokenizer = False
        self._last_text: dict[str, str] = {}
        self._scored = 0

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request; cancel the task that waits for a pending one."""
        completion = self._answer(request)
        if completion is None:
            self.pending[request.key] = request
            raise asyncio.CancelledError
        if request.key in self.answered:
            self.repeated += 1
            return completion
        self.answered.add(request.key)
        prompt, text = request.origin.prompt, _join(request.messages)
        usage = self._record(prompt, text)
        usage.topics.add(request.origin.topic_id)
        usage.completion_tokens += request.sampling.max_tokens
        usage.shared_tokens += estimate_tokens(
            text[: count_shared(self._last_text.get(prompt, ""), text)]
        )
        self._last_text[prompt] = text
        return completion

    async def embed(self, texts: Sequence[str], dimensions: int | None) -> list[bytes]:
        """Return vectors of `dimensions` values."""
        self._record(f"{self._task}/embeddings", "".join(texts))
        seeds, places = (
            [hashlib.sha256(text.encode()).digest() for text in texts],
            range(dimensions or 1),
        )
        return [
            struct.pack(f"<{len(places)}f", *(seed[place % 32] - 127.5 for place in places))
            for seed in seeds
        ]

    async def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """Return falling scores."""
        self._record(
            f"{self._task}/cross_encoder", "".join(query + document for document in documents)
        )
        self._scored += len(documents)
        return [float(-place) for place in range(self._scored - len(documents), self._scored)]

    @property
    def counter(self) -> Counter:
        """Tokenizer; cancels the task if there is none."""
        if self._tokenizer is None:
            self.needs_tokenizer = True
            raise asyncio.CancelledError
        return self._tokenizer

    def _record(self, name: str, text: str) -> Usage:
        usage = self.usage.setdefault(name, Usage())
        usage.requests += 1
        usage.prompt_tokens += estimate_tokens(text)
        return usage


async def run_until_pending(work: Awaitable[object]) -> bool:
    """Await work that uses a recording engine.

    Return whether it ended without a pending request.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    try:
        await work
    except asyncio.CancelledError:
        if task.cancelling() > cancelled:
            raise  # The caller cancelled the task, not a pending request.
        return False
    return True


def make_dry_engine(
    tokenizer: Counter | None = None, *, task: str = "", answered: set[str] | None = None
) -> RecordingEngine:
    """Return an engine that answers without a model, from the schema alone.

    Tokens are estimated if need be.
    """
    best: dict[tuple[str, frozenset[str]], str] = {}
    return RecordingEngine(
        partial(_answer_dry, best), tokenizer or EstimatingTokenizer(), task=task, answered=answered
    )


def _answer_dry(best: dict[tuple[str, frozenset[str]], str], request: Request) -> Completion:
    """Return an answer that fits the schema, without a model.

    `best` has the best documents by topic and documents.

    For one document, or a topic alone, all grades are equally probable, and the first of several
    words is twice as probable as the others, since sentences without a side would form no pairs.
    Among several documents, the one shown first is certainly the best, also if they are shown again
    in another order: answers confirm the ranking. The text of the answer has the first label; a
    free text is made of the field's name.
    """
    if request.layout.form is AnswerForm.TEXT:
        # As long as possible, since the next prompt repeats it: each word has the characters of a
        # token.
        text = "hm, " * request.sampling.max_tokens
        tokens: list[Token] = []
    else:
        text, tokens = _spell(_choose_labels(best, request), request.layout)
    return Completion(
        text=text,
        finish_reason="stop",
        prompt_tokens=estimate_tokens(_join(request.messages)),
        completion_tokens=estimate_tokens(text),
        tokens=tokens if request.sampling.top_logprobs else [],
    )


def _choose_labels(
    best: dict[tuple[str, frozenset[str]], str], request: Request
) -> dict[str, Sequence[Label]]:
    """Return the probable labels of each field, that of the text first."""
    fields = list_fields(request.schema)
    documents = (request.origin.document_id or "").split()
    if not documents and list(fields) == ["first", "second"]:
        # The first label, and the last that shares no word with it, as two objects.
        firsts, seconds = (schema["enum"] for schema in fields.values())
        words = set(firsts[0].casefold().split())
        disjoint = (
            label for label in reversed(seconds) if words.isdisjoint(label.casefold().split())
        )
        return {"first": firsts[:1], "second": [next(disjoint, seconds[-1])]}
    answer: dict[str, Sequence[Label]] = {}
    for name, schema in fields.items():
        if "pattern" in schema:
            letters = " > ".join(string.ascii_uppercase[: len(documents)])
            answer[name] = [letters if name == "order" else name.replace("_", "")]
        elif len(documents) > 1:
            first = best.setdefault((request.origin.topic_id, frozenset(documents)), documents[0])
            answer[name] = [schema["enum"][documents.index(first)]]
        else:
            answer[name] = schema["enum"]
    return answer


def _spell(answer: Mapping[str, Sequence[Label]], layout: Layout) -> tuple[str, list[Token]]:
    """Return the text of an answer, and for each field the token of its value, with all labels as alternatives."""
    text, tokens = "", []
    for name, before, after in zip(layout.fields, layout.frame, layout.frame[1:], strict=False):
        text += before
        # Including the character after the value, no label is the beginning of another.
        values = [layout.spell_value(label) + after[:1] for label in answer[name]]
        shares = [
            1.0 + isinstance(label, str) * (place == 0) for place, label in enumerate(answer[name])
        ]
        top = [
            (value, math.log(share / sum(shares)))
            for value, share in zip(values, shares, strict=True)
        ]
        tokens.append(Token(at=len(text.encode()), token=values[0], logprob=top[0][1], top=top))
        text += layout.spell_value(answer[name][0])
    return text + layout.frame[-1], tokens


def count_shared(text: str, other: str) -> int:
    """Return the length of the common prefix of two texts.

    Bisection is far faster than comparing characters.
    """
    ends = range(1, min(len(text), len(other)) + 1)
    return bisect(ends, False, key=lambda end: text[:end] != other[:end])


def _join(messages: Sequence[Message]) -> str:
    return "".join(message.content for message in messages)


def estimate_tokens(text: str) -> int:
    """Return the estimated number of tokens of a text."""
    return round(len(text) / TOKEN_CHARS)
