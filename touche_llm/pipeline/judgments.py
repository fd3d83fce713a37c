"""Judgments on their way to the file: written as they come, so that memory does not grow with them."""

from __future__ import annotations

from collections import defaultdict
from typing import IO, NamedTuple

from touche_llm.data.files import encode_line
from touche_llm.data.records import Judgment


class DocumentGrades(NamedTuple):
    """What the choice of the best documents needs of a judgment."""

    grades: dict[str, float]
    source: str


class MeanOffLabelMass:
    """The mean probability that was on no label, over all fields of the judgments that are added."""

    def __init__(self) -> None:
        self._sum, self._fields = 0.0, 0

    def add(self, judgment: Judgment) -> None:
        """Take in a judgment."""
        for reading in judgment.readings.values():
            if reading.outside is not None:
                self._sum += reading.outside
                self._fields += 1

    @property
    def value(self) -> float | None:
        """The mean; None where no engine told."""
        return round(self._sum / self._fields, 6) if self._fields else None


class JudgmentWriter:
    """Judgments that are written to a stream, and what is counted of them.

    Attributes:
        asked: judgments that the model was asked for.
        by_value: those of them without probabilities.
        outside: what of their probabilities was on no label.
        grades: by topic and document, where they are to be kept.
    """

    def __init__(self, stream: IO[bytes], *, keep_grades: bool) -> None:
        """Lines go to `stream`."""
        self._write, self._keep_grades = stream.write, keep_grades
        self.asked = self.by_value = 0
        self.outside = MeanOffLabelMass()
        self.grades: dict[str, dict[str, DocumentGrades]] = defaultdict(dict)

    def write(self, judgment: Judgment) -> None:
        """Write a judgment, and count it unless the model was not asked for it."""
        self._write(encode_line(judgment))
        if self._keep_grades:
            self.grades[judgment.topic_id][judgment.document_id] = DocumentGrades(judgment.grades, judgment.source)
        if judgment.source != "inherited":
            self.count(judgment)

    def count(self, judgment: Judgment) -> None:
        """Count a judgment that another file holds."""
        self.asked += 1
        self.by_value += judgment.source == "value"
        self.outside.add(judgment)
