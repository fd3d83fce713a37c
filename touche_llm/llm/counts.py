"""What asking costs, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

# Names of counts in the metadata of runs that earlier versions wrote.
_OLD_NAMES = {"asked": "requests", "asked_again": "resamples"}


@dataclass(slots=True)
class Counts:
    """What a stage cost. `problem` is the reason of the last retry; cached tokens are those of answers in the cache.

    `unusable_records` counts unusable answers that the cache held, of whatever became of their questions;
    `known_failures` counts the questions that failed on these alone, without a request.

    `prefix_cached_tokens` are those of `prompt_tokens` that the engine took from its prefix cache, as far as it
    reported them: `prefix_reports` is the number of replies with which it did.
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
    problem: str = ""

    def as_dict(self) -> dict[str, int | None]:
        """The counts by name; the tokens from the prefix cache are None if the engine reported none."""
        counts = {name: value for name, value in asdict(self).items() if name not in ("problem", "prefix_reports")}
        return counts | {"prefix_cached_tokens": self.prefix_cached_tokens if self.prefix_reports else None}

    def since(self, before: Counts) -> Counts:
        """What was added to these counts after `before` was copied from them."""
        numbers = {
            each.name: getattr(self, each.name) - getattr(before, each.name)
            for each in fields(self)
            if each.name != "problem"
        }
        return Counts(**numbers, problem=self.problem)


def translate_old_counts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a stage with the present names of its counts."""
    counts = facts.get("requests")
    if not isinstance(counts, Mapping):
        return dict(facts)
    return {**facts, "requests": {_OLD_NAMES.get(name, name): value for name, value in counts.items()}}
