"""Engine and cache of a dry run: nothing is sent, nothing is written."""

from __future__ import annotations

import hashlib
import math
import re
import string
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from touche_llm.errors import EngineError
from touche_llm.llm.answers import AnswerForm, Layout, Token, list_fields
from touche_llm.llm.cache import Cache, CacheMode, Entry
from touche_llm.llm.engine import Completion
from touche_llm.llm.logprobs import Label
from touche_llm.llm.request import Message, Request

# Characters per token, about, in English text.
TOKEN_CHARS = 4


@dataclass(slots=True)
class Usage:
    """Estimated usage of the requests of one prompt, without the chat template.

    Attributes:
        completion_tokens: Max tokens that the model writes, including reasoning.
        shared_tokens: Those of `prompt_tokens` that are also the beginning of the prompt before, which are about the
            tokens that a prefix cache can save.
        topics: Ids of the topics of the requests.
    """

    requests: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    completion_tokens: int = 0
    topics: set[str] = field(default_factory=set, compare=False)

    def scale(self, requests: int) -> Usage:
        """Return the usage of another number of requests that are as long on average."""
        names = ("prompt_tokens", "shared_tokens", "completion_tokens")
        tokens = {name: round(getattr(self, name) * requests / self.requests) for name in names}
        return replace(self, requests=requests, **tokens)


class _EstimatingEngine:
    """Engine that estimates tokens by the number of characters."""

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the estimated number of prompt tokens of a chat."""
        return _estimate(_join(messages))

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return the beginning of `text` with about this many tokens."""
        return text[: max_tokens * TOKEN_CHARS]


class DryEngine(_EstimatingEngine):
    """Engine that answers from the schema alone and records what would have been sent.

    For one document, or a topic alone, all grades are equally probable, and the first of several words is twice as
    probable as the others, since sentences without a side would form no pairs. Among several documents, one is certain.
    The text of the answer has the first label; a free text is made of the field's name.

    Attributes:
        answers: Whether the first or the second of several documents shown is the best; the same one if they are shown
            again in another order. A field `order` lists the labels of the documents forwards or backwards. Since
            documents are shown in the order of the ranking, "first" changes it least and "second" most.
        usage: Usage by name of the prompt, in order of first use.
    """

    def __init__(self, answers: Literal["first", "second"]) -> None:
        self.answers: Literal["first", "second"] = answers
        self.usage: dict[str, Usage] = {}
        self._last_text: dict[str, str] = {}
        self._chosen: dict[tuple[str, frozenset[str]], str] = {}

    async def complete(self, request: Request) -> Completion:
        """Return an answer that fits the schema; raise EngineError if no text is known for a pattern."""
        if request.layout.form is AnswerForm.TEXT:
            # As long as possible, since the next prompt repeats it: each word has the characters of a token.
            text = "hm, " * request.sampling.max_tokens
            tokens: list[Token] = []
        else:
            text, tokens = _spell(self._choose_labels(request), request.layout)
        return Completion(
            text=text,
            finish_reason="stop",
            prompt_tokens=self._record(request),
            completion_tokens=_estimate(text),
            tokens=tokens if request.sampling.top_logprobs else [],
        )

    def _record(self, request: Request) -> int:
        """Record a request; return its number of prompt tokens."""
        prompt, text = request.origin.prompt, _join(request.messages)
        usage = self.usage.setdefault(prompt, Usage())
        tokens = _estimate(text)
        usage.requests += 1
        usage.topics.add(request.origin.topic_id)
        usage.prompt_tokens += tokens
        usage.completion_tokens += request.sampling.max_tokens
        usage.shared_tokens += _estimate(text[: _count_shared(self._last_text.get(prompt, ""), text)])
        self._last_text[prompt] = text
        return tokens

    def _choose_labels(self, request: Request) -> dict[str, Sequence[Label]]:
        """Return the probable labels of each field, that of the text first."""
        fields = list_fields(request.schema)
        documents = (request.origin.document_id or "").split()
        if not documents and list(fields) == ["first", "second"]:
            return _choose_objects(*(schema["enum"] for schema in fields.values()))
        answer: dict[str, Sequence[Label]] = {}
        for name, schema in fields.items():
            if "pattern" in schema:
                answer[name] = [self._write_text(name, schema["pattern"], len(documents))]
            elif len(documents) > 1:
                answer[name] = [schema["enum"][documents.index(self._choose_best(request.origin.topic_id, documents))]]
            else:
                answer[name] = schema["enum"]
        return answer

    def _choose_best(self, topic_id: str, documents: list[str]) -> str:
        best = documents[0 if self.answers == "first" else 1]
        return self._chosen.setdefault((topic_id, frozenset(documents)), best)

    def _write_text(self, name: str, pattern: str, documents: int) -> str:
        if name == "order":
            labels = string.ascii_uppercase[:documents]
            text = " > ".join(labels if self.answers == "first" else reversed(labels))
        else:
            text = name.replace("_", "")
        # A text that does not fit would cause resamples, and the estimates would be wrong.
        if re.search(pattern, text) is None:
            raise EngineError(
                f"dry run: no answer is known for the field {name!r} of {documents} documents: {text!r} does not fit "
                f"the pattern {pattern!r:.200}"
            )
        return text


class DryPoolingEngine(_EstimatingEngine):
    """Pooling engine that answers without a model and records what would have been sent.

    Scores fall with each document if `answers` is "first", so that they confirm the order of the ranking, and rise if
    it is "second". Vectors depend on the text alone and mean nothing.
    """

    def __init__(self, answers: Literal["first", "second"], usage: dict[str, Usage], name: str) -> None:
        """Record in `usage` under this name."""
        self.answers, self._usage, self._name = answers, usage, name
        self._scored = 0

    async def embed(self, texts: Sequence[str], dimensions: int | None) -> list[bytes]:
        """Return vectors of `dimensions` values."""
        self._record("".join(texts))
        seeds = [hashlib.sha256(text.encode()).digest() for text in texts]
        return [
            b"".join(struct.pack("<f", seed[place % 32] - 127.5) for place in range(dimensions or 1)) for seed in seeds
        ]

    async def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """Return falling or rising scores."""
        self._record("".join(query + document for document in documents))
        self._scored += len(documents)
        last = range(self._scored - len(documents), self._scored)
        return [float(-place if self.answers == "first" else place) for place in last]

    def _record(self, text: str) -> None:
        usage = self._usage.setdefault(self._name, Usage())
        usage.requests += 1
        usage.prompt_tokens += _estimate(text)


class OverlayCache(Cache):
    """Cache that reads a file and keeps new entries in memory; the file is neither created nor changed.

    The file is opened as for replay; SQLite may leave files of its own (`-wal`, `-shm`) beside it. `get` and `find`
    return entries of both; `iterate_entries`, `count_entries` and `export_cassette` only those in memory.

    Attributes:
        hidden: Keys of the file that were to be forgotten, with the kind of entry, or None for any.
    """

    def __init__(self, path: Path | None) -> None:
        """Open the cache `path`, an SQLite file or a cassette (`.jsonl`), if it is given and exists.

        Raises:
            DataError: The file is not a cache.
        """
        # A full disk, or a kill while a cache is created, leaves an empty file.
        exists = path is not None and path.exists() and path.stat().st_size > 0
        self._file = Cache(path, CacheMode.REPLAY) if path is not None and exists else None
        self.hidden: dict[str, str | None] = {}
        # In this mode no file is opened, whatever its name.
        super().__init__(Path("dry run"), CacheMode.OFF)
        self.path, self.mode = path or self.path, CacheMode.REUSE

    def close(self) -> None:
        """Close the file."""
        super().close()
        if self._file is not None:
            self._file.close()

    def has_resamples(self) -> bool:
        """Return whether there are answers of a second or third sample."""
        return super().has_resamples() or (self._file is not None and self._file.has_resamples())

    def forget(self, keys: Iterable[str], *, kind: str | None = None) -> None:
        """Remove the entries with these keys; those in the file are hidden."""
        forgotten = list(keys)
        super().forget(forgotten, kind=kind)
        self.hidden |= dict.fromkeys(forgotten, kind)

    def find(self, kind: str, **columns: Any) -> list[Entry]:
        """Return the entries of a kind whose columns have these values, by key."""
        found = {entry.key: entry for entry in (self._file.find(kind, **columns) if self._file else [])}
        found |= {entry.key: entry for entry in super().find(kind, **columns)}
        return [found[key] for key in sorted(found)]

    def _fetch_row(self, key: str) -> tuple[Any, Any] | None:
        new = super()._fetch_row(key)
        if new is not None or self._file is None:
            return new
        stored = self._file._fetch_row(key)
        is_hidden = stored is not None and key in self.hidden and self.hidden[key] in (None, stored[0])
        return None if is_hidden else stored


def _choose_objects(firsts: Sequence[str], seconds: Sequence[str]) -> dict[str, Sequence[Label]]:
    """Return the first label, and the last that shares no word with it, as two objects."""
    words = set(firsts[0].casefold().split())
    disjoint = (label for label in reversed(seconds) if words.isdisjoint(label.casefold().split()))
    return {"first": firsts[:1], "second": [next(disjoint, seconds[-1])]}


def _spell(answer: Mapping[str, Sequence[Label]], layout: Layout) -> tuple[str, list[Token]]:
    """Return the text of an answer, and for each field the token of its value, with all labels as alternatives."""
    text, tokens = "", []
    for name, before, after in zip(layout.fields, layout.frame, layout.frame[1:], strict=False):
        text += before
        # Including the character after the value, no label is the beginning of another.
        values = [layout.spell_value(label) + after[:1] for label in answer[name]]
        shares = [1.0 + isinstance(label, str) * (place == 0) for place, label in enumerate(answer[name])]
        top = [(value, math.log(share / sum(shares))) for value, share in zip(values, shares, strict=True)]
        tokens.append(Token(at=len(text.encode()), token=values[0], logprob=top[0][1], top=top))
        text += layout.spell_value(answer[name][0])
    return text + layout.frame[-1], tokens


def _count_shared(text: str, other: str) -> int:
    """Return the length of the common prefix of two texts; bisection is far faster than comparing characters."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _join(messages: Sequence[Message]) -> str:
    return "".join(message.content for message in messages)


def _estimate(text: str) -> int:
    """Return the estimated number of tokens of a text."""
    return round(len(text) / TOKEN_CHARS)
