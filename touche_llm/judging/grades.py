"""Grades of judgments: their check, their weighted mean, and the mean probability outside the labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from touche_llm.data.records import Judgment
from touche_llm.data.trec_runs import NO_STANCE_COLUMN
from touche_llm.errors import DataError
from touche_llm.llm.answers import get_labels
from touche_llm.tasks.base import Question
from touche_llm.tasks.definition import FIRST_STAGE, Scale


def check_judgments(judgments: Iterable[Judgment], question: Question, place: object) -> None:
    """Raise DataError if a judgment has an aspect, a grade or a label that the question does not have.

    Args:
        judgments: Judgments by answers to the question, or inherited from such.
        question: Question of the task.
        place: File or argument with the judgments, for errors.
    """
    labels = get_labels(question.answer)
    names = {field: [str(label) for label in allowed] for field, allowed in labels.items()}
    grades = {field: [int(label) for label in labels[field]] for field in question.grades}
    stances = names.get("stance", [NO_STANCE_COLUMN])
    for judgment in judgments:
        if problem := _find_foreign_value(judgment, grades, names, stances):
            raise DataError(
                f"{place}: topic {judgment.topic_id}, document {judgment.document_id}: {problem}; judge it again"
            )


def _find_foreign_value(
    judgment: Judgment,
    grades: Mapping[str, Sequence[int]],
    names: Mapping[str, Sequence[str]],
    stances: Sequence[str],
) -> str | None:
    """Return the problem of the first value that the question does not have; None if it has all."""
    for aspect, grade in judgment.grades.items():
        if aspect not in grades:
            return f"grade of {aspect!r:.40}; the task grades {', '.join(grades)}"
        if not min(grades[aspect]) <= grade <= max(grades[aspect]):
            return f"{aspect} {grade:g}; expected {min(grades[aspect])} to {max(grades[aspect])}"
    if judgment.stance not in stances:
        return f"stance {judgment.stance!r:.40}; expected {', '.join(stances)}"
    for field, reading in judgment.readings.items():
        if field not in names:
            return f"reading of {field!r:.40}; the answer has {', '.join(names)}"
        for label in (str(reading.answered), *reading.shares):
            if label not in names[field]:
                return f"{field} {label!r:.40} in the answer; expected {', '.join(names[field])}"
    return None


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
