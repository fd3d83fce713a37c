"""State of a stage, from which its progress is described."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from touche_llm.llm.counts import Counts


class StageState:
    """Steps, time and requests of a stage so far.

    Attributes:
        title: Title of the stage.
        total: Number of steps.
        completed: Number of steps so far.
    """

    def __init__(
        self,
        title: str,
        total: int,
        counts: Counts | None,
        clock: Callable[[], float],
    ) -> None:
        """Start the clock of a stage.

        Args:
            title: Title of the stage.
            total: Number of steps.
            counts: Counters of the language model, which are updated while the stage runs; None if
                the stage sends no requests.
            clock: Function that returns the seconds since some moment.
        """
        self.title = title
        self.total = total
        self.completed = 0
        self._counts = counts
        # The counts grow from stage to stage; only those of this one are shown.
        self._counts_before = Counts() if counts is None else replace(counts)
        self._clock = clock
        self._start = clock()

    def advance(self) -> None:
        """Count one step."""
        self.completed += 1

    @property
    def elapsed(self) -> float:
        """Seconds so far."""
        return self._clock() - self._start

    @property
    def spent(self) -> Counts:
        """Counts of this stage."""
        if self._counts is None:
            return Counts()
        return self._counts.since(self._counts_before)

    def describe(self) -> str:
        """Return the progress as one line."""
        facts = self.describe_facts(self.spent.problem)
        return f"{self.title}: {self.completed:,}/{self.total:,} in {facts}"

    def describe_facts(self, problem: str) -> str:
        """Return what is known beside the number of steps, the most important first.

        Args:
            problem: Reason of the last retry, in as many words as there is room for.
        """
        spent = self.spent
        facts = [f"{self.elapsed:.1f} s"]

        seconds_left = self._estimate_seconds_left(spent)
        if seconds_left is not None:
            facts.append(f"{seconds_left:,.0f} s left")
        if spent.failures:
            facts.append(f"{spent.failures:,} failed")
        if spent.cache_hits:
            facts.append(f"{spent.cache_hits:,} cached")
        if spent.retries:
            facts.append(f"{spent.retries:,} retries (last: {problem})")

        rate = self._compute_rate(spent)
        if rate > 0.0:
            facts.append(self._format_rate(rate))

        is_waiting = self._counts is not None and self.completed == 0
        if spent.prompt_tokens:
            facts.append(f"{spent.prompt_tokens:,}+{spent.completion_tokens:,} tokens")
        elif is_waiting:
            facts.append("waiting for the first answers")
        return ", ".join(facts)

    def _estimate_seconds_left(self, spent: Counts) -> float | None:
        """Return the estimated seconds until the end, or None if nothing took time yet."""
        steps_left = self.total - self.completed
        timed_steps = self._estimate_timed_steps(spent)
        if timed_steps == 0.0 or steps_left == 0:
            return None
        return steps_left * self.elapsed / timed_steps

    def _estimate_timed_steps(self, spent: Counts) -> float:
        """Return the number of steps that took time, since the cache answered the others."""
        cached = spent.cache_hits + spent.known_failures
        if spent.ended:
            return self.completed * spent.ended / (spent.ended + cached)
        if cached:
            return 0.0
        return float(self.completed)

    def _compute_rate(self, spent: Counts) -> float:
        """Return the requests, or the steps of a stage without requests, in a second."""
        done = self.completed if self._counts is None else spent.ended
        return done / max(self.elapsed, 1e-3)

    def _format_rate(self, rate: float) -> str:
        number = f"{rate:,.1f}" if rate >= 1.0 else f"{rate:.2g}"
        unit = "/s" if self._counts is None else " requests/s"
        return number + unit
