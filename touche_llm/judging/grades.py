"""Weighted mean of the grades of a judgment, and mean probability outside the labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from touche_llm.data.records import Judgment
from touche_llm.tasks.definition import FIRST_STAGE, Scale


def combine_grades(
    judgment: Judgment,
    weights: Mapping[str, float],
    scales: Mapping[str, Scale],
    first_stage: float | None = None,
) -> float:
    """Return the weighted mean of a judgment's grades and, if given, of the first-stage score, from 0 to 1.

    A grade counts as its share of the scale. The mean is 0 if the weights of all its parts are 0.
    """
    parts = {name: scales[name].to_share(grade) for name, grade in judgment.grades.items()}
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
