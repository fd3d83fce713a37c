"""What the labels of answers say about documents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from touche_llm.data.records import Reading

# Fewer readings give no information, and labels with less than the second, in bits, carry none
# worth ranking by.
MIN_READINGS = 50
LOW_INFORMATION = 0.05


def get_most_probable(reading: Reading) -> str:
    """Return the most probable label.

    The answered one if there are no probabilities or it is among several such.
    """
    probabilities: Mapping[str, float] = reading.probabilities or {}
    highest = max(probabilities.values(), default=0.0)
    if not probabilities or probabilities[str(reading.answered)] == highest:
        return str(reading.answered)
    return next(label for label, share in probabilities.items() if share == highest)


@dataclass(slots=True)
class LabelInformation:
    """Information that the labels of a field carry about documents: H(mean p) - mean H(p).

    The mutual information of document and label, or generalised Jensen-Shannon divergence of the
    documents' labels (Lin 1991, https://doi.org/10.1109/18.61115): 0 if all documents have the same
    probabilities, at most log2 of the number of labels.
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
        """Information in bits.

        None for fewer than `MIN_READINGS`, where it is mostly the noise of the sample.
        """
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
        answers: Number of these answers.
        unread: Answers whose log-probabilities do not show the labels, so that the labels in the
            text count.
        first: First unread answer, with the reason; empty if there is none.
        overruled: Answers whose most probable stance is not the one in the text.
        bits: Information of the labels about documents, in bits by field; None for too few answers.
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
            f"in {self.overruled:,} of {self.answers:,} answers the stance is another than the written one, since the "
            "probabilities of all labels decide: docs/explanation/stance.md"
        ]

    def list_problems(self) -> list[str]:
        """Return warnings: labels that cannot be read, or say nothing."""
        notes = [self.describe_unread()] if self.unread else []
        if low := {
            name: bits
            for name, bits in self.bits.items()
            if bits is not None and bits < LOW_INFORMATION
        }:
            named = ", ".join(f"{name} {bits:.3f} bits" for name, bits in low.items())
            notes.append(
                f"the labels say next to nothing about documents ({named}; below {LOW_INFORMATION:g}): the model "
                "answers nearly the same for all; try a larger model, few-shot examples with different labels, or one "
                "request for each field (`judge_per: field`)"
            )
        return notes
