"""Stances of documents, judged with a prompt of their own, in one or both orders of the objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from touche_llm.data.records import StanceReading, Topic
from touche_llm.judging.outcomes import Outcomes
from touche_llm.judging.replies import (
    DocumentReply,
    group_replies,
    list_thought_keys,
    send_requests,
)
from touche_llm.judging.requests import (
    DocumentRequest,
    Requester,
    Stage,
    TopicDocument,
    group_by_topic,
)
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
        requester: Client of the model, and the builder of its requests.
    """

    task: Task
    question: Question
    prompt: Prompt
    has_both_orders: bool
    requester: Requester

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
                requester=self.requester,
                done=done,
            )

        document_by_key = {document.key: document for document in work}
        stances: list[StanceReading] = []
        for key, document_replies in group_replies(replies.results).items():
            stance = self._average_replies(document_by_key[key], document_replies)
            stances.append(stance)
        return Outcomes(stances, replies.failures)

    def _list_requests(self, work: Iterable[TopicDocument]) -> list[DocumentRequest]:
        """Return the requests, grouped by topic, and then by the order of the topic's objects.

        Prompts begin with the objects, so that a server's prefix cache serves the requests of each
        group.
        """
        requests: list[DocumentRequest] = []
        for documents in group_by_topic(work):
            topic = documents[0].topic
            for ordered_topic in self._list_orders(topic):
                for document in documents:
                    request = DocumentRequest(ordered_topic, document.document_id, self.prompt)
                    requests.append(request)
        return requests

    def _list_orders(self, topic: Topic) -> list[Topic]:
        """Return the topic, and the topic with reversed objects if both orders are requested."""
        # Labels such as FIRST and SECOND depend on the order of the objects.
        has_ordered_labels = bool(self.task.swapped_stances)
        should_reverse = self.has_both_orders and has_ordered_labels
        if not should_reverse or topic.objects is None:
            return [topic]

        first, second = topic.objects
        return [topic, replace(topic, objects=(second, first))]

    def _average_replies(
        self, document: TopicDocument, replies: Sequence[DocumentReply]
    ) -> StanceReading:
        """Return the mean stance of a document over the replies about it.

        If a reply has no probabilities, the answered label of each reply counts with probability 1.
        """
        readings = [reply.readings["stance"] for reply in replies]
        has_probabilities = have_probabilities(readings)

        distributions: list[Mapping[str, float]] = []
        for reply, reading in zip(replies, readings, strict=True):
            distribution: Mapping[str, float]
            if has_probabilities:
                distribution = reading.shares
            else:
                distribution = {reading.label: 1.0}

            # FIRST of a reply about the reversed objects is SECOND of the document.
            has_reversed_objects = reply.request.topic.objects != document.topic.objects
            if has_reversed_objects:
                distribution = _exchange_labels(distribution, self.task.swapped_stances)
            distributions.append(distribution)

        return StanceReading(
            topic_id=document.topic.id,
            document_id=document.document_id,
            probabilities=_average_distributions(distributions, self.task.stances),
            source="probabilities" if has_probabilities else "value",
            orders=len(replies),
            prompt=self.prompt.label,
            answer_keys=[reply.key for reply in replies],
            thought_keys=list_thought_keys(replies),
        )


def _exchange_labels(
    distribution: Mapping[str, float], counterparts: Mapping[str, str]
) -> dict[str, float]:
    """Return a distribution in which the labels of each pair of counterparts are exchanged.

    Args:
        distribution: Probabilities by label.
        counterparts: Counterpart of each label that has one, as FIRST of SECOND and the reverse.
    """
    exchanged: dict[str, float] = {}
    for label, probability in distribution.items():
        counterpart = counterparts.get(label, label)
        exchanged[counterpart] = probability
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
