"""The language model as the stages see it: engine, cache and retries behind one question, one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, Generic

from touche_llm.data.records import Attempt, Cut
from touche_llm.errors import DataError, EngineError, ReplayMiss
from touche_llm.llm.answers import (
    OUTCOMES,
    Answer,
    AnswerModel,
    AnswerT,
    FailedRequest,
    Unusable,
    UnusableAnswer,
    get_labels,
    parse,
)
from touche_llm.llm.cache import CacheMode, describe_resume
from touche_llm.llm.engines.base import Completion, Engine, Rejected, Transient
from touche_llm.llm.logprobs import check_logprobs, select_label_tokens
from touche_llm.llm.misses import describe_misses
from touche_llm.llm.prompt_tokens import TokenCountingClient, describe_entry
from touche_llm.llm.request import Request
from touche_llm.llm.request_log import log_requests
from touche_llm.text.passages import RankedPassages

# An unusable answer is asked for again at most twice.
MAX_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class AnsweredRequest(Generic[AnswerT]):
    """A usable answer: the parsed value, what was said, and the request it answers."""

    value: AnswerT
    answer: Answer
    key: str
    sample: int


@dataclass(slots=True)
class ModelClient(TokenCountingClient):
    """One model behind one cache.

    Attributes:
        resample_temperature: an unusable answer is asked for again at this temperature; at 0 it would come back.
        retry_failures: send a question again of which the cache holds nothing but unusable answers.
    """

    resample_temperature: float = 0.7
    retry_failures: bool = False
    # What this run has forgotten to send it anew, or what failed in it: equal requests take what a replay will find.
    _settled: set[str] = field(default_factory=set)
    _in_flight: dict[str, asyncio.Future[AnsweredRequest[Any] | FailedRequest]] = field(default_factory=dict)

    async def request(self, request: Request, model: type[AnswerT]) -> AnsweredRequest[AnswerT] | FailedRequest:
        """The answer to a request, from the cache or from the engine.

        Equal requests that are under way at the same time are asked once. A miss in replay is noted in `misses`.

        Raises:
            EngineError: the engine has not been listening for `retry_for` seconds, lets nobody in any more, or has left
                many requests in a row without a reply.
        """
        key = request.key
        under_way = self._in_flight.get(key)
        if under_way is not None:
            shared: AnsweredRequest[AnswerT] | FailedRequest = await asyncio.shield(under_way)
            if isinstance(shared, AnsweredRequest):
                self.counts.cache_hits += 1
            elif shared.attempts:
                self.counts.failures += 1
            return shared
        future = self._in_flight[key] = asyncio.get_running_loop().create_future()
        try:
            result = await self._request_samples(request, model)
            future.set_result(result)
            return result
        except Exception as error:
            # Those who wait for the same answer have the same error.
            future.set_exception(error)
            future.exception()  # nobody need have waited
            raise
        finally:
            future.cancel()  # does nothing once there is a result
            del self._in_flight[key]

    async def request_truncated(
        self, request: Callable[[str], Request], document: str | RankedPassages, model: type[AnswerT]
    ) -> tuple[AnsweredRequest[AnswerT] | FailedRequest, Cut | None]:
        """The answer to a request about a document, cut where the context does not hold all of it.

        The document is measured in the model's tokens, and only where its bytes say that it could be too long (no
        token is shorter than a byte). A text is cut at a sentence end where one is near; of excerpts, as many of
        the best passages are shown as fit.

        Args:
            request: makes the request from a text of the document.
            document: the text, already as the prompt shows it, or its excerpts.
            model: the answer model.

        Returns:
            the answer, and what the model saw of the document, or None where it saw everything.

        Raises:
            EngineError: as `request`.
            PromptError: the prompt alone leaves no room for the document.
        """
        complete = document if isinstance(document, str) else document.whole.text
        whole = request(complete)
        found = await self.truncate_document(
            request, whole, document, self.engine_info.context - whole.sampling.max_tokens
        )
        if isinstance(found, FailedRequest):
            return found, None
        text, cut = found
        return await self.request(whole if text == complete else request(text), model), cut

    async def _request_samples(
        self, request: Request, model: type[AnswerT]
    ) -> AnsweredRequest[AnswerT] | FailedRequest:
        is_settled = request.key in self._settled
        if self.cache.mode is CacheMode.REFRESH and not is_settled:
            # Or a replay would find an old first sample before the new second one.
            self._forget(request)
        known: dict[int, UnusableAnswer] = {}
        for sample in self._samples(request):
            stored = self.cache.get(sample.key, OUTCOMES, refreshed=is_settled)
            if isinstance(stored, Answer):
                self.counts.cache_hits += 1
                self.counts.cached_prompt_tokens += stored.prompt_tokens
                self.counts.cached_completion_tokens += stored.completion_tokens
                self.counts.unusable_records += len(known)
                return _answered(stored, sample, model)
            if stored is not None:
                known[sample.sample] = stored
            elif not self.cache.has_resamples():
                break
        has_failed = _has_failed(known)
        if has_failed and self.retry_failures and not is_settled:
            self._forget(request, kind="unusable")
            has_failed, known = False, {}
        self.counts.unusable_records += len(known)
        if has_failed:
            self.counts.known_failures += not is_settled
            return self._failed([found.attempt(sample) for sample, found in known.items()])
        if self.engine is None:
            self.misses.append(request)
            return FailedRequest([])
        attempts: list[Attempt] = []
        for sample in self._samples(request):
            try:
                found = known.get(sample.sample) or await self._send(self.engine, sample, model)
            except Transient as transient:
                attempts.append(self._lost(transient, sample.sample))
                break
            if isinstance(found, Answer):
                return _answered(found, sample, model)
            attempts.append(found.attempt(sample.sample))
            if found.is_final:
                break
        self._settled.add(request.key)
        return self._failed(attempts)

    def _forget(self, request: Request, kind: str | None = None) -> None:
        """Forget what the cache holds of all samples, once in a run."""
        self.cache.forget((sample.key for sample in self._samples(request)), kind=kind)
        self._settled.add(request.key)

    @log_requests
    async def _send(self, engine: Engine, sample: Request, model: type[AnswerModel]) -> Answer | UnusableAnswer:
        """Send the request of one sample, and store what comes back; raises Transient where nothing does."""
        self.counts.requests += 1
        self.counts.resamples += sample.sample > 0
        found: Answer | UnusableAnswer
        try:
            completion = await self._retried(partial(engine.complete, sample))
            self.counts.prompt_tokens += completion.prompt_tokens
            self.counts.completion_tokens += completion.completion_tokens
            if completion.cached_tokens is not None:
                self.counts.prefix_cached_tokens += completion.cached_tokens
                self.counts.prefix_reports += 1
            found = _usable(completion, model)
        except Unusable as unusable:
            found = UnusableAnswer.create(unusable.kind, unusable.reason, unusable.text)
        except Rejected as rejected:
            if rejected.is_fatal:
                raise EngineError(
                    f"the engine does not serve this run any more ({rejected}); "
                    f"{describe_resume(self.cache.path, self.cache.mode)}"
                ) from rejected
            found = UnusableAnswer.create("server_error", str(rejected))
        self._given_up = 0
        kind = "answer" if isinstance(found, Answer) else "unusable"
        return await self.cache.store(describe_entry(kind, sample, sample.key), found, OUTCOMES)

    def _samples(self, request: Request) -> Iterator[Request]:
        yield request
        for number in range(1, MAX_SAMPLES):
            yield request.resample(number, self.resample_temperature)

    def raise_on_misses(self) -> None:
        """Raise ReplayMiss when replay asked for something that the cache does not hold."""
        if self.misses:
            raise ReplayMiss(describe_misses(self.misses, self.cache))


def _has_failed(known: Mapping[int, UnusableAnswer]) -> bool:
    """Whether no other sample is to be requested after these unusable ones."""
    tried = [known[sample] for sample in takewhile(known.__contains__, range(MAX_SAMPLES))]
    return len(tried) == MAX_SAMPLES or any(each.is_final for each in tried)


def _answered(answer: Answer, request: Request, model: type[AnswerT]) -> AnsweredRequest[AnswerT]:
    try:
        check_logprobs(answer.text, answer.tokens)
        return AnsweredRequest(parse(answer.text, model), answer, request.key, request.sample)
    except Unusable as error:
        raise DataError(f"the cached answer {request.key} cannot be used ({error}); delete it or refresh") from error


def _usable(completion: Completion, model: type[AnswerModel]) -> Answer:
    if completion.refusal or completion.finish_reason == "content_filter":
        raise Unusable("refused", "the model refused", completion.refusal or completion.text)
    if completion.finish_reason == "length":
        reason = f"the answer did not end within {completion.completion_tokens} tokens"
        raise Unusable("cut_off", reason, completion.text)
    if not completion.text.strip() and completion.reasoning:
        raise Unusable(
            "not_json", "the answer is empty and the reasoning is not: switch thinking off", completion.reasoning
        )
    parse(completion.text, model)
    tokens = select_label_tokens(completion.text, completion.tokens, list(get_labels(model)))
    check_logprobs(completion.text, tokens)
    return Answer(
        text=completion.text,
        finish_reason=completion.finish_reason,
        tokens=tokens,
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=completion.completion_tokens,
        fingerprint=completion.fingerprint,
    )
