"""Counts of the requests of a stage."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(slots=True)
class Counts:
    """Counts of a stage.

    Attributes:
        cache_hits: Answers taken from the cache, with their `cached_prompt_tokens` and
            `cached_completion_tokens`.
        requests: Requests sent to the engine, including resamples but not retries.
        ended: Those of `requests` that are not under way any more, with or without an answer.
        thoughts: Those of `requests` in which the model reasons.
        thought_tokens: Those of `completion_tokens` that are reasoning.
        unusable_records: Unusable answers found in the cache, whether or not another sample was
            usable.
        known_failures: Requests that failed because of unusable answers in the cache, without being
            sent.
        prefix_cached_tokens: Those of `prompt_tokens` that the engine reported as taken from its
            prefix cache.
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

    def since(self, before: Counts) -> Counts:
        """Return the increase since `before`, an earlier copy, with the present `problem`."""
        increases: dict[str, Any] = {}
        for count in fields(self):
            if count.name != "problem":
                increases[count.name] = getattr(self, count.name) - getattr(before, count.name)
        return replace(self, **increases)
