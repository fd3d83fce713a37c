"""Stances of documents, judged with a prompt of their own, in one or both orders of the objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean

from touche_llm.data.records import StanceReading, Topic
from touche_llm.judging.outcomes import Outcomes
from touche_llm.judging.replies import (
    DocumentReply,
    group_replies,
    list_thought_keys,
    send_requests,
)
from touche_llm.judging.requests import DocumentRequest, RequestBuilder, Stage, TopicDocument
from touche_llm.llm.label_probabilities import have_probabilities
from touche_llm.prompts.prompt import Prompt
from touche_llm.retrieval.corpus import Documents
from touche_llm.tasks.questions import Question
from touche_llm.tasks.task import Task


@dataclass(frozen=True, slots=True)
class StanceJudge:
    """Judge of stances, with the stance prompt.

    Attributes:
        task: Task with the labels.
        question: Question of the stance prompt.
        prompt: Stance prompt.
        has_both_orders: Whether to request the stances with the objects of a topic in both orders,
            of which the mean is taken; a topic without objects has one order.
        builder: Builder of the requests.
    """

    task: Task
    question: Question
    prompt: Prompt
    has_both_orders: bool
    builder: RequestBuilder

    async def judge(
        self, work: Sequence[TopicDocument], documents: Documents, stage: Stage
    ) -> Outcomes[StanceReading]:
        """Judge the stances of documents.

        Args:
            work: Documents to judge, topic by topic.
            documents: Texts of the documents.
            stage: Shows the progress.

        Returns:
            Stances of the documents with a usable answer, in at least one order, and failures.

        Raises:
            EngineError: The engine failed, or the labels of no answer can be read.
            PromptError: The prompt is invalid, or leaves no room for a document.
        """
        requests = self._list_requests(work)
        with stage("judging stances", len(requests)) as done:
            replies = await send_requests(
                requests=requests,
                documents=documents,
                question=self.question,
                judge_question=self.task.question,
                builder=self.builder,
                done=done,
            )

        topics = {document.topic.id: document.topic for document in work}
        stances: list[StanceReading] = []
        for key, document_replies in group_replies(replies.results).items():
            topic_id, document_id = key
            document = TopicDocument(topics[topic_id], document_id)
            stances.append(self._average_replies(document, document_replies))
        return Outcomes(stances, replies.failures)

    def _list_requests(self, work: Iterable[TopicDocument]) -> list[DocumentRequest]:
        """Return the requests, those of a topic together and among them those of one order.

        Prompts begin with the objects, which a server's prefix cache then shares.
        """
        requests: list[DocumentRequest] = []
        for _, group in groupby(work, key=lambda document: document.topic.id):
            topic_documents = list(group)
            for topic in self._list_orders(topic_documents[0].topic):
                requests += [
                    DocumentRequest(topic, document.document_id, self.prompt)
                    for document in topic_documents
                ]
        return requests

    def _list_orders(self, topic: Topic) -> list[Topic]:
        """Return the topic, and the topic with reversed objects if both orders are requested."""
        if not self.has_both_orders or not self.task.swapped_stances or topic.objects is None:
            return [topic]
        first, second = topic.objects
        return [topic, replace(topic, objects=(second, first))]

    def _average_replies(
        self, document: TopicDocument, replies: Sequence[DocumentReply]
    ) -> StanceReading:
        """Return the mean stance of a document over the replies about it.

        Unless all replies have probabilities, their answered labels count as certain.
        """
        readings = [reply.readings["stance"] for reply in replies]
        is_certain = not have_probabilities(readings)

        distributions: list[Mapping[str, float]] = []
        for reply, reading in zip(replies, readings, strict=True):
            distribution = {reading.label: 1.0} if is_certain else reading.shares
            has_reversed_objects = reply.request.topic.objects != document.topic.objects
            if has_reversed_objects:
                distribution = _exchange_labels(distribution, self.task.swapped_stances)
            distributions.append(distribution)

        return StanceReading(
            topic_id=document.topic.id,
            document_id=document.document_id,
            probabilities=_average_distributions(distributions, self.task.stances),
            source="value" if is_certain else "probabilities",
            orders=len(replies),
            prompt=self.prompt.label,
            answer_keys=[reply.key for reply in replies],
            thought_keys=list_thought_keys(replies),
        )


def _exchange_labels(
    distribution: Mapping[str, float], counterparts: Mapping[str, str]
) -> dict[str, float]:
    """Return a distribution in which each label has the probability of its counterpart, if any.

    Args:
        distribution: Probabilities by label.
        counterparts: Pairs of labels to exchange, in both directions.
    """
    exchanged: dict[str, float] = {}
    for label, probability in distribution.items():
        exchanged[counterparts.get(label, label)] = probability
    return exchanged


def _average_distributions(
    distributions: Sequence[Mapping[str, float]], labels: Iterable[str]
) -> dict[str, float]:
    """Return the mean probability of each label; a distribution without a label gives it 0."""
    means: dict[str, float] = {}
    for label in labels:
        mean = fmean(distribution.get(label, 0.0) for distribution in distributions)
        means[label] = round(mean, 9)
    return means
