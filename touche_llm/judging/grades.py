"""Grades: where a label's probability becomes a grade, and where grades are combined."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from touche_llm.data.records import Judgment, Reading
from touche_llm.data.runs.writing import NO_STANCE_COLUMN
from touche_llm.errors import DataError
from touche_llm.llm.answer_schema import get_labels
from touche_llm.llm.label_probabilities import round_nine_digits
from touche_llm.tasks.parts import FIRST_STAGE, Scale
from touche_llm.tasks.questions import Question


def compute_expected_grade(reading: Reading) -> float:
    """Return the expected grade: the mean of the grades, weighted with their probabilities.

    Args:
        reading: Reading of a field whose labels are integers.

    Returns:
        Mean, rounded to nine digits; the answered grade if the reading has no probabilities.
    """
    if reading.probabilities is None:
        return float(reading.answered)

    probabilities: dict[int, float] = {}
    for label, probability in reading.probabilities.items():
        probabilities[int(label)] = probability
    mean = math.fsum([grade * probability for grade, probability in probabilities.items()])

    # Rounded probabilities can add up to slightly more or less than 1.
    lowest_grade = float(min(probabilities))
    highest_grade = float(max(probabilities))
    mean = min(max(mean, lowest_grade), highest_grade)
    return round_nine_digits(mean)


def check_judgments(judgments: Iterable[Judgment], question: Question, place: object) -> None:
    """Raise an error if a judgment does not fit the question.

    Args:
        judgments: Judgments to check.
        question: Question whose answers have been judged.
        place: Source of the judgments, such as a file, for the message.

    Raises:
        DataError: A judgment has an aspect, grade or label that the question lacks.
    """
    allowed = _AllowedValues.from_question(question)
    for judgment in judgments:
        problems = allowed.list_problems(judgment)
        if problems:
            found = ", ".join(problems)
            raise DataError(
                f"{place}: topic {judgment.topic_id}, document {judgment.document_id}: {found:.120}; "
                f"expected {allowed}; judge it again"
            )


@dataclass(frozen=True, slots=True)
class _AllowedValues:
    """Values that a judgment can have.

    Attributes:
        labels: Labels by field of the answer, as texts.
        scales: Lowest and highest grade of each field that is a grade.
    """

    labels: Mapping[str, Sequence[str]]
    scales: Mapping[str, Scale]

    @classmethod
    def from_question(cls, question: Question) -> _AllowedValues:
        """Return the values that fit a question."""
        labels: dict[str, list[str]] = {}
        for name, allowed in get_labels(question.answer).items():
            labels[name] = [str(label) for label in allowed]

        scales: dict[str, Scale] = {}
        for name in question.grades:
            grades = [int(label) for label in labels[name]]
            scales[name] = Scale(lowest=min(grades), highest=max(grades))
        return cls(labels, scales)

    def __str__(self) -> str:
        return "; ".join(f"{name} {', '.join(labels)}" for name, labels in self.labels.items())

    def list_problems(self, judgment: Judgment) -> list[str]:
        """Return the grades and labels of a judgment that are not allowed, in words."""
        problems: list[str] = []
        for aspect, grade in judgment.grades.items():
            if not self._has_grade(aspect, grade):
                problems.append(f"{aspect} {grade:g}")

        stances = self.labels.get("stance", [NO_STANCE_COLUMN])
        if judgment.stance not in stances:
            problems.append(f"stance {judgment.stance:.40}")

        for name, reading in judgment.readings.items():
            labels = {reading.label, *reading.shares}
            unknown = labels.difference(self.labels.get(name, ()))
            problems += [f"{name} {label:.40}" for label in sorted(unknown)]
        return problems

    def _has_grade(self, aspect: str, grade: float) -> bool:
        """Return whether a grade is within the scale of an aspect that is graded."""
        if aspect not in self.scales:
            return False
        scale = self.scales[aspect]
        return scale.lowest <= grade <= scale.highest


def combine_grades(
    judgment: Judgment,
    weights: Mapping[str, float],
    scales: Mapping[str, Scale],
    first_stage: float | None = None,
) -> float:
    """Return the weighted mean of a judgment's grades and of the first-stage score.

    Args:
        judgment: Judgment with the grades, each of which counts as its share of the scale.
        weights: Weights by aspect, and of the first stage.
        scales: Scales by aspect.
        first_stage: Score of the first stage, from 0 to 1; None to leave it out.

    Returns:
        Mean from 0 to 1; 0 if all weights are 0.
    """
    values = {name: scales[name].to_share(grade) for name, grade in judgment.grades.items()}
    if first_stage is not None:
        values[FIRST_STAGE] = first_stage

    total_weight = sum(weights[name] for name in values)
    if total_weight == 0:
        return 0.0
    weighted_sum = sum(weights[name] * value for name, value in values.items())
    return weighted_sum / total_weight


def mean_off_label_mass(judgments: Iterable[Judgment]) -> float | None:
    """Return the mean probability outside the labels over all fields of judgments.

    Returns:
        Mean, rounded to six digits; None if no field has probabilities.
    """
    masses: list[float] = []
    for judgment in judgments:
        for reading in judgment.readings.values():
            if reading.off_label_mass is not None:
                masses.append(reading.off_label_mass)

    if not masses:
        return None
    return round(sum(masses) / len(masses), 6)
