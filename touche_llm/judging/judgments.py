"""Judgments of documents, from topics and candidates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

from touche_llm.data.records import Failure, Judgment, Reading, Topic
from touche_llm.data.runs.writing import NO_STANCE_COLUMN
from touche_llm.judging.grades import compute_expected_grade
from touche_llm.judging.replies import DocumentReply, send_requests
from touche_llm.judging.requests import Done, RequestBuilder
from touche_llm.llm.label_statistics import get_most_probable
from touche_llm.prompts.prompt import Prompt
from touche_llm.retrieval.corpus import Documents
from touche_llm.tasks.questions import Question


async def judge(
    work: list[tuple[Topic, str]],
    documents: Documents,
    question: Question,
    prompt: Prompt,
    builder: RequestBuilder,
    done: Done,
) -> tuple[list[Judgment], list[Failure]]:
    """Judge documents, and return judgments in the order of `work`, and failures in that of the requests.

    Requests are sent topic by topic, and of a topic those of one part of the prompt together, so
    that a server's prefix cache holds what they share. A document is judged if all parts have an
    answer.
    """
    by_topic = (list(of_topic) for _, of_topic in groupby(work, key=lambda item: item[0].id))
    requests = [(*item, sent) for of_topic in by_topic for sent in prompt.sent for item in of_topic]
    found, failures = await send_requests(requests, documents, question, builder, done, question)
    judgments = [
        _make_judgment(topic.id, document_id, prompt.label, replies)
        for topic, document_id in work
        if len(replies := found.get((topic.id, document_id), [])) == len(prompt.sent)
    ]
    return judgments, failures


def _make_judgment(
    topic_id: str, document_id: str, prompt: str, replies: Sequence[DocumentReply]
) -> Judgment:
    """Return the judgment of a document by the replies about it.

    If one lacks probabilities, none has any.
    """
    readings = {field: reading for reply in replies for field, reading in reply.readings.items()}
    complete = all(reading.probabilities is not None for reading in readings.values())
    if not complete:
        readings = {
            field: Reading(answered=reading.answered) for field, reading in readings.items()
        }
    graded = {
        field: reading for field, reading in readings.items() if isinstance(reading.answered, int)
    }
    return Judgment(
        topic_id=topic_id,
        document_id=document_id,
        grades={field: compute_expected_grade(reading) for field, reading in graded.items()},
        stance=get_most_probable(readings["stance"]) if "stance" in readings else NO_STANCE_COLUMN,
        readings=readings,
        source="probabilities" if complete else "value",
        cut=min(
            (reply.cut for reply in replies if reply.cut),
            key=lambda cut: cut.kept_chars,
            default=None,
        ),
        prompt=prompt,
        answer_keys=[reply.key for reply in replies],
        sample=max(reply.sample for reply in replies),
        thought_keys=[key for reply in replies for key in reply.thoughts],
    )


def group_judgments(judgments: Iterable[Judgment]) -> defaultdict[str, dict[str, Judgment]]:
    """Return judgments by topic id and document id; other topics have none."""
    found: defaultdict[str, dict[str, Judgment]] = defaultdict(dict)
    for judgment in judgments:
        found[judgment.topic_id][judgment.document_id] = judgment
    return found
