"""Weighted mean of the grades of a judgment, and mean probability outside the labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from touche_llm.data.records import HIGHEST_GRADE, Judgment
from touche_llm.tasks.base import FIRST_STAGE


class GradedDocument(Protocol):
    """A judgment, reduced to what ranking needs."""

    @property
    def grades(self) -> Mapping[str, float]:
        """Grades by name, from 0 to 3."""
        ...

    @property
    def source(self) -> str:
        """Source of the grades, as in `Judgment`."""
        ...


def combine_grades(judgment: GradedDocument, weights: Mapping[str, float], first_stage: float | None = None) -> float:
    """Return the weighted mean of a judgment's grades/3 and, if given, of the first-stage score, from 0 to 1.

    The mean is 0 if the weights of all its parts are 0.
    """
    parts = {name: grade / HIGHEST_GRADE for name, grade in judgment.grades.items()}
    if first_stage is not None:
        parts[FIRST_STAGE] = first_stage
    total = sum(weights[name] for name in parts)
    return sum(weights[name] * value for name, value in parts.items()) / total if total else 0.0


def mean_off_label_mass(judgments: Iterable[Judgment]) -> float | None:
    """Return the mean probability outside the labels over all fields of judgments; None without probabilities."""
    masses = [
        reading.off_label_mass
        for judgment in judgments
        for reading in judgment.readings.values()
        if reading.off_label_mass is not None
    ]
    return round(sum(masses) / len(masses), 6) if masses else None
