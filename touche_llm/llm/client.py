"""Base of the clients of models: connection, retries, when to give up, token counts in the cache."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from touche_llm.data.records import Attempt
from touche_llm.errors import EngineError, Rejected, Transient, Unreachable
from touche_llm.llm.cache import Cache, EntryMetadata, describe_resume
from touche_llm.llm.counts import Counts
from touche_llm.llm.protocol import CountingEngine, EngineInfo
from touche_llm.llm.request import Message, Request
from touche_llm.llm.retries import retry
from touche_llm.llm.truncation import (
    TruncatedDocument,
    Truncation,
    TruncationSearch,
    apply_truncation,
)
from touche_llm.text.passages import RankedPassages

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """Request to which no usable answer came.

    Attributes:
        request: Request as it would be or was sent.
        attempts: Attempts to get an answer, at least one.
        is_unmeasured: Whether the failure came before: the tokens of its document, which may be too
            long, could not be counted.
    """

    request: Request
    attempts: list[Attempt]
    is_unmeasured: bool = False


@dataclass(frozen=True, slots=True)
class UncachedRequest:
    """Request of a replay whose answer the cache lacks.

    Attributes:
        request: Request as it would be sent.
        is_unmeasured: Whether the cache already lacks the tokens of its document, which may be too
            long.
    """

    request: Request
    is_unmeasured: bool = False


# Request without a usable answer.
UnansweredRequest = FailedRequest | UncachedRequest
_ResultT = TypeVar("_ResultT")

# Connects to an engine.
StartUp = Callable[[], Awaitable[EngineInfo]]
# So many requests in a row without a reply are a fault of the server, not of the requests.
_MAX_LOST_IN_A_ROW = 32
# Kind of the cache entries with measurements of prompts.
_MEASUREMENT = "fit"


@dataclass(slots=True)
class EngineClient:
    """Base of the clients of models: connection, retries, token counts, truncated documents.

    Attributes:
        engine_info: Description of the engine; from the cache until it is connected.
        engine: Engine that answers; None in a replay.
        cache: Cache of answers and token counts.
        retry_for: Seconds after the first failure of a request in which it is retried.
        start_up: Connects to the engine before the first request; None if it is connected.
        counts: Counts of the requests so far.
        misses: Requests that a replay did not find in the cache.
    """

    engine_info: EngineInfo
    engine: CountingEngine | None
    cache: Cache
    retry_for: float = 600.0
    start_up: StartUp | None = None
    counts: Counts = field(default_factory=Counts)
    misses: list[Request] = field(default_factory=list)
    # Requests in a row without a reply.
    _lost_in_a_row: int = 0
    # Tokens of the chat template by number of messages.
    _overheads: dict[int, int] = field(default_factory=dict)
    _overhead_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _start_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _start_failure: EngineError | None = None

    async def truncate_document(
        self,
        build_request: Callable[[str], Request],
        complete_request: Request,
        document: str | RankedPassages,
        room: int,
    ) -> TruncatedDocument | UnansweredRequest:
        """Truncate a document so that its prompt has at most `room` tokens.

        The engine counts tokens only if the number of bytes may be too large: no token is shorter
        than a byte.

        Args:
            build_request: Builds the request with a text in place of the document.
            complete_request: Request with the complete document.
            document: Text, or passages in the order in which they are kept.
            room: Max number of prompt tokens.

        Returns:
            What the prompt shows of the document, or why its tokens are unknown.

        Raises:
            EngineError: The engine failed.
            PromptError: The prompt alone leaves no room for the document.
        """
        max_tokens = await self.bound_tokens(complete_request)
        if isinstance(max_tokens, UnansweredRequest):
            return max_tokens
        if max_tokens <= room:
            return apply_truncation(document, Truncation(prompt_tokens=0))

        search = self._make_search(build_request, room, complete_request.origin.location)
        truncation = await self._measure(
            complete_request,
            measure=partial(search.find, document),
            parameters=_list_key_parts(document, room),
        )
        if isinstance(truncation, UnansweredRequest):
            return truncation

        if not truncation.is_complete:
            self.counts.cut += 1
        return apply_truncation(document, truncation)

    def _make_search(
        self, build_request: Callable[[str], Request], room: int, location: str
    ) -> TruncationSearch:
        """Return the search for a truncation, which counts and truncates with the engine."""

        async def count(text: str) -> int:
            return await self._count_with_engine(build_request(text))

        return TruncationSearch(
            count=count,
            truncate=self._truncate_with_engine,
            room=room,
            location=location,
        )

    async def count_tokens(self, request: Request) -> int | UnansweredRequest:
        """Return the number of prompt tokens of a request, as the engine counts them.

        Raises:
            EngineError: The engine failed.
        """

        async def count() -> Truncation:
            # Counts are stored like truncations of a document that fits.
            return Truncation(prompt_tokens=await self._count_with_engine(request))

        counted = await self._measure(request, count, parameters={})
        if isinstance(counted, UnansweredRequest):
            return counted
        return counted.prompt_tokens

    async def _count_with_engine(self, request: Request) -> int:
        """Return the number of prompt tokens of a request, counted by the engine, with retries."""
        engine = self.engine
        assert engine is not None, "nothing is counted in a replay"
        # The counter is known only once the engine is connected.
        return await self._retry(lambda: engine.counter.count_tokens(request.messages))

    async def _truncate_with_engine(self, text: str, max_tokens: int) -> str:
        """Return the beginning of a text with about this many tokens, with retries."""
        engine = self.engine
        assert engine is not None, "nothing is truncated in a replay"
        return await self._retry(lambda: engine.counter.truncate(text, max_tokens))

    async def _measure(
        self,
        request: Request,
        measure: Callable[[], Awaitable[Truncation]],
        parameters: Mapping[str, Any],
    ) -> Truncation | UnansweredRequest:
        """Return the measurement of a request from the cache, or else make it and store it.

        A measurement is the truncation with which a prompt fits, with its number of tokens.

        Args:
            request: Request to measure, which is not sent.
            measure: Measures with the engine.
            parameters: What the measurement depends on, besides the prompt.

        Returns:
            Measurement, or the request as one that cannot be sent: a replay lacks the measurement,
            or it failed.

        Raises:
            EngineError: The engine failed.
        """
        key = request.make_key(_MEASUREMENT, **parameters)
        cached = self.cache.get(key, Truncation)
        if cached is not None:
            return cached
        if self.engine is None:
            return self._miss(request, is_unmeasured=True)

        try:
            measured = await measure()
        except Rejected as rejected:
            attempt = Attempt(sample=0, kind="server_error", reason=str(rejected))
        except Transient as transient:
            attempt = self._record_lost(transient, sample=0)
        else:
            return await self.cache.store(describe_entry(_MEASUREMENT, request, key), measured)
        return self._fail(request, [attempt], is_unmeasured=True)

    async def bound_tokens(self, request: Request) -> int | UnansweredRequest:
        """Return an upper bound of the prompt tokens of a request: no token is shorter than a byte.

        Raises:
            EngineError: The engine failed.
        """
        overhead = await self._count_overhead(request)
        if isinstance(overhead, UnansweredRequest):
            return overhead
        content_bytes = 0
        for message in request.messages:
            content_bytes += len(message.content.encode("utf-8", "replace"))
        return overhead + content_bytes

    async def _count_overhead(self, request: Request) -> int | UnansweredRequest:
        """Return the number of tokens that the chat template adds to the messages of a request.

        For a single question it is known since the start-up. For longer chats it is counted once
        for each number of messages.
        """
        message_count = len(request.messages)
        is_single_question = message_count <= 2 and request.messages[-1].role == "user"
        if is_single_question:
            return self.engine_info.overhead

        # Requests at the same time wait for the first count.
        async with self._overhead_lock:
            if message_count not in self._overheads:
                counted = await self.count_tokens(_shorten_messages(request))
                if isinstance(counted, UnansweredRequest):
                    return counted
                self._overheads[message_count] = counted
            return self._overheads[message_count]

    def _miss(self, request: Request, *, is_unmeasured: bool = False) -> UncachedRequest:
        """Record and return a request whose answer the cache of a replay lacks."""
        self.misses.append(request)
        return UncachedRequest(request, is_unmeasured=is_unmeasured)

    def _fail(
        self, request: Request, attempts: list[Attempt], *, is_unmeasured: bool = False
    ) -> FailedRequest:
        """Count and return a failure."""
        self.counts.failures += 1
        return FailedRequest(request, attempts, is_unmeasured=is_unmeasured)

    def _record_lost(self, transient: Transient, sample: int) -> Attempt:
        """Count a request without a reply, and return its attempt.

        Args:
            transient: Last failure of the request.
            sample: Index of its sample.

        Raises:
            EngineError: The server is unreachable, or has not replied for 32 requests.
        """
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= _MAX_LOST_IN_A_ROW or isinstance(transient, Unreachable):
            raise EngineError(
                f"the server does not reply to requests any more ({transient.reason}); check it; "
                f"{self._describe_resume()}"
            )
        return Attempt(sample=sample, kind=transient.kind, reason=transient.reason)

    def _describe_resume(self) -> str:
        """Return where the results so far are and how to resume, for a message."""
        return describe_resume(self.cache.path, self.cache.mode)

    async def _retry(self, call: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
        """Call the engine once it is connected, and retry transient failures.

        Raises:
            EngineError: The engine cannot be used.
            Rejected: The engine refuses the request.
            Transient: There was no reply until the last retry.
        """
        await self.connect()
        return await retry(call, self.retry_for, self._record_retry)

    def _record_retry(self, problem: Transient) -> None:
        """Count and log a retry."""
        self.counts.retries += 1
        self.counts.problem = str(problem)
        # The text after the colon may be the server's and may quote the prompt.
        reason = problem.reason.partition(":")[0]
        _LOG.info("retry: %s: %s", problem.kind, reason[:100])

    async def connect(self) -> EngineInfo:
        """Connect to the engine unless it is connected, and return its description.

        Raises:
            EngineError: The engine cannot be used; the error of the first call is raised again.
        """
        async with self._start_lock:
            if self._start_failure is not None:
                raise self._start_failure
            if self.start_up is None:
                return self.engine_info

            try:
                self.engine_info = await self.start_up()
            except EngineError as error:
                self._start_failure = error
                raise
            self.start_up = None
            return self.engine_info


def _list_key_parts(document: str | RankedPassages, room: int) -> dict[str, Any]:
    """Return what the truncation of a document depends on, besides its prompt."""
    parts: dict[str, Any] = {"room": room}
    if not isinstance(document, str):
        # A number of passages is meaningful only with the passages and their order.
        parts["passages"] = document.preference
    return parts


def _shorten_messages(request: Request) -> Request:
    """Return a request with one letter in each message, to count the tokens of the chat template."""
    # Some templates refuse empty messages.
    messages = tuple(Message(message.role, "x") for message in request.messages)
    # The overhead does not depend on the topic.
    origin = replace(request.origin, topic_id="", document_id=None)
    return replace(request, messages=messages, origin=origin)


def describe_entry(kind: str, request: Request, key: str) -> EntryMetadata:
    """Return the metadata of the cache entry for the result of a request.

    Args:
        kind: Kind of the result.
        request: Request of the result.
        key: Key of the entry.
    """
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
