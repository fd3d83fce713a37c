"""What the lab shows of prompts and answers: fields, readings and messages.

The records are sent to the page as JSON; their attributes are the names that its scripts read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from touche_llm.data.records import Attempt, Document, Label, Reading
from touche_llm.evaluation.qrels import STANCE
from touche_llm.llm.model import AnsweredRequest
from touche_llm.prompt_lab.trial import Trial
from touche_llm.tasks.task import Task

# Characters of a text in a list.
_SNIPPET_CHARS = 240


@dataclass(frozen=True, slots=True)
class AnswerField:
    """Field of an answer: an aspect with its grades, or the stance with its labels.

    Attributes:
        name: Name of the field.
        kind: Whether its values are grades or labels.
        labels: Labels that the model chooses from.
        low: Lowest grade by people; None for labels.
        high: Highest grade by people; None for labels.
    """

    name: str
    kind: Literal["grade", "label"]
    labels: list[str]
    low: int | None
    high: int | None

    def list_user_labels(self) -> list[Label]:
        """Return the values that people may give."""
        if self.low is None or self.high is None:
            return [*self.labels]
        return [*range(self.low, self.high + 1)]


@dataclass(frozen=True, slots=True)
class FieldReading:
    """Reading of one field of an answer.

    Attributes:
        value: Expected grade, or the most probable label.
        answered: Label in the text of the answer; None if there is no reading.
        probabilities: By label; None if the engine sent no logprobs.
        off_label: Probability mass outside all labels; None if it is unknown.
    """

    value: float | str
    answered: Label | None
    probabilities: dict[str, float] | None
    off_label: float | None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """Message of a request."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """Request and answer, as they were sent and received.

    Attributes:
        messages: Messages of the request.
        answer: Text of the answer, or of the last unusable one.
        thought: Reasoning before the answer; empty if there was none.
    """

    messages: list[ChatMessage]
    answer: str
    thought: str


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """Unusable answer.

    Attributes:
        sample: Index of the sample.
        kind: Kind of failure.
        reason: Why the answer is unusable.
        text: Shortened text of the answer.
    """

    sample: int
    kind: str
    reason: str
    text: str


def describe_fields(task: Task) -> list[AnswerField]:
    """Return the fields of an answer of the judge prompt.

    The stance is the last one, if any.
    """
    fields = [_describe_aspect(task, name) for name in task.question.grades]
    if task.stances:
        stance = AnswerField(
            name=STANCE,
            kind="label",
            labels=list(task.stances),
            low=None,
            high=None,
        )
        fields.append(stance)
    return fields


def _describe_aspect(task: Task, name: str) -> AnswerField:
    """Return the field of an aspect; people give no grades below 0."""
    people_scale = task.qrels_scales[name]
    return AnswerField(
        name=name,
        kind="grade",
        labels=[str(grade) for grade in task.aspects[name].grades],
        low=max(people_scale.lowest, 0),
        high=people_scale.highest,
    )


def read_fields(
    values: Mapping[str, float | str], readings: Mapping[str, Reading]
) -> dict[str, FieldReading]:
    """Return the reading of each field that has a value.

    Args:
        values: Grades and stance, by field.
        readings: Readings of the answer, by field.
    """
    return {name: _read_field(value, readings.get(name)) for name, value in values.items()}


def _read_field(value: float | str, reading: Reading | None) -> FieldReading:
    """Return the reading of one field."""
    if reading is None:
        return FieldReading(value=value, answered=None, probabilities=None, off_label=None)
    return FieldReading(
        value=value,
        answered=reading.answered,
        probabilities=reading.probabilities,
        off_label=reading.off_label_mass,
    )


def make_snippet(document: Document) -> str:
    """Return the beginning of a document's text, as one line."""
    # White space is collapsed first, so that the line has its full length.
    beginning = document.text[: 2 * _SNIPPET_CHARS]
    return " ".join(beginning.split())[:_SNIPPET_CHARS]


def describe_exchange(trial: Trial) -> Exchange:
    """Return a request with its answer and reasoning, or with its last unusable answer."""
    messages = [ChatMessage(message.role, message.content) for message in trial.messages]
    result = trial.result
    if isinstance(result, AnsweredRequest):
        return Exchange(messages, answer=result.answer.text, thought=result.thought)
    last_attempt = trial.attempts[-1]
    return Exchange(messages, answer=last_attempt.text, thought="")


def describe_attempt(attempt: Attempt) -> FailedAttempt:
    """Return an unusable answer."""
    return FailedAttempt(
        sample=attempt.sample,
        kind=attempt.kind,
        reason=attempt.reason,
        text=attempt.text,
    )
