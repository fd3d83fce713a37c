"""Measures by which runs and prompts are compared with human judgments."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class MeasureName(StrEnum):
    """Names of the package's measures; the label ones are computed for one label of the stance."""

    NDCG = "nDCG"
    TOUCHE_NDCG = "touche_nDCG"
    PRECISION = "P"
    RECALL = "R"
    JUDGED = "judged"
    KAPPA = "kappa"
    SPEARMAN = "Spearman"
    MACRO_F1 = "macro-F1"
    ACCURACY = "accuracy"
    LABEL_PRECISION = "precision"
    LABEL_RECALL = "recall"


_TEXT = re.compile(
    r"(?P<aspect>\S+) (?P<name>[^\s@]+)(?:@(?P<cutoff>[1-9][0-9]{0,8}))?(?: (?P<label>\S+))?"
)


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure of one aspect; as text `relevance nDCG@5` or `stance precision NO`.

    Attributes:
        aspect: Graded aspect of the task, or `stance`.
        name: Name of what is computed.
        cutoff: Number of first documents of each topic that count; None for all.
        label: Label that is measured alone; None for measures of all labels and of grades.
    """

    aspect: str
    name: str
    cutoff: int | None = None
    label: str | None = None

    @classmethod
    def parse(cls, text: str) -> Measure:
        """Parse the text of a measure, whether or not one of its name is known.

        Raises:
            ValueError: The text is none of a measure.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r:.60} is no measure; expected an aspect and a name, as `relevance nDCG@5`"
            )
        return cls(
            aspect=found["aspect"],
            name=found["name"],
            cutoff=None if found["cutoff"] is None else int(found["cutoff"]),
            label=found["label"],
        )

    def __str__(self) -> str:
        return f"{self.aspect} {self.short_text}"

    @property
    def short_text(self) -> str:
        """Its text without the aspect."""
        return _format_measure(self.name, self.cutoff, self.label)

    @property
    def judged(self) -> Measure:
        """Share of judged documents among the documents that this measure looks at."""
        return Measure(self.aspect, MeasureName.JUDGED, self.cutoff)

    @property
    def form(self) -> str:
        """Its text without the aspect, with `K` for the cutoff and `LABEL` for the label."""
        return _format_measure(
            self.name,
            None if self.cutoff is None else "K",
            None if self.label is None else "LABEL",
        )


def _format_measure(name: str, cutoff: int | str | None, label: str | None) -> str:
    """Return the text of a measure without its aspect."""
    text = str(name)
    if cutoff is not None:
        text += f"@{cutoff}"
    if label is not None:
        text += f" {label}"
    return text


# Cutoff of the headline measures, and of the stances that are measured at the top.
CUTOFF = 5
MACRO_F1 = Measure("stance", MeasureName.MACRO_F1)


def make_headline_ndcg(aspect: str) -> Measure:
    """Return nDCG@5 of an aspect, the headline measure of its grades."""
    return Measure(aspect, MeasureName.NDCG, CUTOFF)
