"""Prompt tokens: how many a request has and how much of a document fits, counted by the engine and cached."""

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
from touche_llm.llm.engines.base import Engine, EngineInfo, Rejected, Transient, Unreachable
from touche_llm.llm.request import Message, Request, hash_content
from touche_llm.llm.request_log import log_retry
from touche_llm.llm.truncation import Truncation, apply_truncation, fit_document
from touche_llm.text.passages import RankedPassages

_ResultT = TypeVar("_ResultT")

# So many requests in a row without an answer are the engine's fault, not theirs.
_MOST_GIVEN_UP = 32


@dataclass(slots=True)
class TokenCountingClient:
    """One model behind one cache, as far as it measures requests: the base of `ModelClient`.

    Attributes:
        engine_info: the engine's; in replay those that the cache holds.
        engine: None in replay.
        retry_for: seconds after which a request that keeps failing is given up.
        counts: what was requested, stored and spent.
        misses: requests that a replay did not find.
    """

    engine_info: EngineInfo
    engine: Engine | None
    cache: Cache
    retry_for: float = 600.0
    counts: Counts = field(default_factory=Counts)
    misses: list[Request] = field(default_factory=list)
    # Requests in a row that were given up.
    _given_up: int = 0
    # Tokens of the chat template by the number of messages.
    _overheads: dict[int, int] = field(default_factory=dict)
    _counting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def truncate_document(
        self, request: Callable[[str], Request], whole: Request, document: str | RankedPassages, room: int
    ) -> tuple[str, Cut | None] | FailedRequest:
        """The text of a document with which a request has at most `room` prompt tokens, and what that leaves out.

        Args:
            request: makes the request from a text of the document.
            whole: that of the whole document.
            document: as `request_truncated`.
            room: in tokens, the chat template's included.

        Raises:
            EngineError, PromptError: as `request_truncated`.
        """
        most = await self.bound_tokens(whole)
        if isinstance(most, FailedRequest):
            return most
        if most <= room:
            return apply_truncation(document, Truncation(prompt_tokens=0))

        async def fit(engine: Engine) -> Truncation:
            return await fit_document(
                lambda messages: self._retried(partial(engine.count_tokens, messages)),
                lambda text, tokens: self._retried(partial(engine.truncate, text, tokens)),
                request,
                document,
                room,
            )

        # A number of passages means something only with the passages, and their order.
        more = {} if isinstance(document, str) else {"passages": document.preference}
        found = await self._measured(whole, fit, room=room, **more)
        if isinstance(found, FailedRequest):
            return found
        self.counts.cut += not found.whole
        return apply_truncation(document, found)

    async def count_tokens(self, request: Request) -> int | FailedRequest:
        """The number of prompt tokens of a request, as the engine counts them."""

        async def count(engine: Engine) -> Truncation:
            return Truncation(prompt_tokens=await self._retried(partial(engine.count_tokens, request.messages)))

        found = await self._measured(request, count)
        return found if isinstance(found, FailedRequest) else found.prompt_tokens

    async def _measured(
        self, request: Request, measure: Callable[[Engine], Awaitable[Truncation]], **more: Any
    ) -> Truncation | FailedRequest:
        """What was measured of a request, from the cache or by the engine; `more` is what it depends on beside it."""
        key = hash_content(
            "fit",
            messages=[[message.role, message.content] for message in request.messages],
            model=request.model,
            revision=request.revision,
            chat_template_kwargs=request.chat_template_kwargs,
            **more,
        )
        known = self.cache.get(key, Truncation)
        if known is not None:
            return known
        if self.engine is None:
            self.misses.append(request)
            return FailedRequest([])
        try:
            found = await measure(self.engine)
        except Rejected as rejected:
            return self._failed([Attempt(sample=0, kind="server_error", reason=str(rejected))])
        except Transient as transient:
            return self._failed([self._lost(transient, 0)])
        return await self.cache.store(describe_entry("fit", request, key), found)

    async def bound_tokens(self, request: Request) -> int | FailedRequest:
        """More prompt tokens than this a request cannot have: no token is shorter than a byte."""
        overhead = await self._overhead(request)
        if isinstance(overhead, FailedRequest):
            return overhead
        return overhead + sum(len(message.content.encode("utf-8", "replace")) for message in request.messages)

    async def _overhead(self, request: Request) -> int | FailedRequest:
        """What the chat template adds to a request: known for two messages, counted once for more."""
        size = len(request.messages)
        if size <= 2:
            return self.engine_info.overhead
        async with self._counting:
            if size not in self._overheads:
                # Some templates refuse a message without text; for which topic it is asked does not matter.
                short = tuple(Message(message.role, "x") for message in request.messages)
                origin = replace(request.origin, topic_id="", document_id=None)
                counted = await self.count_tokens(replace(request, messages=short, origin=origin))
                if isinstance(counted, FailedRequest):
                    return counted
                self._overheads[size] = counted
            return self._overheads[size]

    def _failed(self, attempts: list[Attempt]) -> FailedRequest:
        self.counts.failures += 1
        return FailedRequest(attempts)

    def _lost(self, transient: Transient, sample: int) -> Attempt:
        """The attempt of a request that was given up; ends the run when too many were, one after the other."""
        self._given_up += 1
        if self._given_up >= _MOST_GIVEN_UP:
            raise EngineError(
                f"the last {self._given_up} requests were given up without a reply ({transient.reason}); "
                f"see to the server; {describe_resume(self.cache.path, self.cache.mode)}"
            )
        return Attempt(sample=sample, kind=transient.kind, reason=transient.reason)

    async def _retried(self, call: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
        """Call the engine, again and again while its failures may pass."""

        def note(problem: Transient) -> None:
            self.counts.retries += 1
            self.counts.problem = str(problem)
            log_retry(problem)

        try:
            return await retry(call, self.retry_for, Transient, note)
        except Unreachable as error:
            raise EngineError(
                f"the engine has not been reachable for {self.retry_for:g} s ({error.reason}); "
                f"start the server; {describe_resume(self.cache.path, self.cache.mode)}"
            ) from error


def describe_entry(kind: str, request: Request, key: str) -> EntryMetadata:
    """Return the heading under which what came of a request is stored."""
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
