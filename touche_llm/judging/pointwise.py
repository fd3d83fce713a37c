"""Pointwise judging: one answer per document, from topics and candidates to judgments and failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any, Protocol

from msgspec import UNSET, UnsetType
from msgspec.structs import replace as replace_fields

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import Cut, Document, Failure, Judgment, Reading, StanceReading, Topic
from touche_llm.data.trec_runs import NO_STANCE_COLUMN
from touche_llm.judging.labels import combine_position
from touche_llm.llm.answers import AnswerModel, FailedRequest, build_schema, count_alternatives, get_labels
from touche_llm.llm.logprobs import Label, average_readings, compute_expected_grade, get_most_probable, read_label
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.request import Origin, Request, Sampling, SystemPlace, place_system_message
from touche_llm.llm.settings import ThinkingConfig
from touche_llm.prompts.prompt import Prompt
from touche_llm.tasks.features import Question, RenderedDocument
from touche_llm.tasks.task import Task
from touche_llm.text.passages import RankedPassages
from touche_llm.text.sanitize import sanitize

Done = Callable[[], None]
# Shows a stage by its title and number of steps; yields the function to call after each step.
Stage = Callable[[str, int], AbstractContextManager[Done]]
# By topic id and document id; empty for other topics.
JudgmentsByTopic = defaultdict[str, dict[str, Judgment]]


class Documents(Protocol):
    """Source of documents."""

    def get(self, document_id: str) -> Document:
        """Return the document with this id; raise DataError if there is none."""
        ...

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the given ids that the source does not have."""
        ...


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Builder of a stage's requests, with at most the alternatives of `sampling`, and no more than the answer needs.

    Attributes:
        thinking: Reasoning before the answers, by purpose of the prompt.
        system_message: Where the instructions are.
    """

    model: ModelClient
    sampling: Sampling
    chat_template_kwargs: Mapping[str, Any]
    concurrency: int
    thinking: ThinkingConfig = ThinkingConfig()
    system_message: SystemPlace = "role"

    def build(
        self, prompt: Prompt, answer: type[AnswerModel], topic: Topic, document_id: str | None, **variables: Any
    ) -> Request:
        """Build the request of a prompt about a topic, or about a document for the topic."""
        schema = build_schema(answer, prompt.header.form)
        thinking = self.thinking.think_for(prompt.header.answer)
        return Request(
            messages=place_system_message(prompt.render(topic=topic, **variables), self.system_message),
            schema=schema,
            sampling=replace(self.sampling, top_logprobs=min(self.sampling.top_logprobs, count_alternatives(schema))),
            model=self.model.engine_info.model,
            revision=self.model.engine_info.revision,
            chat_template_kwargs=self.thinking.chat_template_kwargs if thinking else self.chat_template_kwargs,
            origin=prompt.origin(topic.id, document_id),
            thinking=thinking,
        )

    def read_labels(
        self, result: AnsweredRequest[AnswerModel], origin: Origin, question: Question | None = None
    ) -> dict[str, Reading]:
        """Read the labels of an answer, see the function of that name, and count them.

        Raises:
            EngineError: None of many answers can be read from log-probabilities.
        """
        readings = read_labels(result, question)
        for place, chain in enumerate(result.chains if self.sampling.top_logprobs else ()):
            # The readings are the mean over the chains.
            self.model.count_labels(origin, {} if place else readings, _find_problem(chain))
        return readings


def sanitize_document(shown: RenderedDocument) -> str | RankedPassages:
    """What a prompt shows of a document, with nothing in it that could act as chat control."""
    # Passages are sanitized already.
    return sanitize(shown.document) if isinstance(shown.document, str) else shown.document


async def find_objects(
    topics: list[Topic], task: Task, prompt: Prompt, builder: RequestBuilder, done: Done
) -> tuple[list[Topic], list[Failure]]:
    """Let the model find the objects in the titles of topics that have none.

    Returns:
        The topics with their objects, without objects after a failure, and the failures; both in the given order.
    """
    build = task.objects_answer
    assert build is not None

    async def find(topic: Topic) -> tuple[Topic, Failure | None]:
        if topic.objects is not None:
            return topic, None
        answer_model = build(topic)
        request = builder.build(prompt, answer_model, topic, None)
        result = await builder.model.request(request, answer_model)
        done()
        if not isinstance(result, AnsweredRequest):
            return topic, make_failure(topic, None, prompt, result)
        found = result.value.model_dump()
        return replace(topic, objects=(found["first"], found["second"])), None

    results = await map_in_order(find, topics, builder.concurrency)
    return [topic for topic, _ in results], [failure for _, failure in results if failure]


async def request_answer(
    topic: Topic, document_id: str, documents: Documents, question: Question, prompt: Prompt, builder: RequestBuilder
) -> tuple[AnsweredRequest[AnswerModel] | FailedRequest, Cut | None]:
    """Request the answer to a question about one document.

    The prompt receives `topic`, the question's own variables and `document`.

    Returns:
        The answer or the failed request, and the truncation of the document, None if the model saw all of it.
    """
    answer = prompt.answer_for(topic, 1)
    shown = question.render(topic, documents.get(document_id))

    def request(document: str) -> Request:
        return builder.build(prompt, answer, topic, document_id, document=document, **shown.variables)

    return await builder.model.request_truncated(request, sanitize_document(shown), answer)


def read_labels(result: AnsweredRequest[AnswerModel], question: Question | None = None) -> dict[str, Reading]:
    """Read the label of each field that has labels, without probabilities if any field lacks them.

    An answer is read in one way only: expectations are not mixed with plain labels. Each chain of reasoning is read by
    itself, and the mean of all is returned.

    Args:
        result: Answer to read.
        question: If its answer has no position but this one has, position and side are combined into the stance.
    """
    labels: dict[str, Sequence[Label]] = {**get_labels(type(result.value))}
    chains = [_read_chain(chain) for chain in result.chains]
    if question is not None and "position" in labels and "position" not in question.answer.model_fields:
        del labels["position"]
        sides, labels["stance"] = labels["stance"], get_labels(question.answer)["stance"]
        (without,) = set(labels["stance"]) - set(sides)
        for chain in chains:
            stances = [str(label) for label in labels["stance"]]
            chain["stance"] = combine_position(chain.pop("position"), chain["stance"], stances, str(without))
    return {field: average_readings([chain[field] for chain in chains], allowed) for field, allowed in labels.items()}


def _read_chain(result: AnsweredRequest[AnswerModel]) -> dict[str, Reading]:
    labels = get_labels(type(result.value))
    answered = result.value.model_dump(include=set(labels))
    readings = {
        field: read_label(result.answer.text, result.answer.tokens, result.layout, field, allowed, answered[field])
        for field, allowed in labels.items()
    }
    if all(reading.probabilities is not None for reading in readings.values()):
        return readings
    return {field: Reading(answered=label) for field, label in answered.items()}


def _find_problem(result: AnsweredRequest[AnswerModel]) -> str:
    """Return why the labels of an answer, of the first chain, cannot be read from log-probabilities; else nothing."""
    if all(reading.probabilities is not None for reading in _read_chain(result).values()):
        return ""
    text = f"{result.answer.text!r:.80}"
    if not result.answer.tokens:
        return f"the log-probabilities do not spell {text}"
    return f"not all labels have log-probabilities in {text}"


async def judge(
    work: list[tuple[Topic, str]],
    documents: Documents,
    question: Question,
    prompt: Prompt,
    builder: RequestBuilder,
    done: Done,
) -> tuple[list[Judgment], list[Failure]]:
    """Judge documents, and return judgments in the order of `work`, and failures in that of the requests.

    Requests are sent topic by topic, and of a topic those of one part of the prompt together, so that a server's prefix
    cache holds what they share. A document is judged if all parts have an answer.
    """
    requests = []
    for _, of_topic in groupby(work, key=lambda item: item[0].id):
        documents_of = list(of_topic)
        requests += [(*item, sent) for sent in prompt.sent for item in documents_of]

    async def judge_one(item: tuple[Topic, str, Prompt]) -> Judgment | Failure | None:
        topic, document_id, sent = item
        result, cut = await request_answer(topic, document_id, documents, question, sent, builder)
        done()
        if isinstance(result, AnsweredRequest):
            readings = builder.read_labels(result, sent.origin(topic.id, document_id), question)
            return _make_judgment(topic, document_id, sent, result, readings, cut)
        return make_failure(topic, document_id, sent, result)

    results = await map_in_order(judge_one, requests, builder.concurrency)
    judgments = [result for result in results if isinstance(result, Judgment)]
    if prompt.parts:
        parts: defaultdict[tuple[str, str], list[Judgment]] = defaultdict(list)
        for judgment in judgments:
            parts[judgment.topic_id, judgment.document_id].append(judgment)
        of_documents = (parts[topic.id, document_id] for topic, document_id in work)
        judgments = [_merge(found, prompt.label) for found in of_documents if len(found) == len(prompt.parts)]
    return judgments, [result for result in results if isinstance(result, Failure)]


# An answer, the reading of its stance, and whether the objects were swapped.
_Answered = tuple[AnsweredRequest[AnswerModel], Reading, bool]


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
    requests = []
    # All requests of one order come together because prompts begin with the objects, which a prefix cache shares.
    for _, of_topic in groupby(work, key=lambda item: item[0].id):
        documents_of = list(of_topic)
        requests += [(topic, document_id, False) for topic, document_id in documents_of]
        for topic, document_id in documents_of:
            if both_orders and topic.objects is not None and task.swapped_stances:
                first, second = topic.objects
                requests.append((replace(topic, objects=(second, first)), document_id, True))

    with stage("judging stances", len(requests)) as done:

        async def request(item: tuple[Topic, str, bool]) -> _Answered | Failure | None:
            topic, document_id, swapped = item
            result, _ = await request_answer(topic, document_id, documents, question, prompt, builder)
            done()
            if not isinstance(result, AnsweredRequest):
                return make_failure(topic, document_id, prompt, result)
            # The task's own question has the labels of whole stances.
            readings = builder.read_labels(result, prompt.origin(topic.id, document_id), task.question)
            return result, readings["stance"], swapped

        results = await map_in_order(request, requests, builder.concurrency)
    answers: dict[tuple[str, str], list[_Answered]] = {}
    for (topic, document_id, _), result in zip(requests, results, strict=True):
        if isinstance(result, tuple):
            answers.setdefault((topic.id, document_id), []).append(result)
    stances = [_average(document, orders, task, prompt.label) for document, orders in answers.items()]
    return stances, [result for result in results if isinstance(result, Failure)]


def _average(document: tuple[str, str], orders: Sequence[_Answered], task: Task, prompt: str) -> StanceReading:
    """Return the stance of a document by topic and id, averaged over the orders of the objects."""
    # Labels count as certain unless all orders have probabilities.
    known = all(reading.probabilities is not None for _, reading, _ in orders)
    shares = [_get_shares(reading, task, swapped, known) for _, reading, swapped in orders]
    return StanceReading(
        topic_id=document[0],
        document_id=document[1],
        probabilities={label: round(fmean(share[label] for share in shares), 9) for label in task.stances},
        source="probabilities" if known else "value",
        orders=len(orders),
        prompt=prompt,
        keys=[result.key for result, _, _ in orders],
        thoughts=list_thoughts(result for result, _, _ in orders),
    )


def _get_shares(reading: Reading, task: Task, swapped: bool, known: bool) -> dict[str, float]:
    """Return the probability of each label of the task; without `known` probabilities, labels count as certain."""
    shares = reading.shares if known else {str(reading.answered): 1.0}
    names = task.swapped_stances if swapped else {}
    return {label: shares.get(names.get(label, label), 0.0) for label in task.stances}


def _make_judgment(
    topic: Topic,
    document_id: str,
    prompt: Prompt,
    result: AnsweredRequest[AnswerModel],
    readings: dict[str, Reading],
    cut: Cut | None,
) -> Judgment:
    return Judgment(
        topic_id=topic.id,
        document_id=document_id,
        **_describe(readings),
        cut=cut,
        prompt=prompt.label,
        key=result.key,
        sample=result.sample,
        thoughts=list_thoughts([result]),
    )


def _describe(readings: dict[str, Reading]) -> dict[str, Any]:
    """Return the fields of a judgment that follow from its readings."""
    complete = all(reading.probabilities is not None for reading in readings.values())
    grades = {
        name: compute_expected_grade(reading) for name, reading in readings.items() if isinstance(reading.answered, int)
    }
    return {
        "grades": grades,
        "stance": get_most_probable(readings["stance"]) if "stance" in readings else NO_STANCE_COLUMN,
        "readings": readings,
        "source": "probabilities" if complete else "value",
    }


def _merge(parts: Sequence[Judgment], prompt: str) -> Judgment:
    """Merge the judgments of a document by the parts of a prompt; if one lacks probabilities, none has any."""
    readings = {field: reading for part in parts for field, reading in part.readings.items()}
    if any(part.source == "value" for part in parts):
        readings = {field: Reading(answered=reading.answered) for field, reading in readings.items()}
    return replace_fields(
        parts[0],
        **_describe(readings),
        cut=min((part.cut for part in parts if part.cut), key=lambda cut: cut.kept_chars, default=None),
        prompt=prompt,
        key=None,
        keys=[key for part in parts for key in part.answer_keys],
        sample=max(part.sample for part in parts),
        thoughts=[key for part in parts for key in part.thought_keys] or UNSET,
    )


def list_thoughts(results: Iterable[AnsweredRequest[AnswerModel]]) -> list[str] | UnsetType:
    """Return the keys of the thoughts before answers; unset if there are none."""
    keys = [chain.thought_key for result in results for chain in result.chains if chain.thought_key]
    return keys or UNSET


def make_failure(topic: Topic, document_id: str | None, prompt: Prompt, failed: FailedRequest) -> Failure | None:
    """Return the failure record of a request about a topic, or about documents for it; None for a replay miss."""
    attempts = failed.attempts
    if not attempts:
        return None
    return Failure(
        topic_id=topic.id, document_id=document_id, kind=attempts[-1].kind, prompt=prompt.label, attempts=attempts
    )


def group_judgments(judgments: Iterable[Judgment]) -> JudgmentsByTopic:
    """Return judgments by topic id and document id."""
    found: JudgmentsByTopic = defaultdict(dict)
    for judgment in judgments:
        found[judgment.topic_id][judgment.document_id] = judgment
    return found
