"""What a batch asks instead of a server: replies that came in files, and what has none is noted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from touche_llm.errors import UsageError
from touche_llm.excerpts import Excerpts
from touche_llm.files import read_records
from touche_llm.llm.answer import FailureKind, Unusable
from touche_llm.llm.batch_replies import Replies
from touche_llm.llm.chat_reply import completion_of
from touche_llm.llm.engine import Completion, Rejected
from touche_llm.llm.language_model import LanguageModel, Unanswered
from touche_llm.llm.request import Message, Request
from touche_llm.llm.tokenizer import ChatTokenizer
from touche_llm.records import Attempt, Cut
from touche_llm.run_files import BATCH_UNUSABLE

_ValueT = TypeVar("_ValueT")
# Which status it was is in the reason.
_REFUSED = 400


class UnusableAnswer(Attempt, frozen=True, kw_only=True):
    """A reply of a batch that could not be used, and the key of its request: the next export asks for another sample.

    Where `kind` is "server_error", the request itself was refused, and the question is given up.
    """

    key: str
    kind: FailureKind

    @property
    def attempt(self) -> Attempt:
        """What a failure says of it."""
        return Attempt(sample=self.sample, kind=self.kind, reason=self.reason, text=self.text)


def known_unusable(folder: Path) -> dict[str, UnusableAnswer]:
    """What the imports for a run's folder could not use, by key; raises DataError for a file of another form."""
    path = folder / BATCH_UNUSABLE
    if not path.exists():
        return {}
    return {each.key: each for each in read_records(path, UnusableAnswer, "unusable answers")}


class _NoTokenizer(Exception):
    """A text has to be measured, and there is nothing to measure it with."""


class BatchEngine:
    """Answers with replies, and keeps what it has none to; the caller's task is ended as cancelled then.

    Attributes:
        pending: requests without an answer.
        taken: keys of those that were answered now.
        fingerprint: what vLLM called itself, if it did.
    """

    def __init__(
        self,
        replies: Replies,
        unusable: Mapping[str, UnusableAnswer],
        tokenizer: ChatTokenizer | None,
        *,
        importing: bool,
    ) -> None:
        """Nothing is answered yet.

        Args:
            replies: by key.
            unusable: by key what was known before to be of no use.
            tokenizer: measures texts.
            importing: without a tokeniser, whoever has to measure waits; else that is an error.
        """
        self._replies, self._unusable, self._tokenizer, self._importing = replies, unusable, tokenizer, importing
        self.pending: dict[str, Request] = {}
        self.taken: set[str] = set()
        self.fingerprint: str | None = None

    async def complete(self, request: Request) -> Completion:
        """Answer one request; raises Unusable or Rejected for one that is known to have had no usable answer."""
        key = request.key
        before = self._unusable.get(key)
        if before is not None:
            if before.kind == "server_error":
                raise Rejected(_REFUSED, before.reason)
            raise Unusable(before.kind, before.reason, before.text)
        problem = self._replies.problem(key)
        if problem is not None and problem.final:
            raise Rejected(_REFUSED, problem.reason)
        reply = self._replies.answer(key)
        if reply is None:
            self.pending[key] = request
            raise asyncio.CancelledError
        self.taken.add(key)
        completion = completion_of(reply, request.read_fields)
        self.fingerprint = self.fingerprint or completion.fingerprint
        return completion

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Number of prompt tokens of a chat, template included."""
        return self._measured(lambda tokenizer: tokenizer.count(messages))

    async def head(self, text: str, tokens: int) -> str:
        """The beginning of `text` that has about this many tokens."""
        return self._measured(lambda tokenizer: tokenizer.head(text, tokens))

    def _measured(self, measure: Callable[[ChatTokenizer], _ValueT]) -> _ValueT:
        if self._tokenizer is not None:
            return measure(self._tokenizer)
        if self._importing:
            raise asyncio.CancelledError  # the next export measures it
        raise _NoTokenizer


class BatchModel(LanguageModel):
    """A language model that names what it could not measure."""

    async def shorten(
        self, request: Callable[[str], Request], whole: Request, document: str | Excerpts, room: int
    ) -> tuple[str, Cut | None] | Unanswered:
        """As that of the language model."""
        try:
            return await super().shorten(request, whole, document, room)
        except _NoTokenizer as error:
            raise _unmeasured(whole, f"may have more than the {room:,} prompt tokens that it can have") from error

    async def count_tokens(self, request: Request) -> int | Unanswered:
        """As that of the language model."""
        try:
            return await super().count_tokens(request)
        except _NoTokenizer as error:
            raise _unmeasured(request, "the room for documents has to be counted") from error


def _unmeasured(request: Request, what: str) -> UsageError:
    origin = request.origin
    where = f"topic {origin.topic_id}" + (f", document {origin.document_id}" if origin.document_id else "")
    return UsageError(
        f"prompt {origin.prompt}, {where}: {what}: give a folder with the model's tokeniser (--tokenizer FOLDER) or "
        "more room (--context; in comparisons --set ranking.document_tokens=…)"
    )
