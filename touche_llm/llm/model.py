"""Model client: answers from the cache or the engine, with retries and resampling."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, NamedTuple

from touche_llm.data.records import Attempt, Cut, Reading
from touche_llm.errors import DataError, EngineError, Rejected, ReplayMiss, Transient, Unusable
from touche_llm.llm.answer import MAX_CHARS, OUTCOMES, Answer, UnusableAnswer
from touche_llm.llm.answer_schema import AnswerForm, AnswerT, FreeText, Layout, get_labels
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.client import EngineClient, FailedRequest, UnansweredRequest, describe_entry
from touche_llm.llm.label_probabilities import (
    TokenizedAnswer,
    check_logprobs,
    read_fields,
    select_label_tokens,
)
from touche_llm.llm.label_statistics import LabelTally
from touche_llm.llm.parsing import parse_answer
from touche_llm.llm.protocol import Completion, Engine
from touche_llm.llm.request import MAX_SAMPLES, Request, continue_thought, request_thought
from touche_llm.llm.settings import DEFAULT_CONCURRENCY, SamplingConfig
from touche_llm.llm.truncation import TruncatedDocument, get_complete_text
from touche_llm.text.passages import RankedPassages
from touche_llm.text.quoting import quote

_LOG = logging.getLogger(__name__)
# Kinds of attempts after which no other sample is requested: the server refused the request, or did
# not reply.
_SERVER_KINDS = ("server_error", "timeout")


@dataclass(frozen=True)
class AnsweredRequest(Generic[AnswerT]):
    """Request with a usable answer.

    Attributes:
        request: Request of the sample that was answered.
        answer: Answer, as it is stored.
        value: Parsed answer.
        is_cached: Whether the answer was stored before.
        thought: Reasoning before the answer; empty without any.
        thought_key: Key of the reasoning; empty without any.
    """

    request: Request
    answer: Answer
    value: AnswerT
    is_cached: bool = field(default=False, compare=False)
    thought: str = ""
    thought_key: str = ""

    @property
    def key(self) -> str:
        """Key of the answer."""
        return self.request.key

    @property
    def sample(self) -> int:
        """Index of the sample."""
        return self.request.sample

    @property
    def layout(self) -> Layout:
        """Layout of the answer."""
        return self.request.layout

    @cached_property
    def readings(self) -> Mapping[str, Reading]:
        """Labels of each field that has labels; without probabilities if any field lacks them."""
        labels = get_labels(type(self.value))
        answered = self.value.model_dump(include=set(labels))
        answer = TokenizedAnswer(self.answer.text, self.answer.tokens, self.layout)
        return read_fields(answer, labels, answered)


class DocumentResult(NamedTuple, Generic[AnswerT]):
    """Result of a request about a document.

    Attributes:
        result: Answer, if a usable one came.
        cut: Truncation of the document; None if it is complete or its length is unknown.
    """

    result: AnsweredRequest[AnswerT] | UnansweredRequest
    cut: Cut | None


@dataclass(slots=True, kw_only=True)
class ModelClient(EngineClient):
    """Client of one model with one answer cache; `open_client` makes it.

    Attributes:
        sampling: Settings of the requests.
        concurrency: Max number of requests at a time.
        retry_failures: Whether to send requests again for which the cache holds only unusable
            answers.
        labels: Tally of the answers whose labels are to be read from log-probabilities.
    """

    engine: Engine | None
    sampling: SamplingConfig
    concurrency: int = DEFAULT_CONCURRENCY
    retry_failures: bool = False
    labels: LabelTally = field(default_factory=LabelTally)
    # Keys of the requests that this run has sent, or whose cache entries it has removed: equal
    # requests that follow use what is stored since, as a replay will.
    _refreshed: set[str] = field(default_factory=set)
    _in_flight: dict[str, asyncio.Task[AnsweredRequest[Any] | UnansweredRequest]] = field(
        default_factory=dict
    )

    async def request(
        self, request: Request, model: type[AnswerT]
    ) -> AnsweredRequest[AnswerT] | UnansweredRequest:
        """Return the answer to a request, after reasoning if it requests that.

        A request whose answer a replay lacks is added to `misses`.

        Args:
            request: Request, with the schema of `model`.
            model: Model of the answer.

        Raises:
            DataError: A stored answer is unusable.
            EngineError: The engine failed.
            PromptError: The prompt and the reasoning leave no room for the answer.
        """
        if request.thinking is None:
            return await self.request_one(request, model)

        reasoned = await self.request_one(request_thought(request), FreeText)
        if isinstance(reasoned, UnansweredRequest):
            return reasoned

        thought = await self._truncate_thought(request, reasoned.value.text)
        if isinstance(thought, UnansweredRequest):
            return thought

        answered = await self.request_one(continue_thought(request, thought.text), model)
        if isinstance(answered, UnansweredRequest):
            return answered
        return replace(answered, thought=thought.text, thought_key=reasoned.key)

    async def _truncate_thought(
        self, request: Request, completion: str
    ) -> TruncatedDocument | UnansweredRequest:
        """Return the thought in a completion, truncated so that an answer fits after it.

        A thought can be too long although the model generated it: as a part of the next prompt, its
        text can have more tokens.

        Raises:
            EngineError: The engine failed.
            PromptError: The prompt alone leaves no room for the answer.
        """
        assert request.thinking is not None, "the request asked for a thought"
        thought = request.thinking.clean(completion)
        build_request = partial(continue_thought, request)
        return await self.truncate_document(
            build_request,
            complete_request=build_request(thought),
            document=thought,
            room=self.engine_info.context - request.sampling.max_tokens,
        )

    async def request_truncated(
        self,
        build_request: Callable[[str], Request],
        document: str | RankedPassages,
        model: type[AnswerT],
    ) -> DocumentResult[AnswerT]:
        """Return the answer to a request about a document, truncated if it does not fit the context.

        A text is truncated at a sentence end if one is near; of ranked passages, as many of the
        best as fit are kept.

        Args:
            build_request: Builds the request with a text in place of the document.
            document: Text, or passages in the order in which they are kept.
            model: Model of the answer.

        Raises:
            DataError: A stored answer is unusable.
            EngineError: The engine failed.
            PromptError: The prompt alone leaves no room for the document, or it and the reasoning
                leave none for the answer.
        """
        complete_text = get_complete_text(document)
        complete_request = build_request(complete_text)
        truncated = await self.truncate_document(
            build_request,
            complete_request=complete_request,
            document=document,
            room=self.engine_info.context - complete_request.max_tokens,
        )
        if isinstance(truncated, UnansweredRequest):
            return DocumentResult(truncated, cut=None)

        request = complete_request
        if truncated.text != complete_text:
            request = build_request(truncated.text)
        return DocumentResult(await self.request(request, model), truncated.cut)

    async def request_one(
        self, request: Request, model: type[AnswerT]
    ) -> AnsweredRequest[AnswerT] | UnansweredRequest:
        """Return the answer to a request that is sent as it is.

        Equal requests at the same time are sent once.

        Raises:
            DataError: A stored answer is unusable.
            EngineError: The engine failed.
        """
        equal_request = self._in_flight.get(request.key)
        if equal_request is not None:
            # If this request is cancelled, the equal one still needs the answer.
            result: AnsweredRequest[AnswerT] | UnansweredRequest
            result = await asyncio.shield(equal_request)
            self._count_shared(result)
            return result

        task = asyncio.create_task(self._request_samples(request, model))
        self._in_flight[request.key] = task
        task.add_done_callback(lambda _: self._in_flight.pop(request.key))
        return await task

    def _count_shared(self, result: AnsweredRequest[AnswerT] | UnansweredRequest) -> None:
        """Count a request that got the result of an equal one."""
        if isinstance(result, AnsweredRequest):
            self.counts.cache_hits += 1
        elif isinstance(result, FailedRequest):
            self.counts.failures += 1

    async def _request_samples(
        self, request: Request, model: type[AnswerT]
    ) -> AnsweredRequest[AnswerT] | UnansweredRequest:
        """Return the answer of the first usable sample of a request."""
        ignores_cache = self._must_ignore_cache(request)
        if ignores_cache:
            # In a dry run, the cache forgets nothing; what is in it must not be read all the same.
            self._forget(request)

        attempts: list[Attempt] = []
        for sample in self._iterate_samples(request):
            result = await self._request_sample(request, sample, model, ignores_cache)
            if result is None:
                return self._miss(request)
            if isinstance(result, AnsweredRequest):
                return result
            attempts.append(result)
            # Another sample only helps against an unusable answer, not against a server that fails.
            if result.kind in _SERVER_KINDS:
                break

        # Otherwise all attempts are those of an earlier run.
        is_sent_in_this_run = request.key in self._refreshed
        if not is_sent_in_this_run:
            self.counts.known_failures += 1
        return self._fail(request, attempts)

    async def _request_sample(
        self,
        request: Request,
        sample: Request,
        model: type[AnswerT],
        ignores_cache: bool,
    ) -> AnsweredRequest[AnswerT] | Attempt | None:
        """Return the result of one sample, from the cache or else from the engine.

        Args:
            request: Request as it was made.
            sample: Request of one of its samples.
            model: Model of the answer.
            ignores_cache: Whether to send the request even if the cache has a result.

        Returns:
            Answer, or attempt without a usable answer; None if the cache of a replay has neither.
        """
        if not ignores_cache:
            stored = self._find_stored(request, sample, model)
            if stored is not None:
                return stored
        if self.engine is None:
            return None
        self._refreshed.add(request.key)
        return await self._send(self.engine, sample, model)

    def _must_ignore_cache(self, request: Request) -> bool:
        """Return whether to send all samples of a request, whatever the cache has of it.

        So in a refresh, and in a retry of a request without a usable answer; in both at most once
        in a run.
        """
        if request.key in self._refreshed:
            return False
        if self.cache.mode is CacheMode.REFRESH:
            return True
        return self.retry_failures and self._has_failed(request)

    def _count_stored(self, stored: Answer | UnusableAnswer) -> None:
        """Count an answer that was found in the cache."""
        if isinstance(stored, UnusableAnswer):
            self.counts.unusable_records += 1
            return
        self.counts.cache_hits += 1
        self.counts.cached_prompt_tokens += stored.prompt_tokens
        self.counts.cached_completion_tokens += stored.completion_tokens

    def _has_failed(self, request: Request) -> bool:
        """Return whether the cache holds only unusable answers, after which no other sample is requested."""
        for sample in self._iterate_samples(request):
            stored = self.cache.get(sample.key, OUTCOMES)
            if not isinstance(stored, UnusableAnswer):
                return False
            if stored.kind in _SERVER_KINDS:
                break
        return True

    def _forget(self, request: Request) -> None:
        """Remove the cache entries of all samples of a request before it is sent again.

        A replay reads the samples in order, so that it would find an old first sample instead of a
        new second one.
        """
        # A refresh replaces all entries, and a retry the unusable answers.
        is_refresh = self.cache.mode is CacheMode.REFRESH
        removed_kind = None if is_refresh else "unusable"
        keys = [sample.key for sample in self._iterate_samples(request)]
        self.cache.forget(keys, kind=removed_kind)
        self._refreshed.add(request.key)

    def _find_stored(
        self, request: Request, sample: Request, model: type[AnswerT]
    ) -> AnsweredRequest[AnswerT] | Attempt | None:
        """Return the result of a sample in the cache, and count it; None if there is none.

        Args:
            request: Request as it was made. Once this run has sent it, a refresh reads what is
                stored of all its samples.
            sample: Request of one of its samples, each of which has an entry of its own.
            model: Model of the answer.
        """
        is_refreshed = request.key in self._refreshed
        stored = self.cache.get(sample.key, OUTCOMES, refreshed=is_refreshed)
        if stored is None:
            return None
        self._count_stored(stored)
        return self._read_stored(stored, sample, model, is_cached=True)

    async def _send(
        self, engine: Engine, sample: Request, model: type[AnswerT]
    ) -> AnsweredRequest[AnswerT] | Attempt:
        """Send the request of one sample, and store the result unless there is no reply.

        Raises:
            EngineError: The engine refuses all requests, or does not reply any more.
        """
        started = time.monotonic()
        try:
            with self._count_request(sample):
                result = await self._complete(engine, sample, model)
        except Transient as transient:
            return self._record_lost(transient, sample.sample)

        # Only requests without a reply in a row show that the server is down.
        self._lost_in_a_row = 0
        seconds = time.monotonic() - started
        _log_result(result, sample, seconds)
        return await self._store(result, sample, model)

    @contextmanager
    def _count_request(self, sample: Request) -> Iterator[None]:
        """Count the request of a sample as sent, and as ended after the block, even if it fails."""
        self.counts.requests += 1
        if sample.sample > 0:
            self.counts.resamples += 1
        try:
            yield
        finally:
            self.counts.ended += 1

    async def _store(
        self,
        result: AnsweredRequest[AnswerT] | UnusableAnswer,
        sample: Request,
        model: type[AnswerT],
    ) -> AnsweredRequest[AnswerT] | Attempt:
        """Store the result of a sample, and return the result that the cache has then.

        Another process may have stored its result first. A replay will find that one, so it is
        returned.
        """
        value = result.answer if isinstance(result, AnsweredRequest) else result
        entry = describe_entry(_get_kind(result), sample, sample.key)
        stored = await self.cache.store(entry, value, OUTCOMES)

        # The cache returns the very object that it was given, unless it had another result.
        is_own = stored is value
        if is_own and isinstance(result, AnsweredRequest):
            # It is parsed already.
            return result
        return self._read_stored(stored, sample, model, is_cached=False)

    async def _complete(
        self, engine: Engine, sample: Request, model: type[AnswerT]
    ) -> AnsweredRequest[AnswerT] | UnusableAnswer:
        """Send the request of one sample, and parse and count the completion.

        Raises:
            EngineError: The engine refuses all requests.
            Transient: There is no reply.
        """
        try:
            completion = await self._retry(partial(engine.complete, sample))
        except Rejected as rejected:
            if rejected.is_fatal:
                raise EngineError(
                    f"the engine refuses all requests of this run ({rejected}); {self._describe_resume()}"
                ) from rejected
            return UnusableAnswer("server_error", str(rejected)[:MAX_CHARS])

        self._count_completion(completion, sample)
        try:
            return _parse_completion(completion, sample, model)
        except Unusable as unusable:
            return UnusableAnswer(
                kind=unusable.kind,
                reason=quote(unusable.reason, MAX_CHARS),
                text=quote(unusable.text, MAX_CHARS),
            )

    def _count_completion(self, completion: Completion, sample: Request) -> None:
        """Count the tokens of a completion."""
        self.counts.prompt_tokens += completion.prompt_tokens
        self.counts.completion_tokens += completion.completion_tokens
        if sample.layout.form is AnswerForm.TEXT:
            self.counts.thoughts += 1
            self.counts.thought_tokens += completion.completion_tokens
        if completion.cached_tokens is not None:
            self.counts.prefix_cached_tokens += completion.cached_tokens
            self.counts.prefix_reports += 1

    def _read_stored(
        self,
        stored: Answer | UnusableAnswer,
        sample: Request,
        model: type[AnswerT],
        *,
        is_cached: bool,
    ) -> AnsweredRequest[AnswerT] | Attempt:
        """Parse a stored answer; return an unusable one as an attempt.

        Args:
            stored: Answer in the cache.
            sample: Request of the sample.
            model: Model of the answer.
            is_cached: Whether the answer was stored before it was requested.

        Raises:
            DataError: The stored answer is not one that the program would have stored.
        """
        if isinstance(stored, UnusableAnswer):
            return Attempt(
                sample=sample.sample,
                kind=stored.kind,
                reason=stored.reason,
                text=stored.text,
            )
        try:
            value = parse_answer(stored.text, model, sample.layout.form)
            check_logprobs(stored.text, stored.tokens)
        except Unusable as error:
            raise DataError(
                f"{self.cache.path}: entry {sample.key}: the answer is unusable ({error}); remove the entry with "
                "`touche-llm cache forget`, or request all answers again with `cache.mode: refresh`"
            ) from error
        return AnsweredRequest(request=sample, answer=stored, value=value, is_cached=is_cached)

    def _iterate_samples(self, request: Request) -> Iterator[Request]:
        """Yield the requests of all samples, the first as it is."""
        yield request
        for number in range(1, MAX_SAMPLES):
            yield request.resample(number, self.sampling.resample_temperature)

    def raise_on_misses(self) -> None:
        """Raise an error if a replay needed answers that the cache lacks.

        Raises:
            ReplayMiss: There are such answers.
        """
        if self.misses:
            raise make_replay_miss(self.cache.path, self.misses)


def make_replay_miss(cache: Path, missing: Sequence[Request]) -> ReplayMiss:
    """Return the error of a replay whose cache lacks the answers to these requests."""
    first = missing[0]
    origin = first.origin
    prompt = f"prompt {origin.prompt} version {origin.prompt_version} ({origin.prompt_hash})"
    remedy = ""
    if cache.suffix == ".jsonl":
        remedy = "import it into a cache (touche-llm cache import) and "
    return ReplayMiss(
        f"{cache}: the cache lacks {len(missing)} of the answers that the run needs, the first of "
        f"{first.model} to {prompt} about {origin.subject}; no answer is stored for this prompt, model, "
        f"document and settings: {remedy}run with `cache.mode: reuse` and a server to request them"
    )


def _log_result(
    result: AnsweredRequest[AnswerT] | UnusableAnswer, sample: Request, seconds: float
) -> None:
    """Log the kind of a sample's result, and how long it took."""
    location = sample.origin.location
    kind = _get_kind(result)
    _LOG.debug("%s, sample %d: %s in %.1f s", location, sample.sample, kind, seconds)


def _get_kind(result: AnsweredRequest[AnswerT] | UnusableAnswer) -> str:
    """Return the kind of the cache entry for the result of a sample."""
    return "answer" if isinstance(result, AnsweredRequest) else "unusable"


def _parse_completion(
    completion: Completion, sample: Request, model: type[AnswerT]
) -> AnsweredRequest[AnswerT]:
    """Parse a completion, and select what is stored of it.

    Args:
        completion: Completion of the request.
        sample: Request of the sample.
        model: Model of the answer.

    Raises:
        Unusable: The completion is no answer to the request.
    """
    text = _get_text(completion, sample.layout)
    value = parse_answer(text, model, sample.layout.form)
    tokenized = TokenizedAnswer(text, completion.tokens, sample.layout)
    tokens = select_label_tokens(tokenized, get_labels(model))
    check_logprobs(text, tokens)
    answer = Answer(
        text=text,
        finish_reason=completion.finish_reason,
        tokens=tokens,
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=completion.completion_tokens,
        fingerprint=completion.fingerprint,
    )
    return AnsweredRequest(request=sample, answer=answer, value=value)


def _get_text(completion: Completion, layout: Layout) -> str:
    """Return the text of the answer in a completion.

    Raises:
        Unusable: The model refused, or the answer is empty or not complete.
    """
    if completion.refusal or completion.finish_reason == "content_filter":
        raise Unusable("refused", "the model refused", completion.refusal or completion.text)

    reasoning = completion.reasoning or ""
    is_thought = layout.form is AnswerForm.TEXT
    if is_thought:
        # A server with a reasoning parser returns a thought in a field of its own. It may be cut
        # off: the budget of a run with reasoning is meant to end it.
        return _check_not_empty(reasoning + completion.text, reasoning)

    if completion.finish_reason == "length":
        reason = f"the answer did not end within {completion.completion_tokens} tokens"
        raise Unusable("cut_off", reason, completion.text)
    return _check_not_empty(completion.text, reasoning)


def _check_not_empty(text: str, reasoning: str) -> str:
    """Return the text of an answer; raise Unusable if the model wrote only reasoning instead.

    An empty answer without reasoning is no error here, since it is refused where it is parsed.
    """
    if reasoning and not text.strip():
        reason = "the answer is empty and the reasoning is not: switch thinking off"
        raise Unusable("not_json", reason, reasoning)
    return text
