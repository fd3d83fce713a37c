"""Judgments that are written as they arrive, so that memory does not grow with their number."""

from __future__ import annotations

from collections import defaultdict
from typing import IO, NamedTuple

from touche_llm.data.files import encode_line
from touche_llm.data.records import Judgment


class DocumentGrades(NamedTuple):
    """The part of a judgment that decides which documents are best."""

    grades: dict[str, float]
    source: str


class MeanOffLabelMass:
    """Running mean of the probability outside the labels, over all fields of the judgments."""

    def __init__(self) -> None:
        self._sum, self._fields = 0.0, 0

    def add(self, judgment: Judgment) -> None:
        """Add the fields of a judgment."""
        for reading in judgment.readings.values():
            if reading.off_label_mass is not None:
                self._sum += reading.off_label_mass
                self._fields += 1

    @property
    def value(self) -> float | None:
        """Return the mean; None if no engine reported probabilities."""
        return round(self._sum / self._fields, 6) if self._fields else None


class JudgmentWriter:
    """Writer of judgments that counts them.

    Attributes:
        requested: Number of judgments made by the model.
        without_probabilities: Number of these that have no probabilities.
        off_label_mass: Mean probability outside the labels.
        grades: Grades by topic and document, if they are kept.
    """

    def __init__(self, stream: IO[bytes], *, keep_grades: bool) -> None:
        """Write lines to `stream`."""
        self._write, self._keep_grades = stream.write, keep_grades
        self.requested = self.without_probabilities = 0
        self.off_label_mass = MeanOffLabelMass()
        self.grades: dict[str, dict[str, DocumentGrades]] = defaultdict(dict)

    def write(self, judgment: Judgment) -> None:
        """Write a judgment, and count it unless it was inherited."""
        self._write(encode_line(judgment))
        if self._keep_grades:
            self.grades[judgment.topic_id][judgment.document_id] = DocumentGrades(judgment.grades, judgment.source)
        if judgment.source != "inherited":
            self.count(judgment)

    def count(self, judgment: Judgment) -> None:
        """Count a judgment that is written elsewhere."""
        self.requested += 1
        self.without_probabilities += judgment.source == "value"
        self.off_label_mass.add(judgment)
