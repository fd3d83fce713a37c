"""Grades: where a label's probability becomes a grade, and where grades are combined."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from touche_llm.data.records import Judgment, Reading
from touche_llm.data.runs.writing import NO_STANCE_COLUMN
from touche_llm.errors import DataError
from touche_llm.llm.answer_schema import get_labels
from touche_llm.llm.label_probabilities import round_nine_digits
from touche_llm.tasks.parts import FIRST_STAGE, Scale
from touche_llm.tasks.questions import Question


def compute_expected_grade(reading: Reading) -> float:
    """Return the mean of the integer grades under their probabilities.

    Without these, the answered grade.
    """
    if reading.probabilities is None:
        return float(reading.answered)
    shares = {int(grade): share for grade, share in reading.probabilities.items()}
    mean = math.fsum([grade * share for grade, share in shares.items()])
    # Rounded probabilities can add up to slightly more or less than 1.
    return round_nine_digits(min(max(mean, float(min(shares))), float(max(shares))))


def check_judgments(judgments: Iterable[Judgment], question: Question, place: object) -> None:
    """Raise DataError, naming `place`, if a judgment has an aspect, grade or label that the question lacks."""
    labels = {field: [*map(str, allowed)] for field, allowed in get_labels(question.answer).items()}
    bounds = {
        field: (min(map(int, labels[field])), max(map(int, labels[field])))
        for field in question.grades
    }
    stances = labels.get("stance", [NO_STANCE_COLUMN])
    for judgment in judgments:
        wrong = [
            f"{aspect} {grade:g}"
            for aspect, grade in judgment.grades.items()
            if aspect not in bounds or not bounds[aspect][0] <= grade <= bounds[aspect][1]
        ]
        wrong += [f"stance {judgment.stance:.40}"] * (judgment.stance not in stances)
        for field, reading in judgment.readings.items():
            foreign = {str(reading.answered), *reading.shares}.difference(labels.get(field, ()))
            wrong += [f"{field} {label:.40}" for label in sorted(foreign)]
        if wrong:
            expected = "; ".join(f"{field} {', '.join(values)}" for field, values in labels.items())
            raise DataError(
                f"{place}: topic {judgment.topic_id}, document {judgment.document_id}: {', '.join(wrong):.120}; "
                f"expected {expected}; judge it again"
            )


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
    """Return the mean probability outside the labels over all fields of judgments.

    None without probabilities.
    """
    masses = [
        reading.off_label_mass
        for judgment in judgments
        for reading in judgment.readings.values()
        if reading.off_label_mass is not None
    ]
    return round(sum(masses) / len(masses), 6) if masses else None
