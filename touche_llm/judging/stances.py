"""Stances of documents, judged in both orders of the objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean

from touche_llm.data.records import Failure, StanceReading, Topic
from touche_llm.judging.replies import DocumentReply, send_requests
from touche_llm.judging.requests import RequestBuilder, Stage
from touche_llm.prompts.prompt import Prompt
from touche_llm.retrieval.corpus import Documents
from touche_llm.tasks.task import Task


async def judge_stances(
    work: list[tuple[Topic, str]],
    documents: Documents,
    task: Task,
    prompt: Prompt,
    both_orders: bool,
    builder: RequestBuilder,
    stage: Stage,
) -> tuple[list[StanceReading], list[Failure]]:
    """Judge the stances of documents, with the probabilities of all labels of the task.

    With `both_orders`, those of both orders of a topic's two objects are averaged, unless one has
    no usable answer. Readings and failures are in the order of `work`.
    """
    assert task.stance_question is not None
    topics = {topic.id: topic for topic, _ in work}
    requests: list[tuple[Topic, str, Prompt]] = []
    # All requests of one order come together because prompts begin with the objects, which a prefix
    # cache shares.
    for topic_id, of_topic in groupby(work, key=lambda item: item[0].id):
        orders, documents_of = [topics[topic_id]], list(of_topic)
        if both_orders and task.swapped_stances and (objects := orders[0].objects) is not None:
            orders.append(replace(orders[0], objects=objects[::-1]))
        requests += [
            (topic, document_id, prompt) for topic in orders for _, document_id in documents_of
        ]
    with stage("judging stances", len(requests)) as done:
        found, failures = await send_requests(
            requests, documents, task.stance_question, builder, done, task.question
        )
    readings = [
        _average_replies(topics[topic_id], document_id, replies, task, prompt.label)
        for (topic_id, document_id), replies in found.items()
    ]
    return readings, failures


def _average_replies(
    topic: Topic, document_id: str, replies: Sequence[DocumentReply], task: Task, prompt: str
) -> StanceReading:
    """Return the stance of a document, averaged over replies.

    Those of the other order have exchanged labels.
    """
    swapped = [
        task.swapped_stances if reply.topic.objects != topic.objects else {} for reply in replies
    ]
    readings = [reply.readings["stance"] for reply in replies]
    # Labels count as certain unless all answers have probabilities.
    known = all(reading.probabilities is not None for reading in readings)
    shares = [reading.shares if known else {str(reading.answered): 1.0} for reading in readings]

    def average(label: str) -> float:
        found = (
            share.get(names.get(label, label), 0.0)
            for share, names in zip(shares, swapped, strict=True)
        )
        return round(fmean(found), 9)

    return StanceReading(
        topic_id=topic.id,
        document_id=document_id,
        probabilities={label: average(label) for label in task.stances},
        source="probabilities" if known else "value",
        orders=len(replies),
        prompt=prompt,
        answer_keys=[reply.key for reply in replies],
        thought_keys=[key for reply in replies for key in reply.thoughts],
    )
