"""Model client: answers from the cache or the engine, with retries and resampling."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic

from touche_llm.data.records import Attempt, Cut, Reading
from touche_llm.errors import DataError, EngineError, ReplayMiss
from touche_llm.llm.answers import (
    MAX_CHARS,
    OUTCOMES,
    Answer,
    AnswerForm,
    AnswerModel,
    AnswerT,
    FailedRequest,
    FreeText,
    Layout,
    Unusable,
    UnusableAnswer,
    get_labels,
    parse_answer,
)
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.client import EngineClient, describe_entry
from touche_llm.llm.engine import Completion, Engine, Rejected, Transient
from touche_llm.llm.logprobs import (
    LabelCounts,
    LabelInformation,
    check_logprobs,
    get_most_probable,
    select_label_tokens,
)
from touche_llm.llm.request import MAX_SAMPLES, Origin, Request, continue_thought, request_thought
from touche_llm.text.passages import RankedPassages

_LOG = logging.getLogger(__name__)
# So many answers, and none whose labels can be read, are a fault of the server, not of the answers.
_MAX_UNREAD = 32


@dataclass(frozen=True, slots=True)
class AnsweredRequest(Generic[AnswerT]):
    """Request with a usable answer, with the thought before it and its key, if any."""

    value: AnswerT
    answer: Answer
    layout: Layout
    key: str
    sample: int
    thought: str = ""
    thought_key: str = ""


@dataclass(slots=True)
class ModelClient(EngineClient):
    """Client of one model with one answer cache.

    Attributes:
        resample_temperature: Temperature of the samples after an unusable answer, which would recur
            at 0.
        retry_failures: Whether to send requests again for which the cache holds only unusable
            answers.
        labels: Counts of the answers whose labels are to be read from log-probabilities, by prompt.
    """

    engine: Engine | None
    resample_temperature: float = 0.7
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
        """Return the answer to a request, from the cache or from the engine, after reasoning if it requests that.

        A replay miss is added to `misses`.
        """
        if request.thinking is None:
            return await self.request_one(request, model)
        reasoned = await self.request_one(request_thought(request), FreeText)
        if isinstance(reasoned, FailedRequest):
            return reasoned
        continued = partial(continue_thought, request)
        thought = request.thinking.clean(reasoned.value.text)
        # Encoded again, a text can have more tokens than the model generated.
        room = self.engine_info.context - request.sampling.max_tokens
        fitted = await self.truncate_document(continued, continued(thought), thought, room)
        if isinstance(fitted, FailedRequest):
            return fitted
        result = await self.request_one(continued(fitted[0]), model)
        if isinstance(result, FailedRequest):
            return result
        return replace(result, thought=fitted[0], thought_key=reasoned.key)

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

        Raises PromptError if the prompt alone leaves no room for the document, and EngineError as
        `request`.
        """
        complete = document if isinstance(document, str) else document.whole.text
        whole = build_request(complete)
        room = self.engine_info.context - whole.max_tokens
        fitted = await self.truncate_document(build_request, whole, document, room)
        if isinstance(fitted, FailedRequest):
            return fitted, None
        text, cut = fitted
        return await self.request(whole if text == complete else build_request(text), model), cut

    async def request_one(
        self, request: Request, model: type[AnswerT]
    ) -> AnsweredRequest[AnswerT] | FailedRequest:
        """Return the answer to a request that is sent as it is.

        Equal requests at the same time are sent once.
        """
        key = request.key
        if (shared := self._in_flight.get(key)) is None:
            sending = self._in_flight[key] = asyncio.create_task(
                self._request_samples(request, model)
            )
            sending.add_done_callback(lambda _: self._in_flight.pop(key))
            return await sending
        result: AnsweredRequest[AnswerT] | FailedRequest = await asyncio.shield(shared)
        self.counts.cache_hits += isinstance(result, AnsweredRequest)
        self.counts.failures += isinstance(result, FailedRequest) and bool(result.attempts)
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
            result = (
                None if is_repeated else self.cache.get(sample.key, OUTCOMES, refreshed=is_settled)
            )
            if isinstance(result, Answer):
                self.counts.cache_hits += 1
                self.counts.cached_prompt_tokens += result.prompt_tokens
                self.counts.cached_completion_tokens += result.completion_tokens
            elif result is not None:
                self.counts.unusable_records += 1
            elif self.engine is None:
                self.misses.append(request)
                return FailedRequest([])
            else:
                is_sent = True
                try:
                    result = await self._send(self.engine, sample, model)
                except Transient as transient:
                    attempts.append(self._record_lost(transient, sample.sample))
                    break
            if isinstance(result, Answer):
                return _read_stored(result, sample, model)
            attempts.append(
                Attempt(
                    sample=sample.sample, kind=result.kind, reason=result.reason, text=result.text
                )
            )
            if result.kind == "server_error":
                break
        if is_sent:
            self._settled.add(request.key)
        else:
            self.counts.known_failures += not is_settled
        return self._fail(attempts)

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
        self, engine: Engine, sample: Request, model: type[AnswerModel]
    ) -> Answer | UnusableAnswer:
        """Send the request of one sample and store the result; raise Transient if there is none."""
        self.counts.requests += 1
        self.counts.resamples += sample.sample > 0
        started = time.monotonic()
        result: Answer | UnusableAnswer
        try:
            completion = await self._retry(partial(engine.complete, sample))
            self.counts.prompt_tokens += completion.prompt_tokens
            self.counts.completion_tokens += completion.completion_tokens
            if sample.layout.form is AnswerForm.TEXT:
                self.counts.thoughts += 1
                self.counts.thought_tokens += completion.completion_tokens
            if completion.cached_tokens is not None:
                self.counts.prefix_cached_tokens += completion.cached_tokens
                self.counts.prefix_reports += 1
            result = _read_completion(completion, model, sample.layout)
        except Unusable as unusable:
            result = unusable.answer
        except Rejected as rejected:
            if rejected.is_fatal:
                raise EngineError(
                    f"the engine refuses all requests of this run ({rejected}); {self._describe_resume()}"
                ) from rejected
            result = UnusableAnswer("server_error", str(rejected)[:MAX_CHARS])
        finally:
            self.counts.ended += 1
        self._lost_in_a_row = 0
        kind = "answer" if isinstance(result, Answer) else "unusable"
        seconds = time.monotonic() - started
        _LOG.debug(
            "%s, sample %d: %s in %.1f s", sample.origin.location, sample.sample, kind, seconds
        )
        return await self.cache.store(describe_entry(kind, sample, sample.key), result, OUTCOMES)

    def _iterate_samples(self, request: Request) -> Iterator[Request]:
        yield request
        for number in range(1, MAX_SAMPLES):
            yield request.resample(number, self.resample_temperature)

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
        if not self.misses:
            return
        path, first = self.cache.path, self.misses[0].origin
        prompt = f"prompt {first.prompt} version {first.prompt_version} ({first.prompt_hash})"
        remedy = (
            "import it into a cache (touche-llm cache import) and "
            if path.suffix == ".jsonl"
            else ""
        )
        raise ReplayMiss(
            f"{path}: the cache lacks {len(self.misses)} of the answers that the run needs, the first of "
            f"{self.misses[0].model} to {prompt} about {first.subject}; no answer is stored for this prompt, model, "
            f"document and settings: {remedy}run with `cache.mode: reuse` and a server to request them"
        )


def _read_stored(
    answer: Answer, request: Request, model: type[AnswerT]
) -> AnsweredRequest[AnswerT]:
    try:
        check_logprobs(answer.text, answer.tokens)
        value = parse_answer(answer.text, model, request.layout.form)
    except Unusable as error:
        raise DataError(
            f"cache entry {request.key}: the answer is unusable ({error}); delete the entry, or request all answers "
            "again with `cache.mode: refresh`"
        ) from error
    return AnsweredRequest(value, answer, request.layout, request.key, request.sample)


def _read_completion(completion: Completion, model: type[AnswerModel], layout: Layout) -> Answer:
    """Return a completion as an answer to store; raise Unusable if it is none."""
    if completion.refusal or completion.finish_reason == "content_filter":
        raise Unusable("refused", "the model refused", completion.refusal or completion.text)
    if layout.form is AnswerForm.TEXT:
        # A server with a reasoning parser returns a thought in a field of its own.
        completion = replace(completion, text=(completion.reasoning or "") + completion.text)
    elif completion.finish_reason == "length":
        reason = f"the answer did not end within {completion.completion_tokens} tokens"
        raise Unusable("cut_off", reason, completion.text)
    if not completion.text.strip() and completion.reasoning:
        raise Unusable(
            "not_json",
            "the answer is empty and the reasoning is not: switch thinking off",
            completion.reasoning,
        )
    parse_answer(completion.text, model, layout.form)
    labels = get_labels(model)
    tokens = select_label_tokens(completion.text, completion.tokens, layout, labels)
    check_logprobs(completion.text, tokens)
    return Answer(
        text=completion.text,
        finish_reason=completion.finish_reason,
        tokens=tokens,
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=completion.completion_tokens,
        fingerprint=completion.fingerprint,
    )
