"""Replies about documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import Cut, Failure, Reading, Topic
from touche_llm.judging.requests import Done, RequestBuilder, make_failure, request_answer
from touche_llm.llm.model import AnsweredRequest
from touche_llm.prompts.prompt import Prompt
from touche_llm.retrieval.corpus import Documents
from touche_llm.tasks.questions import Question


class DocumentReply(NamedTuple):
    """The labels of an answer about a document, where it is stored, and what the model saw of the document."""

    readings: dict[str, Reading]
    key: str
    sample: int
    thoughts: list[str]
    cut: Cut | None
    topic: Topic


async def send_requests(
    requests: Sequence[tuple[Topic, str, Prompt]],
    documents: Documents,
    question: Question,
    builder: RequestBuilder,
    done: Done,
    whole: Question,
) -> tuple[dict[tuple[str, str], list[DocumentReply]], list[Failure]]:
    """Send requests about a document each.

    Return the replies by topic id and document id, and the failures.

    The labels are read for the question `whole`, which has those of whole stances, see
    `read_labels`.
    """
    found: defaultdict[tuple[str, str], list[DocumentReply]] = defaultdict(list)

    async def send(item: tuple[Topic, str, Prompt]) -> DocumentReply | Failure | None:
        topic, document_id, prompt = item
        result, cut = await request_answer(topic, document_id, documents, question, prompt, builder)
        done()
        if not isinstance(result, AnsweredRequest):
            return make_failure(topic, document_id, prompt, result)
        readings = builder.read_and_count_labels(
            result, prompt.origin(topic.id, document_id), whole
        )
        thoughts = [result.thought_key] if result.thought_key else []
        return DocumentReply(readings, result.key, result.sample, thoughts, cut, topic)

    results = await map_in_order(send, requests, builder.concurrency)
    for (topic, document_id, _), result in zip(requests, results, strict=True):
        if isinstance(result, DocumentReply):
            found[topic.id, document_id].append(result)
    return found, [result for result in results if isinstance(result, Failure)]
