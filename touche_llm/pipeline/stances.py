"""Stance questions: whether a document takes a position, then which one, with the objects in both orders."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import groupby
from statistics import fmean

from touche_llm.data.records import Failure, Reading, StanceReading, Topic
from touche_llm.judging.pointwise import (
    Documents,
    RequestBuilder,
    list_thoughts,
    make_failure,
    request_answer,
)
from touche_llm.llm.answers import AnswerModel
from touche_llm.llm.concurrency import map_in_order
from touche_llm.llm.model import AnsweredRequest
from touche_llm.prompts.prompt import Prompt
from touche_llm.tasks.base import Task

# An answer, the reading of its stance, and whether the objects were swapped.
_Answered = tuple[AnsweredRequest[AnswerModel], Reading, bool]


async def judge_stances(
    work: list[tuple[Topic, str]],
    documents: Documents,
    task: Task,
    prompt: Prompt,
    both_orders: bool,
    builder: RequestBuilder,
    stage: Callable[[str, int], AbstractContextManager[Callable[[], None]]],
) -> tuple[list[StanceReading], list[Failure]]:
    """Judge the stances of documents, with the probabilities of all labels of the task.

    Args:
        work: Topics and document ids.
        documents: Documents by id.
        task: Task with a `stance_question`.
        prompt: Template with the variables `topic`, `document` and those of the question.
        both_orders: Whether to average both orders of a topic's two objects.
        builder: Builds the requests.
        stage: Shows a stage by its title and number of steps.

    Returns:
        Readings, of one order if the other has no usable answer, and failures, each in the order of `work`.
    """
    question = task.stance_question
    assert question is not None
    asked = []
    # All requests of one order come together because prompts begin with the objects, which a prefix cache shares.
    for _, of_topic in groupby(work, key=lambda item: item[0].id):
        documents_of = list(of_topic)
        asked += [(topic, document_id, False) for topic, document_id in documents_of]
        for topic, document_id in documents_of:
            if both_orders and topic.objects is not None and task.swapped_stances:
                first, second = topic.objects
                asked.append((replace(topic, objects=(second, first)), document_id, True))

    with stage("judging stances", len(asked)) as done:

        async def ask(item: tuple[Topic, str, bool]) -> _Answered | Failure | None:
            topic, document_id, swapped = item
            result, _ = await request_answer(topic, document_id, documents, question, prompt, builder)
            done()
            if not isinstance(result, AnsweredRequest):
                return make_failure(topic, document_id, prompt, result)
            # The task's own question has the labels of whole stances.
            readings = builder.read_labels(result, prompt.origin(topic.id, document_id), task.question)
            return result, readings["stance"], swapped

        results = await map_in_order(ask, asked, builder.concurrency)
    answers: dict[tuple[str, str], list[_Answered]] = {}
    for (topic, document_id, _), result in zip(asked, results, strict=True):
        if isinstance(result, tuple):
            answers.setdefault((topic.id, document_id), []).append(result)
    stances = []
    for (topic_id, document_id), both in answers.items():
        known = all(reading.probabilities is not None for _, reading, _ in both)
        # Labels count as certain unless all orders have probabilities.
        shares = [_get_shares(reading, task, swapped, known) for _, reading, swapped in both]
        stances.append(
            StanceReading(
                topic_id=topic_id,
                document_id=document_id,
                probabilities={label: round(fmean(share[label] for share in shares), 9) for label in task.stances},
                source="probabilities" if known else "value",
                orders=len(both),
                prompt=prompt.label,
                keys=[result.key for result, _, _ in both],
                thoughts=list_thoughts(result for result, _, _ in both),
            )
        )
    return stances, [result for result in results if isinstance(result, Failure)]


def _get_shares(reading: Reading, task: Task, swapped: bool, known: bool) -> dict[str, float]:
    """Return the probability of each label of the task; without `known` probabilities, labels count as certain."""
    shares = reading.shares if known else {str(reading.answered): 1.0}
    names = task.swapped_stances if swapped else {}
    return {label: shares.get(names.get(label, label), 0.0) for label in task.stances}
