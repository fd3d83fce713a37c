"""Prompt tokens of requests, counted by the engine and cached, and truncation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from touche_llm.data.records import Attempt, Cut
from touche_llm.data.transport import retry
from touche_llm.errors import EngineError
from touche_llm.llm.answers import FailedRequest
from touche_llm.llm.cache import Cache, describe_resume
from touche_llm.llm.cache_file import EntryMetadata
from touche_llm.llm.counts import Counts
from touche_llm.llm.engines.base import CountingEngine, EngineDeath, EngineInfo, Rejected, Transient
from touche_llm.llm.request import Message, Request, hash_content
from touche_llm.llm.request_log import log_retry
from touche_llm.llm.truncation import Truncation, apply_truncation, fit_document
from touche_llm.text.passages import RankedPassages

_ResultT = TypeVar("_ResultT")

# So many requests in a row without a reply are a fault of the server, not of the requests.
_MAX_LOST_IN_A_ROW = 32


@dataclass(slots=True)
class TokenCountingClient:
    """Client that counts prompt tokens and truncates documents; base of the clients of models.

    Attributes:
        engine_info: Description of the engine; in a replay, from the cache.
        engine: Engine; None in a replay.
        retry_for: Seconds after which a failing request is no longer retried.
        misses: Requests that a replay did not find in the cache.
    """

    engine_info: EngineInfo
    engine: CountingEngine | None
    cache: Cache
    retry_for: float = 600.0
    counts: Counts = field(default_factory=Counts)
    misses: list[Request] = field(default_factory=list)
    # Requests in a row without a reply.
    _lost_in_a_row: int = 0
    # Tokens of the chat template by number of messages.
    _overheads: dict[int, int] = field(default_factory=dict)
    _overhead_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def truncate_document(
        self, build_request: Callable[[str], Request], whole: Request, document: str | RankedPassages, room: int
    ) -> tuple[str, Cut | None] | FailedRequest:
        """Return the text of a document with which a prompt has at most `room` tokens, and its truncation, if any.

        Raises:
            EngineError: As for `ModelClient.request`.
            PromptError: The prompt alone leaves no room for the document.
        """
        bound = await self.bound_tokens(whole)
        if isinstance(bound, FailedRequest):
            return bound
        if bound <= room:
            return apply_truncation(document, Truncation(prompt_tokens=0))

        async def fit(engine: CountingEngine) -> Truncation:
            return await fit_document(
                lambda messages: self._retry(partial(engine.count_tokens, messages)),
                lambda text, max_tokens: self._retry(partial(engine.truncate, text, max_tokens)),
                build_request,
                document,
                room,
            )

        # A number of passages is meaningful only with the passages and their order.
        passages = {} if isinstance(document, str) else {"passages": document.preference}
        truncation = await self._measure(whole, fit, room=room, **passages)
        if isinstance(truncation, FailedRequest):
            return truncation
        self.counts.cut += not truncation.is_complete
        return apply_truncation(document, truncation)

    async def count_tokens(self, request: Request) -> int | FailedRequest:
        """Return the number of prompt tokens of a request, as the engine counts them."""

        async def count(engine: CountingEngine) -> Truncation:
            return Truncation(prompt_tokens=await self._retry(partial(engine.count_tokens, request.messages)))

        counted = await self._measure(request, count)
        return counted if isinstance(counted, FailedRequest) else counted.prompt_tokens

    async def _measure(
        self, request: Request, measure: Callable[[CountingEngine], Awaitable[Truncation]], **parameters: Any
    ) -> Truncation | FailedRequest:
        """Return the measurement of a request from the cache or from the engine."""
        key = hash_content(
            "fit",
            messages=[[message.role, message.content] for message in request.messages],
            model=request.model,
            revision=request.revision,
            chat_template_kwargs=request.chat_template_kwargs,
            **parameters,
        )
        cached = self.cache.get(key, Truncation)
        if cached is not None:
            return cached
        if self.engine is None:
            self.misses.append(request)
            return FailedRequest([])
        try:
            measured = await measure(self.engine)
        except Rejected as rejected:
            return self._fail([Attempt(sample=0, kind="server_error", reason=str(rejected))])
        except Transient as transient:
            return self._fail([self._record_lost(transient, 0)])
        return await self.cache.store(describe_entry("fit", request, key), measured)

    async def bound_tokens(self, request: Request) -> int | FailedRequest:
        """Return an upper bound of the prompt tokens of a request: no token is shorter than a byte."""
        overhead = await self._count_overhead(request)
        if isinstance(overhead, FailedRequest):
            return overhead
        return overhead + sum(len(message.content.encode("utf-8", "replace")) for message in request.messages)

    async def _count_overhead(self, request: Request) -> int | FailedRequest:
        """Return the tokens that the chat template adds: known for a lone question, counted once for longer chats."""
        size = len(request.messages)
        if size <= 2 and request.messages[-1].role == "user":
            return self.engine_info.overhead
        async with self._overhead_lock:
            if size not in self._overheads:
                # Some templates refuse empty messages. The overhead does not depend on the topic.
                short = tuple(Message(message.role, "x") for message in request.messages)
                origin = replace(request.origin, topic_id="", document_id=None)
                counted = await self.count_tokens(replace(request, messages=short, origin=origin))
                if isinstance(counted, FailedRequest):
                    return counted
                self._overheads[size] = counted
            return self._overheads[size]

    def _fail(self, attempts: list[Attempt]) -> FailedRequest:
        self.counts.failures += 1
        return FailedRequest(attempts)

    def _record_lost(self, transient: Transient, sample: int) -> Attempt:
        """Return the attempt of a request without a reply; raise EngineError after too many in a row."""
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= _MAX_LOST_IN_A_ROW:
            raise EngineError(
                f"{self._lost_in_a_row} requests in a row failed without a reply ({transient.reason}); "
                f"check the server; {self._describe_resume()}"
            )
        return Attempt(sample=sample, kind=transient.kind, reason=transient.reason)

    def _describe_resume(self) -> str:
        """Return where the results so far are and how to resume, for a message."""
        return describe_resume(self.cache.path, self.cache.mode)

    async def _retry(self, call: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
        """Call the engine, and retry transient failures."""

        def record(problem: Transient) -> None:
            self.counts.retries += 1
            self.counts.problem = str(problem)
            log_retry(problem)

        try:
            return await retry(call, self.retry_for, Transient, record)
        except EngineDeath as error:
            raise EngineError(f"{error}; start the server; {self._describe_resume()}") from error


def describe_entry(kind: str, request: Request, key: str) -> EntryMetadata:
    """Return the metadata of the cache entry for the result of a request."""
    origin = request.origin
    return EntryMetadata(
        key=key,
        kind=kind,
        model=request.model,
        prompt=origin.prompt,
        prompt_version=origin.prompt_version,
        prompt_hash=origin.prompt_hash,
        topic=origin.topic_id,
        document=origin.document_id,
        sample=request.sample,
    )
