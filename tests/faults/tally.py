"""Named counters of one test of the fault harness."""

from __future__ import annotations

from collections import Counter


class Tally:
    """Counts by what is tried and by outcome.

    The fixture `tally` (tests/conftest.py) prints the sums.
    """

    def __init__(self) -> None:
        self.lines: dict[str, Counter[str]] = {}

    def add(self, what: str, **outcomes: int) -> None:
        """Add to the counters of `what`, as `add("kill run", tried=1, held=1)`."""
        self.lines.setdefault(what, Counter()).update(outcomes)
