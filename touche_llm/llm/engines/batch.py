"""Engine of batch exports and imports: answers from files of responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from touche_llm.errors import UsageError
from touche_llm.llm.answers import FailedRequest
from touche_llm.llm.engines.base import Completion, CountingEngine, Rejected
from touche_llm.llm.engines.batch_replies import Problem, Replies
from touche_llm.llm.engines.chat_reply import ChatReply, read_completion
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Message, Request
from touche_llm.llm.tokenizer import ChatTokenizer
from touche_llm.llm.truncation import Truncation

_ValueT = TypeVar("_ValueT")
# The status itself is in the reason.
_REJECTED_STATUS = 400


class _NoTokenizer(Exception):
    """Tokens have to be counted without a tokenizer."""


class BatchEngine:
    """Engine that answers from responses; a request without one is recorded, and the task that waits is cancelled.

    Attributes:
        pending: Requests without an answer.
        taken: Keys of the requests answered now.
        fingerprint: Fingerprint of the software, if the responses hold one.
    """

    def __init__(self, replies: Replies, tokenizer: ChatTokenizer | None, *, is_import: bool) -> None:
        """Initialise the engine; with `is_import`, counting without a tokenizer is left to the next export."""
        self._replies, self._tokenizer, self._is_import = replies, tokenizer, is_import
        self.pending: dict[str, Request] = {}
        self.taken: set[str] = set()
        self.fingerprint: str | None = None

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request; raise Rejected if the engine rejected it."""
        reply = self._replies.find(request)
        if isinstance(reply, Problem) and reply.is_final:
            raise Rejected(_REJECTED_STATUS, reply.reason)
        if not isinstance(reply, ChatReply):
            self.pending[request.key] = request
            raise asyncio.CancelledError
        self.taken.add(request.key)
        completion = read_completion(reply, request.layout if request.sampling.top_logprobs else None)
        self.fingerprint = self.fingerprint or completion.fingerprint
        return completion

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        return self._measure(lambda tokenizer: tokenizer.count_tokens(messages))

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return the beginning of `text` with about this many tokens."""
        return self._measure(lambda tokenizer: tokenizer.truncate(text, max_tokens))

    def _measure(self, measure: Callable[[ChatTokenizer], _ValueT]) -> _ValueT:
        if self._tokenizer is not None:
            return measure(self._tokenizer)
        if self._is_import:
            raise asyncio.CancelledError
        raise _NoTokenizer


class BatchClient(ModelClient):
    """Model client whose errors name the request whose tokens cannot be counted."""

    async def _measure(
        self, request: Request, measure: Callable[[CountingEngine], Awaitable[Truncation]], **parameters: Any
    ) -> Truncation | FailedRequest:
        try:
            return await super()._measure(request, measure, **parameters)
        except _NoTokenizer as error:
            problem = "the tokens left for documents have to be counted"
            if "room" in parameters:
                problem = f"may have more than the {parameters['room']:,} prompt tokens available"
            raise UsageError(
                f"{request.origin.location}: {problem}; give a folder with the model's tokenizer (`engine.tokenizer`) "
                "or more room (`engine.context`; in comparisons `ranking.document_tokens`)"
            ) from error
