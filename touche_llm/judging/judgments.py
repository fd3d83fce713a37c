"""Judgments of documents, from topics and candidates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from touche_llm.data.records import Cut, Judgment, Reading
from touche_llm.data.runs.writing import NO_STANCE_COLUMN
from touche_llm.judging.grades import compute_expected_grade
from touche_llm.judging.outcomes import Outcomes
from touche_llm.judging.replies import (
    DocumentReply,
    group_replies,
    list_thought_keys,
    send_requests,
)
from touche_llm.judging.requests import (
    DocumentRequest,
    Done,
    Requester,
    TopicDocument,
    group_by_topic,
)
from touche_llm.llm.label_probabilities import have_probabilities
from touche_llm.llm.label_statistics import get_most_probable
from touche_llm.prompts.prompt import Prompt
from touche_llm.retrieval.corpus import Documents
from touche_llm.tasks.questions import Question


async def judge(
    work: Sequence[TopicDocument],
    documents: Documents,
    question: Question,
    prompt: Prompt,
    requester: Requester,
    done: Done,
) -> Outcomes[Judgment]:
    """Judge documents for topics.

    A document is judged if each of its requests has a usable answer.

    Args:
        work: Documents to judge, topic by topic.
        documents: Texts of the documents.
        question: Question of the prompt, which renders the documents.
        prompt: Prompt to send.
        requester: Client of the model, and the builder of its requests.
        done: Called after each request.

    Returns:
        Judgments in the order of `work`, and failures in the order of the requests.

    Raises:
        EngineError: The engine failed, or the labels of no answer can be read.
        PromptError: The prompt is invalid, or leaves no room for a document.
    """
    replies = await send_requests(
        requests=_list_requests(work, prompt),
        documents=documents,
        question=question,
        judge_question=question,
        requester=requester,
        done=done,
    )
    replies_by_document = group_replies(replies.results)

    judgments: list[Judgment] = []
    for document in work:
        document_replies = replies_by_document.get(document.key, [])
        if len(document_replies) == prompt.requests_per_document:
            judgments.append(_make_judgment(document, question, prompt, document_replies))
    return Outcomes(judgments, replies.failures)


def _list_requests(work: Sequence[TopicDocument], prompt: Prompt) -> list[DocumentRequest]:
    """Return the requests, those of a topic together and among them those about one field.

    A server's prefix cache then holds what they share.
    """
    requests: list[DocumentRequest] = []
    for documents in group_by_topic(work):
        for request_prompt in prompt.request_prompts:
            for document in documents:
                request = DocumentRequest(document.topic, document.document_id, request_prompt)
                requests.append(request)
    return requests


def _make_judgment(
    document: TopicDocument,
    question: Question,
    prompt: Prompt,
    replies: Sequence[DocumentReply],
) -> Judgment:
    """Return the judgment of a document by the replies about it."""
    readings = _merge_readings(replies)
    has_probabilities = have_probabilities(readings.values())

    grades: dict[str, float] = {}
    for name, reading in readings.items():
        if name in question.grades:
            grades[name] = compute_expected_grade(reading)

    stance = NO_STANCE_COLUMN
    if "stance" in readings:
        stance = get_most_probable(readings["stance"])

    return Judgment(
        topic_id=document.topic.id,
        document_id=document.document_id,
        grades=grades,
        stance=stance,
        readings=readings,
        source="probabilities" if has_probabilities else "value",
        cut=_find_shortest(replies),
        prompt=prompt.label,
        answer_keys=[reply.key for reply in replies],
        sample=max(reply.sample for reply in replies),
        thought_keys=list_thought_keys(replies),
    )


def _merge_readings(replies: Iterable[DocumentReply]) -> dict[str, Reading]:
    """Return the readings of all fields; without probabilities if any field has none."""
    readings: dict[str, Reading] = {}
    for reply in replies:
        readings.update(reply.readings)

    if have_probabilities(readings.values()):
        return readings
    return {name: Reading(answered=reading.answered) for name, reading in readings.items()}


def _find_shortest(replies: Iterable[DocumentReply]) -> Cut | None:
    """Return the truncation that kept the fewest characters; None if none was truncated."""
    cuts = [reply.cut for reply in replies if reply.cut is not None]
    return min(cuts, key=lambda cut: cut.kept_chars, default=None)


def group_judgments(judgments: Iterable[Judgment]) -> defaultdict[str, dict[str, Judgment]]:
    """Return judgments by topic id and document id; other topics have none."""
    by_topic: defaultdict[str, dict[str, Judgment]] = defaultdict(dict)
    for judgment in judgments:
        by_topic[judgment.topic_id][judgment.document_id] = judgment
    return by_topic
