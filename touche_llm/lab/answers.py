"""What the lab shows of prompts and answers: fields, readings, messages, and the beginning of a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from touche_llm.data.records import Document, Reading
from touche_llm.evaluation.qrels import STANCE
from touche_llm.llm.model import AnsweredRequest
from touche_llm.prompt_lab.trial import Trial
from touche_llm.tasks.task import Task

# Characters of a text in a list.
_SNIPPET = 240
Fields = dict[str, dict[str, Any]]


def describe_fields(task: Task) -> list[dict[str, Any]]:
    """Return the fields of an answer: aspects with their grades, and the stance with its labels.

    `low` and `high` are the bounds of grades by people.
    """
    scales = task.qrels_scales
    fields: list[dict[str, Any]] = [
        {
            "name": name,
            "kind": "grade",
            "labels": [str(grade) for grade in task.aspects[name].grades],
            "low": max(scales[name].lowest, 0),
            "high": scales[name].highest,
        }
        for name in task.question.grades
    ]
    labels = list(task.stances)
    return fields + [
        {"name": STANCE, "kind": "label", "labels": labels, "low": None, "high": None}
    ] * bool(labels)


def read_fields(values: Mapping[str, Any], readings: Mapping[str, Reading]) -> Fields:
    """Return value, answered label, probabilities and the mass outside the labels of each field."""
    found: Fields = {}
    for name, value in values.items():
        reading = readings.get(name)
        found[name] = {
            "value": value,
            "answered": None if reading is None else reading.answered,
            "probabilities": None if reading is None else reading.probabilities,
            "off_label": None if reading is None else reading.off_label_mass,
        }
    return found


def make_snippet(document: Document) -> str:
    """Return the beginning of a document's text, as one line."""
    return " ".join(document.text[: 2 * _SNIPPET].split())[:_SNIPPET]


def describe_exchange(trial: Trial) -> dict[str, Any]:
    """Return the messages of a request, the answer and the reasoning, as they were sent and received."""
    messages = [{"role": message.role, "text": message.content} for message in trial.messages]
    if isinstance(trial.result, AnsweredRequest):
        return {
            "messages": messages,
            "answer": trial.result.answer.text,
            "thought": trial.result.thought,
        }
    last = trial.result.attempts[-1] if trial.result.attempts else None
    return {"messages": messages, "answer": "" if last is None else last.text, "thought": ""}
