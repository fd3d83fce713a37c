"""Pointwise judging: one answer per document, from topics and candidates to judgments and failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

from msgspec import UNSET

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import Cut, Failure, Judgment, Reading, StanceReading, Topic
from touche_llm.data.trec_runs import NO_STANCE_COLUMN
from touche_llm.judging.stance_labels import combine_position
from touche_llm.llm.answer_schema import AnswerModel, build_schema, count_alternatives, get_labels
from touche_llm.llm.client import FailedRequest
from touche_llm.llm.label_probabilities import have_probabilities
from touche_llm.llm.label_statistics import compute_expected_grade, get_most_probable
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.request import Origin, Request, Sampling, SystemPlace, place_system_message
from touche_llm.llm.settings import ThinkingConfig
from touche_llm.prompts.prompt import Prompt
from touche_llm.retrieval.corpus import Documents
from touche_llm.tasks.questions import Question, RenderedDocument
from touche_llm.tasks.task import Task
from touche_llm.text.passages import RankedPassages
from touche_llm.text.sanitize import sanitize

Done = Callable[[], None]
# Shows a stage by its title and number of steps; yields the function to call after each step.
Stage = Callable[[str, int], AbstractContextManager[Done]]


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Builder of a stage's requests, with at most the alternatives of `sampling`, and no more than the answer needs."""

    model: ModelClient
    sampling: Sampling
    chat_template_kwargs: Mapping[str, Any]
    concurrency: int
    thinking: ThinkingConfig = ThinkingConfig()
    system_message: SystemPlace = "role"

    def build(
        self,
        prompt: Prompt,
        answer: type[AnswerModel],
        topic: Topic,
        document_id: str | None,
        **variables: Any,
    ) -> Request:
        """Build the request of a prompt about a topic, or about a document for the topic."""
        schema = build_schema(answer, prompt.header.form)
        thinking = self.thinking.think_for(prompt.header.answer)
        return Request(
            messages=place_system_message(
                prompt.render(topic=topic, **variables), self.system_message
            ),
            schema=schema,
            sampling=replace(
                self.sampling,
                top_logprobs=min(self.sampling.top_logprobs, count_alternatives(schema)),
            ),
            model=self.model.engine_info.model,
            revision=self.model.engine_info.revision,
            chat_template_kwargs=self.thinking.chat_template_kwargs
            if thinking
            else self.chat_template_kwargs,
            origin=prompt.origin(topic.id, document_id),
            thinking=thinking,
        )

    def read_and_count_labels(
        self, result: AnsweredRequest[AnswerModel], origin: Origin, question: Question | None = None
    ) -> dict[str, Reading]:
        """Read the labels of an answer, and count answers whose labels cannot be read."""
        readings = read_labels(result, question)
        if self.sampling.top_logprobs:
            self.model.count_labels(origin, readings, describe_unread(result))
        return readings


def make_request_builder(model: ModelClient) -> RequestBuilder:
    """Make the builder of the requests to a model, with the client's settings."""
    settings = model.sampling
    sampling = Sampling(
        temperature=settings.temperature,
        seed=settings.seed,
        max_tokens=settings.max_tokens,
        top_logprobs=settings.top_logprobs,
    )
    return RequestBuilder(
        model=model,
        sampling=sampling,
        chat_template_kwargs=settings.chat_template_kwargs,
        concurrency=model.concurrency,
        thinking=settings.thinking,
        system_message=settings.system_message,
    )


def sanitize_document(shown: RenderedDocument) -> str | RankedPassages:
    """What a prompt shows of a document, with nothing in it that could act as chat control."""
    # Passages are sanitized already.
    return sanitize(shown.document) if isinstance(shown.document, str) else shown.document


async def find_objects(
    topics: list[Topic], task: Task, prompt: Prompt, builder: RequestBuilder, done: Done
) -> tuple[list[Topic], list[Failure]]:
    """Let the model find the objects in the titles of topics that have none.

    One that fails stays as it is.
    """

    async def find(topic: Topic) -> tuple[Topic, Failure | None]:
        if topic.objects is not None:
            return topic, None
        result = await request_objects(topic, task, prompt, builder)
        done()
        if not isinstance(result, AnsweredRequest):
            return topic, make_failure(topic, None, prompt, result)
        return replace(topic, objects=read_objects(result)), None

    results = await map_in_order(find, topics, builder.concurrency)
    return [topic for topic, _ in results], [failure for _, failure in results if failure]


async def request_objects(
    topic: Topic, task: Task, prompt: Prompt, builder: RequestBuilder
) -> AnsweredRequest[AnswerModel] | FailedRequest:
    """Request the objects in the title of a topic."""
    build_answer = task.objects_answer
    assert build_answer is not None  # The prompt exists only for tasks with objects.
    answer_model = build_answer(topic)
    request = builder.build(prompt, answer_model, topic, None)
    return await builder.model.request(request, answer_model)


def read_objects(result: AnsweredRequest[AnswerModel]) -> tuple[str, str]:
    """Return the two objects that the model found."""
    objects = result.value.model_dump()
    return objects["first"], objects["second"]


async def request_answer(
    topic: Topic,
    document_id: str,
    documents: Documents,
    question: Question,
    prompt: Prompt,
    builder: RequestBuilder,
) -> tuple[AnsweredRequest[AnswerModel] | FailedRequest, Cut | None]:
    """Request the answer to a question about one document.

    Return the document's truncation too, None if it is whole.

    The prompt receives `topic`, the question's own variables and `document`.
    """
    answer = prompt.answer_for(topic, 1)
    shown = question.render(topic, documents.get(document_id))

    def request(document: str) -> Request:
        return builder.build(
            prompt, answer, topic, document_id, document=document, **shown.variables
        )

    return await builder.model.request_truncated(request, sanitize_document(shown), answer)


def read_labels(
    result: AnsweredRequest[AnswerModel], question: Question | None = None
) -> dict[str, Reading]:
    """Return the reading of each field that has labels.

    If the answer has a position, and that of `question` has none, position and side are combined
    into the stance.
    """
    readings = dict(result.readings)
    if question is None or "position" not in readings:
        return readings
    if "position" in question.answer.model_fields:
        return readings
    sides = get_labels(type(result.value))["stance"]
    stances = get_labels(question.answer)["stance"]
    (without,) = set(stances) - set(sides)
    position = readings.pop("position")
    readings["stance"] = combine_position(
        position, readings["stance"], [str(label) for label in stances], str(without)
    )
    return readings


def describe_unread(result: AnsweredRequest[AnswerModel]) -> str:
    """Return why the labels of an answer cannot be read from log-probabilities; else nothing."""
    if have_probabilities(result.readings.values()):
        return ""
    if result.answer.tokens:
        why = "not all labels have log-probabilities in"
    else:
        why = "the log-probabilities do not spell"
    return f"{why} {result.answer.text!r:.80}"


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
    keys = [reply.key for reply in replies]
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
        key=keys[0] if len(keys) == 1 else None,
        keys=keys if len(keys) > 1 else UNSET,
        sample=max(reply.sample for reply in replies),
        thoughts=[key for reply in replies for key in reply.thoughts] or UNSET,
    )


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
        keys=[reply.key for reply in replies],
        thoughts=[key for reply in replies for key in reply.thoughts] or UNSET,
    )


def make_failure(
    topic: Topic, document_id: str | None, prompt: Prompt, failed: FailedRequest
) -> Failure | None:
    """Return the failure record of a request about a topic, or about documents for it.

    None for a replay miss.
    """
    if not (attempts := failed.attempts):
        return None
    return Failure(
        topic_id=topic.id,
        document_id=document_id,
        kind=attempts[-1].kind,
        prompt=prompt.label,
        attempts=attempts,
    )


def group_judgments(judgments: Iterable[Judgment]) -> defaultdict[str, dict[str, Judgment]]:
    """Return judgments by topic id and document id; other topics have none."""
    found: defaultdict[str, dict[str, Judgment]] = defaultdict(dict)
    for judgment in judgments:
        found[judgment.topic_id][judgment.document_id] = judgment
    return found
