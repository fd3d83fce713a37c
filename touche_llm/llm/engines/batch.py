"""Engine of an export or import: answers from files of responses, and a list of the requests without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from touche_llm.data.records import Cut
from touche_llm.errors import UsageError
from touche_llm.llm.answers import FailedRequest
from touche_llm.llm.engines.base import Completion, Rejected
from touche_llm.llm.engines.batch_replies import Replies
from touche_llm.llm.engines.chat_reply import read_completion
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Message, Request
from touche_llm.llm.tokenizer import ChatTokenizer
from touche_llm.text.passages import RankedPassages

_ValueT = TypeVar("_ValueT")
# Which status it was is in the reason.
_REFUSED = 400


class _NoTokenizer(Exception):
    """A text has to be measured without a tokeniser."""


class BatchEngine:
    """Answers requests from responses; one without a response is noted, and cancels the task that waits for it.

    Attributes:
        pending: Requests without an answer.
        taken: Keys of the requests answered now.
        fingerprint: Fingerprint of the software, if the responses hold one.
    """

    def __init__(
        self,
        replies: Replies,
        tokenizer: ChatTokenizer | None,
        *,
        importing: bool,
        give_up: bool = False,
    ) -> None:
        """Initialise the engine.

        Args:
            replies: Responses by key.
            tokenizer: The model's tokeniser, if there is one.
            importing: Whether a text that cannot be measured waits for the next export; otherwise it is an error.
            give_up: Whether a response without an answer fails its request; otherwise only a refusal does.
        """
        self._replies, self._tokenizer, self._importing, self._give_up = replies, tokenizer, importing, give_up
        self.pending: dict[str, Request] = {}
        self.taken: set[str] = set()
        self.fingerprint: str | None = None

    async def complete(self, request: Request) -> Completion:
        """Answer a request; raise Rejected if its response holds no answer and it is not sent again."""
        key = request.key
        problem = self._replies.problem(key)
        if problem is not None and (problem.final or self._give_up):
            raise Rejected(_REFUSED, problem.reason)
        reply = self._replies.answer(key)
        if reply is None:
            self.pending[key] = request
            raise asyncio.CancelledError
        self.taken.add(key)
        completion = read_completion(reply, request.logprob_fields)
        self.fingerprint = self.fingerprint or completion.fingerprint
        return completion

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        return self._measured(lambda tokenizer: tokenizer.count_tokens(messages))

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return the beginning of `text` that has about this many tokens."""
        return self._measured(lambda tokenizer: tokenizer.truncate(text, max_tokens))

    def _measured(self, measure: Callable[[ChatTokenizer], _ValueT]) -> _ValueT:
        if self._tokenizer is not None:
            return measure(self._tokenizer)
        if self._importing:
            raise asyncio.CancelledError  # the next export measures it
        raise _NoTokenizer


class BatchClient(ModelClient):
    """A language model whose errors name the text that it could not measure."""

    async def truncate_document(
        self, request: Callable[[str], Request], whole: Request, document: str | RankedPassages, room: int
    ) -> tuple[str, Cut | None] | FailedRequest:
        """As that of the language model."""
        try:
            return await super().truncate_document(request, whole, document, room)
        except _NoTokenizer as error:
            raise _unmeasured(whole, f"may have more than the {room:,} prompt tokens that it can have") from error

    async def count_tokens(self, request: Request) -> int | FailedRequest:
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
