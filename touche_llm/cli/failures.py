"""Requests without a usable answer, as commands report them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from touche_llm.cli.output import Format, say
from touche_llm.data.records import Failure
from touche_llm.runs.stages import count_by_kind

FAILURES_EXIT = 3


def print_failures(output: Format, failures: Sequence[Failure], note: str) -> None:
    """Print the failures by kind, with the most frequent reason and a note."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in count_by_kind(failures).items())
    reasons = Counter(failure.attempts[-1].reason for failure in failures)
    say(output, f"failures: {kinds}; most often: {reasons.most_common(1)[0][0]}")
    say(output, note)
