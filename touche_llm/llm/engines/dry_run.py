"""What a dry run asks instead of a model: an engine that sends nothing, and a cache that writes nothing."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from touche_llm.errors import EngineError
from touche_llm.llm.answers import Token
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.cache_file import Entry
from touche_llm.llm.engines.base import Completion
from touche_llm.llm.request import Message, Request

# English text has about four characters a token.
_TOKEN_CHARS = 4

Label = int | str


@dataclass(slots=True)
class Usage:
    """What the requests of one prompt would cost, in tokens estimated at four characters each, chat template left out.

    `shared_tokens` are those of `prompt_tokens` with which the request before it, of the same prompt, began too: about
    what a prefix cache can save.
    """

    requests: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0


class DryEngine:
    """Answers every request from its schema alone, and keeps account of what would have been sent.

    A question about one document, or about a topic alone, is answered with the same probability for every grade, and of
    words twice as much for the first one: sentences that are on no side would make no pairs. One about several
    documents is answered with certainty. The first label is the one written; a text is made from the field's name.

    Attributes:
        answers: which of several documents is named as the best one, the first shown or the second; where the same
            documents are shown again in another order, it is the same one. A field `order` gets the labels of the
            documents (A, B, …) as they come ("first") or backwards ("second"). As the one that stands higher so far is
            shown first, these two are the answers that change the ranking least and most.
        spent: by the name of the prompt, in the order of first use.
    """

    def __init__(self, answers: Literal["first", "second"]) -> None:
        self.answers = answers
        self.usage: dict[str, Usage] = {}
        self._before: dict[str, str] = {}
        self._chosen: dict[tuple[str, frozenset[str]], str] = {}

    async def complete(self, request: Request) -> Completion:
        """An answer that fits the schema; raises EngineError for a pattern that no text is known for."""
        text, tokens = _spelled(self._answer(request))
        return Completion(
            text=text,
            finish_reason="stop",
            prompt_tokens=self._account(request),
            completion_tokens=_estimate(text),
            tokens=tokens if request.sampling.top_logprobs else [],
        )

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """About how many prompt tokens a chat has."""
        return _estimate(_joined(messages))

    async def truncate(self, text: str, max_tokens: int) -> str:
        """The beginning of `text` that has about this many tokens."""
        return text[: max_tokens * _TOKEN_CHARS]

    def _account(self, request: Request) -> int:
        """Note a request; returns its number of prompt tokens."""
        prompt, text = request.origin.prompt, _joined(request.messages)
        spent = self.usage.setdefault(prompt, Usage())
        tokens = _estimate(text)
        spent.requests += 1
        spent.prompt_tokens += tokens
        spent.shared_tokens += _estimate(text[: _shared(self._before.get(prompt, ""), text)])
        self._before[prompt] = text
        return tokens

    def _answer(self, request: Request) -> dict[str, Sequence[Label]]:
        """For each field the labels that are probable, the written one first."""
        fields: Mapping[str, Any] = request.schema["properties"]
        documents = (request.origin.document_id or "").split()
        if not documents and list(fields) == ["first", "second"]:
            return _two_objects(*(field["enum"] for field in fields.values()))
        answer: dict[str, Sequence[Label]] = {}
        for name, field in fields.items():
            if "pattern" in field:
                answer[name] = [self._text(name, field["pattern"], len(documents))]
            elif len(documents) > 1:
                answer[name] = [field["enum"][documents.index(self._choose(request.origin.topic_id, documents))]]
            else:
                answer[name] = field["enum"]
        return answer

    def _choose(self, topic_id: str, documents: list[str]) -> str:
        chosen = documents[0 if self.answers == "first" else 1]
        return self._chosen.setdefault((topic_id, frozenset(documents)), chosen)

    def _text(self, name: str, pattern: str, documents: int) -> str:
        if name == "order":
            labels = string.ascii_uppercase[:documents]
            text = " > ".join(labels if self.answers == "first" else reversed(labels))
        else:
            text = name.replace("_", "")
        # An answer that does not fit would be asked for again, and the numbers of the dry run would be wrong.
        if re.search(pattern, text) is None:
            raise EngineError(
                f"dry run: no answer is known for the field {name!r} of {documents} documents: {text!r} does not fit "
                f"the pattern {pattern!r:.200}"
            )
        return text


class OverlayCache(Cache):
    """A cache that takes what a file holds and keeps what is new in memory: the file is neither made nor changed.

    It is read as in a replay: SQLite may leave files of its own (`-wal`, `-shm`) beside it. `get` and `find` see both;
    `entries`, `counts` and what is exported are those in memory.

    Attributes:
        hidden: keys that were to be forgotten, each with the kind of entry, or None for any.
    """

    def __init__(self, path: Path | None) -> None:
        """Read the cache `path`, a SQLite file or a cassette (`.jsonl`), if one is given and there.

        Raises:
            DataError: the file is not a cache.
        """
        # An empty file is what a full disk or a kill leaves of a cache that was about to be made.
        there = path is not None and path.exists() and path.stat().st_size > 0
        self._file = Cache(path, CacheMode.REPLAY) if path is not None and there else None
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
        """Whether there are answers of a second or third sample."""
        return super().has_resamples() or (self._file is not None and self._file.has_resamples())

    def forget(self, keys: Iterable[str], *, kind: str | None = None) -> None:
        """Remove the entries under these keys; those of the file are hidden."""
        found = list(keys)
        super().forget(found, kind=kind)
        self.hidden |= dict.fromkeys(found, kind)

    def find(self, kind: str, **columns: Any) -> list[Entry]:
        """All entries of a kind with these columns, by key."""
        found = {entry.key: entry for entry in (self._file.find(kind, **columns) if self._file else [])}
        found |= {entry.key: entry for entry in super().find(kind, **columns)}
        return [found[key] for key in sorted(found)]

    def _row(self, key: str) -> tuple[Any, Any] | None:
        new = super()._row(key)
        if new is not None or self._file is None:
            return new
        there = self._file._row(key)
        is_hidden = there is not None and key in self.hidden and self.hidden[key] in (None, there[0])
        return None if is_hidden else there


def _two_objects(firsts: Sequence[str], seconds: Sequence[str]) -> dict[str, Sequence[Label]]:
    """The first label, and the last that shares no word with it: two objects of which none is in the other."""
    words = set(firsts[0].casefold().split())
    apart = (each for each in reversed(seconds) if words.isdisjoint(each.casefold().split()))
    return {"first": firsts[:1], "second": [next(apart, seconds[-1])]}


def _spelled(answer: Mapping[str, Sequence[Label]]) -> tuple[str, list[Token]]:
    """The text of an answer, and of each field the token that carries the value, with all its labels."""
    text, tokens = "{", []
    for number, (name, labels) in enumerate(answer.items(), start=1):
        text += f"{orjson.dumps(name).decode()}:"
        # With what follows the value no label begins another.
        values = [orjson.dumps(label).decode() + ("," if number < len(answer) else "}") for label in labels]
        shares = [1.0 + isinstance(label, str) * (place == 0) for place, label in enumerate(labels)]
        top = [(value, math.log(share / sum(shares))) for value, share in zip(values, shares, strict=True)]
        tokens.append(Token(at=len(text.encode()), token=values[0], logprob=top[0][1], top=top))
        text += values[0]
    return text, tokens


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike, by halving: comparing characters one by one is far slower."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _joined(messages: Sequence[Message]) -> str:
    return "".join(message.content for message in messages)


def _estimate(text: str) -> int:
    """About how many tokens a text has."""
    return round(len(text) / _TOKEN_CHARS)
