"""Counts of requests, reused answers, failures and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

# Names of counts in the metadata of runs that earlier versions wrote.
_OLD_NAMES = {"asked": "requests", "asked_again": "resamples"}


@dataclass(slots=True)
class Counts:
    """Counts of a stage.

    Attributes:
        cache_hits: Answers taken from the cache.
        requests: Requests sent to the engine, including resamples but not retries.
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
        left_out = ("problem", "prefix_reports", *(() if self.thoughts else ("thoughts", "thought_tokens")))
        counts = {name: value for name, value in asdict(self).items() if name not in left_out}
        return counts | {"prefix_cached_tokens": self.prefix_cached_tokens if self.prefix_reports else None}

    def since(self, before: Counts) -> Counts:
        """Return the increase since `before`, an earlier copy, with the present `problem`."""
        increase = {
            field.name: getattr(self, field.name) - getattr(before, field.name)
            for field in fields(self)
            if field.name != "problem"
        }
        return Counts(**increase, problem=self.problem)


@dataclass(slots=True)
class LabelCounts:
    """Counts of the answers to a prompt whose labels are to be read from log-probabilities.

    Attributes:
        answers: All of them.
        unread: Those whose log-probabilities do not show the labels, so that the labels in the text count.
        first: The first of these, and the reason.
    """

    answers: int = 0
    unread: int = 0
    first: str = ""

    def __str__(self) -> str:
        return (
            f"the labels of {self.unread:,} of {self.answers:,} answers cannot be read from their log-probabilities, "
            f"and those in their texts count as certain; the first is {self.first}"
        )


def translate_old_counts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a stage with the present names of its counts."""
    counts = facts.get("requests")
    if not isinstance(counts, Mapping):
        return dict(facts)
    return {**facts, "requests": {_OLD_NAMES.get(name, name): value for name, value in counts.items()}}
