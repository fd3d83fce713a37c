"""Readings of the labels of answers."""

from __future__ import annotations

from collections.abc import Mapping

from touche_llm.data.records import Reading
from touche_llm.judging.requests import Requester
from touche_llm.llm.answer_schema import AnswerModel
from touche_llm.llm.label_probabilities import have_probabilities
from touche_llm.llm.model import AnsweredRequest
from touche_llm.llm.request import Origin


def count_labels(
    requester: Requester,
    origin: Origin,
    result: AnsweredRequest[AnswerModel],
    readings: Mapping[str, Reading],
) -> None:
    """Count whether the labels of an answer could be read from its log-probabilities.

    Nothing is counted if none were requested.

    Args:
        requester: Client of the model, which has the counts, and the builder of its requests.
        origin: Prompt, topic and documents of the request.
        result: Answer.
        readings: Readings of the answer's labels, by field.

    Raises:
        EngineError: The labels of no answer to the prompt can be read, and it has many.
    """
    if requester.builder.sampling.top_logprobs == 0:
        return

    counts = requester.client.labels
    if have_probabilities(result.readings.values()):
        counts.add_read(origin, readings)
    else:
        counts.add_unread(origin, describe_unread(result))


def describe_unread(result: AnsweredRequest[AnswerModel]) -> str:
    """Describe why the labels of an answer cannot be read from its log-probabilities."""
    if result.answer.tokens:
        problem = "not all labels have log-probabilities in"
    else:
        problem = "the log-probabilities do not spell"
    return f"{problem} {result.answer.text!r:.80}"
