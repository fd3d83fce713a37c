"""Model client: answers from the cache or the engine, with retries and resampling."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic

from touche_llm.data.records import Attempt, Cut, Reading
from touche_llm.errors import DataError, EngineError, Rejected, ReplayMiss, Transient, Unusable
from touche_llm.llm.answer import MAX_CHARS, OUTCOMES, Answer, UnusableAnswer
from touche_llm.llm.answer_schema import AnswerForm, AnswerT, FreeText, Layout, get_labels
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.client import EngineClient, FailedRequest, describe_entry
from touche_llm.llm.label_probabilities import check_logprobs, read_fields, select_label_tokens
from touche_llm.llm.label_statistics import LabelCounts, LabelInformation, get_most_probable
from touche_llm.llm.parsing import parse_answer
from touche_llm.llm.protocol import Completion, Engine
from touche_llm.llm.request import MAX_SAMPLES, Origin, Request, continue_thought, request_thought
from touche_llm.llm.settings import DEFAULT_CONCURRENCY, SamplingConfig
from touche_llm.text.passages import RankedPassages
from touche_llm.text.quoting import quote

_LOG = logging.getLogger(__name__)
# So many answers to a prompt, none of whose labels can be read, are a fault of the server, not of
# the answers.
_MAX_UNREAD = 32


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
        return read_fields(self.answer.text, self.answer.tokens, self.layout, labels, answered)


@dataclass(slots=True, kw_only=True)
class ModelClient(EngineClient):
    """Client of one model with one answer cache; `open_client` makes it.

    Attributes:
        sampling: Settings of the requests.
        concurrency: Max number of requests at a time.
        retry_failures: Whether to send requests again for which the cache holds only unusable
            answers.
        labels: Counts of the answers whose labels are to be read from log-probabilities, by prompt.
    """

    engine: Engine | None
    sampling: SamplingConfig
    concurrency: int = DEFAULT_CONCURRENCY
    retry_failures: bool = False
    labels: dict[str, LabelCounts] = field(default_factory=dict)
    _information: dict[tuple[str, str], LabelInformation] = field(default_factory=dict)
    # Keys whose cache entries this run has removed or stored: equal requests use what a replay will
    # find.
    _settled: set[str] = field(default_factory=set)
    _in_flight: dict[str, asyncio.Task[AnsweredRequest[Any] | FailedRequest]] = field(
        default_factory=dict
    )

    async def request(
        self, request: Request, model: type[AnswerT]
    ) -> AnsweredRequest[AnswerT] | FailedRequest:
        """Return the answer to a request, after reasoning if it requests that.

        A replay miss is added to `misses`.

        Raises:
            DataError: A stored answer is unusable.
            EngineError: The engine failed.
            PromptError: The prompt and the reasoning leave no room for the answer.
        """
        if request.thinking is None:
            return await self.request_one(request, model)

        reasoned = await self.request_one(request_thought(request), FreeText)
        if isinstance(reasoned, FailedRequest):
            return reasoned

        build_request = partial(continue_thought, request)
        thought = request.thinking.clean(reasoned.value.text)
        # Encoded again, a text can have more tokens than the model generated.
        room = self.engine_info.context - request.sampling.max_tokens
        fitted = await self.truncate_document(build_request, build_request(thought), thought, room)
        if isinstance(fitted, FailedRequest):
            return fitted

        text, _ = fitted
        result = await self.request_one(build_request(text), model)
        if isinstance(result, FailedRequest):
            return result
        return replace(result, thought=text, thought_key=reasoned.key)

    async def request_truncated(
        self,
        build_request: Callable[[str], Request],
        document: str | RankedPassages,
        model: type[AnswerT],
    ) -> tuple[AnsweredRequest[AnswerT] | FailedRequest, Cut | None]:
        """Return the answer to a request about a document, truncated if it does not fit the context.

        The engine counts tokens only if the number of bytes may be too large: no token is shorter
        than a byte. A text is truncated at a sentence end if one is near; of ranked passages, as
        many of the best as fit are kept. The truncation is None if the document is complete.

        Raises:
            EngineError: As `request`.
            PromptError: The prompt alone leaves no room for the document.
        """
        complete = document if isinstance(document, str) else document.whole.text
        whole = build_request(complete)
        room = self.engine_info.context - whole.max_tokens
        fitted = await self.truncate_document(build_request, whole, document, room)
        if isinstance(fitted, FailedRequest):
            return fitted, None

        text, cut = fitted
        request = whole if text == complete else build_request(text)
        return await self.request(request, model), cut

    async def request_one(
        self, request: Request, model: type[AnswerT]
    ) -> AnsweredRequest[AnswerT] | FailedRequest:
        """Return the answer to a request that is sent as it is.

        Equal requests at the same time are sent once.
        """
        key = request.key
        shared = self._in_flight.get(key)
        if shared is None:
            sending = asyncio.create_task(self._request_samples(request, model))
            self._in_flight[key] = sending
            sending.add_done_callback(lambda _: self._in_flight.pop(key))
            return await sending

        result: AnsweredRequest[AnswerT] | FailedRequest = await asyncio.shield(shared)
        if isinstance(result, AnsweredRequest):
            self.counts.cache_hits += 1
        elif not result.is_miss:
            self.counts.failures += 1
        return result

    async def _request_samples(
        self, request: Request, model: type[AnswerT]
    ) -> AnsweredRequest[AnswerT] | FailedRequest:
        """Return the answer of the first usable sample, each from the cache or from the engine."""
        is_settled = request.key in self._settled
        if not is_settled and self.cache.mode is CacheMode.REFRESH:
            # Otherwise a replay would find an old first sample before the new second one.
            self._forget(request)
        is_repeated = not is_settled and self.retry_failures and self._has_failed(request)
        if is_repeated:
            self._forget(request, kind="unusable")

        attempts: list[Attempt] = []
        is_sent = False
        for sample in self._iterate_samples(request):
            # The cache of a dry run cannot forget.
            stored = (
                None if is_repeated else self.cache.get(sample.key, OUTCOMES, refreshed=is_settled)
            )
            result: AnsweredRequest[AnswerT] | UnusableAnswer
            if stored is not None:
                self._count_stored(stored)
                result = self._read_stored(stored, sample, model, is_cached=True)
            elif self.engine is None:
                return self._miss(request)
            else:
                is_sent = True
                try:
                    result = await self._send(self.engine, sample, model)
                except Transient as transient:
                    attempts.append(self._record_lost(transient, sample.sample))
                    break

            if isinstance(result, AnsweredRequest):
                return result
            attempts.append(
                Attempt(
                    sample=sample.sample,
                    kind=result.kind,
                    reason=result.reason,
                    text=result.text,
                )
            )
            if result.kind == "server_error":
                break

        if is_sent:
            self._settled.add(request.key)
        elif not is_settled:
            self.counts.known_failures += 1
        return self._fail(request, attempts)

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
            if stored.kind == "server_error":
                break
        return True

    def _forget(self, request: Request, kind: str | None = None) -> None:
        """Remove the cache entries of all samples, once per run."""
        self.cache.forget((sample.key for sample in self._iterate_samples(request)), kind=kind)
        self._settled.add(request.key)

    async def _send(
        self, engine: Engine, sample: Request, model: type[AnswerT]
    ) -> AnsweredRequest[AnswerT] | UnusableAnswer:
        """Send the request of one sample and store the result.

        Raises:
            Transient: There is no reply.
        """
        self.counts.requests += 1
        if sample.sample > 0:
            self.counts.resamples += 1
        started = time.monotonic()
        try:
            result = await self._complete(engine, sample, model)
        finally:
            self.counts.ended += 1

        self._lost_in_a_row = 0
        value: Answer | UnusableAnswer
        if isinstance(result, AnsweredRequest):
            kind, value = "answer", result.answer
        else:
            kind, value = "unusable", result
        _LOG.debug(
            "%s, sample %d: %s in %.1f s",
            sample.origin.location,
            sample.sample,
            kind,
            time.monotonic() - started,
        )
        metadata = describe_entry(kind, sample, sample.key)
        stored = await self.cache.store(metadata, value, OUTCOMES)
        if stored is value:
            return result
        # Another process stored its answer first, which a replay will find.
        return self._read_stored(stored, sample, model, is_cached=False)

    async def _complete(
        self, engine: Engine, sample: Request, model: type[AnswerT]
    ) -> AnsweredRequest[AnswerT] | UnusableAnswer:
        """Send the request of one sample, and parse and count the completion."""
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
    ) -> AnsweredRequest[AnswerT] | UnusableAnswer:
        """Parse a stored answer; return an unusable one as it is.

        Raises:
            DataError: The stored answer is not one that the program would have stored.
        """
        if isinstance(stored, UnusableAnswer):
            return stored
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
        yield request
        for number in range(1, MAX_SAMPLES):
            yield request.resample(number, self.sampling.resample_temperature)

    def count_labels(self, origin: Origin, readings: Mapping[str, Reading], problem: str) -> None:
        """Count an answer whose labels are to be read from log-probabilities.

        Raise EngineError if none of many can be.

        `problem` says why the labels cannot be read; it is empty if they can.
        """
        counts = self.labels.setdefault(origin.prompt, LabelCounts())
        counts.answers += 1
        counts.unread += bool(problem)
        if problem and not counts.first:
            counts.first = f"{origin.subject}: {problem}"
        if "stance" in readings:
            counts.overruled += get_most_probable(readings["stance"]) != str(
                readings["stance"].answered
            )
        for name, reading in readings.items():
            if reading.probabilities is not None:
                information = self._information.setdefault(
                    (origin.prompt, name), LabelInformation()
                )
                information.add(reading.probabilities)
                counts.bits[name] = information.bits
        if counts.unread >= _MAX_UNREAD:
            self.raise_on_unread()

    def raise_on_unread(self) -> None:
        """Raise EngineError if the labels of no answer to a prompt can be read from log-probabilities."""
        for prompt, counts in self.labels.items():
            if counts.answers == counts.unread > 0:
                raise EngineError(
                    f"prompt {prompt}: {counts.describe_unread()}; request plain grades with "
                    "`sampling.logprobs: false`, or repair the server and request all answers again with "
                    "`cache.mode: refresh`"
                )

    def raise_on_misses(self) -> None:
        """Raise ReplayMiss if a replay needed answers that the cache lacks."""
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


def _parse_completion(
    completion: Completion, sample: Request, model: type[AnswerT]
) -> AnsweredRequest[AnswerT]:
    """Parse a completion, and select what is stored of it.

    Raises:
        Unusable: The completion is no answer to the request.
    """
    if completion.refusal or completion.finish_reason == "content_filter":
        raise Unusable("refused", "the model refused", completion.refusal or completion.text)

    layout = sample.layout
    text = completion.text
    if layout.form is AnswerForm.TEXT:
        # A server with a reasoning parser returns a thought in a field of its own.
        text = (completion.reasoning or "") + text
    elif completion.finish_reason == "length":
        reason = f"the answer did not end within {completion.completion_tokens} tokens"
        raise Unusable("cut_off", reason, text)
    if completion.reasoning and not text.strip():
        reason = "the answer is empty and the reasoning is not: switch thinking off"
        raise Unusable("not_json", reason, completion.reasoning)

    value = parse_answer(text, model, layout.form)
    tokens = select_label_tokens(text, completion.tokens, layout, get_labels(model))
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
