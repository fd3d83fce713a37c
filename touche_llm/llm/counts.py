"""Counts of requests and of what their labels tell, and a log of requests: subject, time and tokens.

The logger `touche_llm.text` receives prompts, completions and error messages of the server, which may quote either. It
is silent until its level is set.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields

from touche_llm.llm.answers import Answer, UnusableAnswer
from touche_llm.llm.engine import Transient
from touche_llm.llm.request import Request

# Fewer readings give no information, and labels with less than the second, in bits, carry none worth ranking by.
MIN_READINGS = 50
LOW_INFORMATION = 0.05


@dataclass(slots=True)
class Counts:
    """Counts of a stage.

    Attributes:
        cache_hits: Answers taken from the cache.
        requests: Requests sent to the engine, including resamples but not retries.
        ended: Those of `requests` that are not under way any more, with or without an answer.
        retries: Retries after transient failures.
        resamples: Requests for another sample after an unusable answer.
        failures: Requests without a usable answer.
        thoughts: Those of `requests` in which the model reasons; left out of the metadata if there are none.
        thought_tokens: Those of `completion_tokens` that are reasoning.
        unusable_records: Unusable answers found in the cache, whether or not another sample was usable.
        known_failures: Requests that failed because of unusable answers in the cache, without being sent.
        cached_prompt_tokens: Prompt tokens of the answers taken from the cache.
        cached_completion_tokens: Completion tokens of the answers taken from the cache.
        prefix_cached_tokens: Those of `prompt_tokens` that the engine reported as taken from its prefix cache.
        prefix_reports: Replies that report such tokens.
        problem: Reason of the last retry.
    """

    cache_hits: int = 0
    requests: int = 0
    ended: int = 0
    retries: int = 0
    resamples: int = 0
    failures: int = 0
    unusable_records: int = 0
    known_failures: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    cached_completion_tokens: int = 0
    prefix_cached_tokens: int = 0
    prefix_reports: int = 0
    thoughts: int = 0
    thought_tokens: int = 0
    problem: str = ""

    def as_dict(self) -> dict[str, int | None]:
        """Return the counts by name; `prefix_cached_tokens` is None if the engine reported none."""
        left_out = ("problem", "ended", "prefix_reports", *(() if self.thoughts else ("thoughts", "thought_tokens")))
        counts = {name: value for name, value in asdict(self).items() if name not in left_out}
        return counts | {"prefix_cached_tokens": self.prefix_cached_tokens if self.prefix_reports else None}

    def since(self, before: Counts) -> Counts:
        """Return the increase since `before`, an earlier copy, with the present `problem`."""
        increase = {
            count.name: getattr(self, count.name) - getattr(before, count.name)
            for count in fields(self)
            if count.name != "problem"
        }
        return Counts(**increase, problem=self.problem)


@dataclass(slots=True)
class LabelInformation:
    """Information that the labels of a field carry about documents: H(mean p) - mean H(p).

    The mutual information of document and label, or generalised Jensen-Shannon divergence of the documents' labels
    (Lin 1991, https://doi.org/10.1109/18.61115): 0 if all documents have the same probabilities, at most log2 of the
    number of labels.
    """

    readings: int = 0
    _sums: dict[str, float] = field(default_factory=dict)
    _entropy: float = 0.0

    def add(self, probabilities: Mapping[str, float]) -> None:
        """Add the probabilities of the labels of a document."""
        self.readings += 1
        self._entropy += _compute_entropy(probabilities.values())
        for label, share in probabilities.items():
            self._sums[label] = self._sums.get(label, 0.0) + share

    @property
    def bits(self) -> float | None:
        """Information in bits; None for fewer than `MIN_READINGS`, where it is mostly the noise of the sample."""
        if self.readings < MIN_READINGS:
            return None
        mean = _compute_entropy(total / self.readings for total in self._sums.values())
        return round(max(0.0, mean - self._entropy / self.readings), 6)


def _compute_entropy(shares: Iterable[float]) -> float:
    return -math.fsum(share * math.log2(share) for share in shares if share > 0.0)


@dataclass(slots=True)
class LabelCounts:
    """Counts of the answers to a prompt whose labels are to be read from log-probabilities.

    Attributes:
        answers: All of them.
        unread: Those whose log-probabilities do not show the labels, so that the labels in the text count.
        first: The first of these, and the reason.
        overruled: Those whose most probable stance is not the one in the text.
        bits: Information of the labels about documents, by field, see `LabelInformation`.
    """

    answers: int = 0
    unread: int = 0
    first: str = ""
    overruled: int = 0
    bits: dict[str, float | None] = field(default_factory=dict)

    def describe_unread(self) -> str:
        """Describe the answers whose labels cannot be read."""
        return (
            f"the labels of {self.unread:,} of {self.answers:,} answers cannot be read from their log-probabilities, "
            f"and those in their texts count as certain; the first is {self.first}"
        )

    def describe_overruled(self) -> list[str]:
        """Return a note on stances that differ from the answers as written, if there are any."""
        if not self.overruled:
            return []
        return [
            f"{self.overruled:,} of {self.answers:,} stances differ from the answers as written, since the "
            "probabilities of all labels decide: docs/explanation/stance.md"
        ]

    def list_problems(self) -> list[str]:
        """Return warnings: labels that cannot be read, or say nothing."""
        notes = [self.describe_unread()] if self.unread else []
        if low := {name: bits for name, bits in self.bits.items() if bits is not None and bits < LOW_INFORMATION}:
            named = ", ".join(f"{name} {bits:.3f} bits" for name, bits in low.items())
            notes.append(
                f"the labels say next to nothing about documents ({named}; below {LOW_INFORMATION:g}): the model "
                "answers nearly the same for all; try a larger model, few-shot examples with different labels, or a "
                "prompt for each aspect"
            )
        return notes


_LOG = logging.getLogger(__name__)
_TEXT = logging.getLogger("touche_llm.text")


async def log_result(request: Request, sending: Awaitable[Answer | UnusableAnswer]) -> Answer | UnusableAnswer:
    """Await the result of a request that is sent, log it and return it.

    Raises:
        Transient: From `sending`; logged too.
    """
    if not _LOG.isEnabledFor(logging.DEBUG):
        return await sending
    name, started = f"{request.origin.prompt}, {request.origin.subject}, sample {request.sample}", time.monotonic()
    _TEXT.debug("%s: prompt %r", name, [message.content for message in request.messages])
    try:
        result = await sending
    except Transient as problem:
        _LOG.warning("%s: %s after %.1f s", name, problem.kind, time.monotonic() - started)
        _TEXT.warning("%s: %s", name, problem.reason)
        raise
    seconds = time.monotonic() - started
    if isinstance(result, Answer):
        tokens = result.prompt_tokens, result.completion_tokens
        _LOG.debug("%s: answer in %.1f s, %d + %d tokens", name, seconds, *tokens)
    else:
        _LOG.warning("%s: %s in %.1f s", name, result.kind, seconds)
    _TEXT.debug("%s: %r", name, result)
    return result


def log_retry(problem: Transient) -> None:
    """Log a failure that is retried."""
    # The text after the colon may be the server's and may quote the prompt.
    _LOG.info("retry: %s: %s", problem.kind, problem.reason.partition(":")[0][:100])
    _TEXT.info("retry: %s", problem.reason)
