"""Readings of the labels of answers."""

from __future__ import annotations

from touche_llm.data.records import Reading
from touche_llm.llm.answer_schema import AnswerModel
from touche_llm.llm.label_probabilities import have_probabilities
from touche_llm.llm.model import AnsweredRequest
from touche_llm.tasks.questions import Question


def read_labels(
    result: AnsweredRequest[AnswerModel], question: Question | None = None
) -> dict[str, Reading]:
    """Return the reading of each field that has labels.

    If the answer has a position, and that of `question` has none, position and side are combined
    into the stance.
    """
    if question is None:
        return dict(result.readings)
    return question.combine(result.readings)


def describe_unread(result: AnsweredRequest[AnswerModel]) -> str:
    """Return why the labels of an answer cannot be read from log-probabilities; else nothing."""
    if have_probabilities(result.readings.values()):
        return ""
    if result.answer.tokens:
        why = "not all labels have log-probabilities in"
    else:
        why = "the log-probabilities do not spell"
    return f"{why} {result.answer.text!r:.80}"
