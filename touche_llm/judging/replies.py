"""Replies about documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import Cut, Failure, Reading
from touche_llm.judging.outcomes import Outcomes, separate_failures
from touche_llm.judging.readings import count_labels
from touche_llm.judging.requests import (
    DocumentRequest,
    Done,
    Requester,
    make_failure,
    request_answer,
)
from touche_llm.llm.client import FailedRequest, UncachedRequest
from touche_llm.retrieval.corpus import Documents
from touche_llm.tasks.questions import Question


@dataclass(frozen=True, slots=True)
class DocumentReply:
    """Answer to a request about a document.

    Attributes:
        request: Request that was answered.
        readings: Readings of the labels, by field.
        key: Key of the answer in the cache.
        sample: Index of the sample that was usable.
        thought_keys: Keys of the thoughts before the answer; empty if the model did not reason.
        cut: Truncation of the document; None if the model saw all of it.
    """

    request: DocumentRequest
    readings: Mapping[str, Reading]
    key: str
    sample: int
    thought_keys: Sequence[str]
    cut: Cut | None


async def send_requests(
    requests: Sequence[DocumentRequest],
    documents: Documents,
    question: Question,
    judge_question: Question,
    requester: Requester,
    done: Done,
) -> Outcomes[DocumentReply]:
    """Send requests about a document each.

    Args:
        requests: Requests to send, in this order.
        documents: Texts of the documents.
        question: Question of the prompts, which renders the documents.
        judge_question: Question whose stances the readings have; it combines position and side.
        requester: Client of the model, and the builder of its requests.
        done: Called after each request.

    Returns:
        Replies and failures, in the order of the requests.

    Raises:
        EngineError: The engine failed, or the labels of no answer can be read.
        PromptError: A prompt is invalid, or leaves no room for a document.
    """
    send = partial(
        _send_request,
        documents=documents,
        question=question,
        judge_question=judge_question,
        requester=requester,
        done=done,
    )
    outcomes = await map_in_order(send, requests, requester.concurrency)
    return separate_failures(outcomes)


async def _send_request(
    request: DocumentRequest,
    *,
    documents: Documents,
    question: Question,
    judge_question: Question,
    requester: Requester,
    done: Done,
) -> DocumentReply | Failure | UncachedRequest:
    """Send one request; return its reply or failure.

    If answers are replayed from a cache that lacks this one, return the request itself.
    """
    result, cut = await request_answer(request, documents, question, requester)
    done()
    if isinstance(result, UncachedRequest):
        return result
    if isinstance(result, FailedRequest):
        return make_failure(request.topic, request.document_id, request.prompt, result)

    readings = judge_question.combine(result.readings)
    origin = request.prompt.origin(request.topic.id, request.document_id)
    count_labels(requester, origin, result, readings)
    return DocumentReply(
        request=request,
        readings=readings,
        key=result.key,
        sample=result.sample,
        thought_keys=[result.thought_key] if result.thought_key else [],
        cut=cut,
    )


def group_replies(replies: Iterable[DocumentReply]) -> dict[tuple[str, str], list[DocumentReply]]:
    """Return the replies by topic id and document id, in their order."""
    by_document: defaultdict[tuple[str, str], list[DocumentReply]] = defaultdict(list)
    for reply in replies:
        by_document[reply.request.topic.id, reply.request.document_id].append(reply)
    return dict(by_document)


def list_thought_keys(replies: Iterable[DocumentReply]) -> list[str]:
    """Return the keys of all thoughts, in the order of the replies."""
    keys: list[str] = []
    for reply in replies:
        keys.extend(reply.thought_keys)
    return keys
