"""Readings of the labels of answers."""

from __future__ import annotations

from touche_llm.data.records import Reading
from touche_llm.llm.answer_schema import AnswerModel, get_labels
from touche_llm.llm.label_probabilities import have_probabilities
from touche_llm.llm.model import AnsweredRequest
from touche_llm.tasks.positions import combine_position
from touche_llm.tasks.questions import Question


def read_labels(
    result: AnsweredRequest[AnswerModel], question: Question | None = None
) -> dict[str, Reading]:
    """Return the reading of each field that has labels.

    If the answer has a position, and that of `question` has none, position and side are combined
    into the stance.
    """
    readings = dict(result.readings)
    if question is None or "position" not in readings:
        return readings
    if "position" in question.answer.model_fields:
        return readings
    sides = get_labels(type(result.value))["stance"]
    stances = get_labels(question.answer)["stance"]
    (without,) = set(stances) - set(sides)
    position = readings.pop("position")
    readings["stance"] = combine_position(
        position, readings["stance"], [str(label) for label in stances], str(without)
    )
    return readings


def describe_unread(result: AnsweredRequest[AnswerModel]) -> str:
    """Return why the labels of an answer cannot be read from log-probabilities; else nothing."""
    if have_probabilities(result.readings.values()):
        return ""
    if result.answer.tokens:
        why = "not all labels have log-probabilities in"
    else:
        why = "the log-probabilities do not spell"
    return f"{why} {result.answer.text!r:.80}"
