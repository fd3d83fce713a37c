"""What asking costs, counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields


@dataclass(slots=True)
class Counts:
    """What a stage cost. `problem` is the reason of the last retry; cached tokens are those of answers in the cache.

    `unusable_records` counts unusable answers that the cache held, of whatever became of their questions;
    `known_failures` counts the questions that failed on these alone, without a request.

    `prefix_cached_tokens` are those of `prompt_tokens` that the engine took from its prefix cache, as far as it
    reported them: `prefix_told` is the number of replies with which it did.
    """

    cache_hits: int = 0
    asked: int = 0
    retries: int = 0
    asked_again: int = 0
    failures: int = 0
    unusable_records: int = 0
    known_failures: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    cached_completion_tokens: int = 0
    prefix_cached_tokens: int = 0
    prefix_told: int = 0
    problem: str = ""

    def as_dict(self) -> dict[str, int | None]:
        """The counts by name; the tokens from the prefix cache are None if the engine reported none."""
        counts = {name: value for name, value in asdict(self).items() if name not in ("problem", "prefix_told")}
        return counts | {"prefix_cached_tokens": self.prefix_cached_tokens if self.prefix_told else None}

    def since(self, before: Counts) -> Counts:
        """What was added to these counts after `before` was copied from them."""
        numbers = {
            each.name: getattr(self, each.name) - getattr(before, each.name)
            for each in fields(self)
            if each.name != "problem"
        }
        return Counts(**numbers, problem=self.problem)
