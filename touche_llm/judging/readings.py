"""Readings of the labels of answers."""

from __future__ import annotations

from collections.abc import Mapping

from touche_llm.data.records import Reading
from touche_llm.judging.requests import RequestBuilder
from touche_llm.llm.answer_schema import AnswerModel
from touche_llm.llm.label_probabilities import have_probabilities
from touche_llm.llm.model import AnsweredRequest
from touche_llm.llm.request import Origin


def count_labels(
    builder: RequestBuilder,
    origin: Origin,
    result: AnsweredRequest[AnswerModel],
    readings: Mapping[str, Reading],
) -> None:
    """Count an answer among those whose labels are to be read from log-probabilities.

    Nothing is counted if the requests ask for no log-probabilities.

    Args:
        builder: Builder of the requests, whose model has the counts.
        origin: Prompt, topic and documents of the request.
        result: Answer.
        readings: Readings of the answer's labels, by field.

    Raises:
        EngineError: The labels of no answer to the prompt can be read, and it has many.
    """
    if builder.sampling.top_logprobs == 0:
        return

    if have_probabilities(result.readings.values()):
        builder.model.labels.add_read(origin, readings)
    else:
        builder.model.labels.add_unread(origin, describe_unread(result))


def describe_unread(result: AnsweredRequest[AnswerModel]) -> str:
    """Describe why the labels of an answer cannot be read from its log-probabilities."""
    if result.answer.tokens:
        problem = "not all labels have log-probabilities in"
    else:
        problem = "the log-probabilities do not spell"
    return f"{problem} {result.answer.text!r:.80}"
