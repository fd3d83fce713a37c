"""Trial of a prompt on a topic and documents, with the requests of a run, and what these share with others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

from touche_llm.api.opening import StoredAnswers, open_client
from touche_llm.config.configuration import Config
from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import Attempt, Cut, Document, Reading, Topic
from touche_llm.engines.dry_run import DryRunEngine
from touche_llm.engines.settings import EngineConfig
from touche_llm.engines.token_estimates import TOKEN_CHARS, count_shared
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.grades import compute_expected_grade
from touche_llm.judging.objects import read_objects, request_objects
from touche_llm.judging.queries import request_queries
from touche_llm.judging.requests import (
    DocumentRequest,
    Requester,
    make_requester,
    request_answer,
)
from touche_llm.llm.answer_schema import AnswerModel, get_labels
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.client import FailedRequest, UnansweredRequest, UncachedRequest
from touche_llm.llm.label_statistics import get_most_probable
from touche_llm.llm.model import AnsweredRequest, make_replay_miss
from touche_llm.llm.request import Message
from touche_llm.llm.settings import CacheConfig, SamplingConfig
from touche_llm.prompts.prompt import Prompt, Purpose
from touche_llm.prompts.purposes import MAX_DOCUMENTS, load, purposes_of
from touche_llm.ranking.comparer import MAX_CHOICES, Comparands, Comparer, ComparisonKind
from touche_llm.ranking.steps import RankingSettings
from touche_llm.retrieval.corpus import Documents
from touche_llm.runs.context import RunContext
from touche_llm.tasks.parts import Objective
from touche_llm.tasks.questions import Question
from touche_llm.tasks.task import Task

Messages = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Texts:
    """Documents with the same text."""

    text: str

    def get(self, document_id: str) -> Document:
        """Return the document with this id."""
        return Document(document_id, self.text, title="x", side="PRO")

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return an empty list: every id is known."""
        return []


@dataclass(frozen=True, slots=True)
class Subject:
    """Topic and documents of a trial.

    Attributes:
        task: Task of the prompt.
        purpose: Purpose of the prompt.
        topic: Topic.
        ids: Ids of the documents; empty if the prompt is about the topic alone.
        documents: Texts of the documents.
        objective: Criterion of comparisons.
        document_tokens: Max tokens of a document in comparisons.
    """

    task: Task
    purpose: Purpose
    topic: Topic
    ids: tuple[str, ...]
    documents: Documents
    objective: Objective = "both"
    document_tokens: int = RankingSettings().document_tokens

    def check(self) -> None:
        """Raise UsageError if a document is given twice, or the prompt cannot take so many documents."""
        name = self.purpose.name
        if len(set(self.ids)) < len(self.ids):
            raise UsageError("a document is given twice; name each once")

        is_about_topic_alone = self.purpose.question is None
        if is_about_topic_alone:
            if self.ids:
                raise UsageError(
                    f"the prompt for {name} asks about a topic alone; name no document"
                )
        elif self.purpose.depends_on == "documents":
            self._check_comparable()
        elif not self.ids:
            # A prompt about one document is sent for each of them.
            raise UsageError(f"the prompt for {name} asks about documents; name one or more")

    def _check_comparable(self) -> None:
        """Raise UsageError if a prompt cannot compare this number of documents."""
        name = self.purpose.name
        number = len(self.ids)
        max_documents = MAX_CHOICES if name == "best" else MAX_DOCUMENTS
        if not 2 <= number <= max_documents:
            raise UsageError(
                f"the prompt for {name} compares 2 to {max_documents} documents, not {number}"
            )


@dataclass(frozen=True)
class Trial:
    """One request of a trial and its result.

    Attributes:
        ids: Ids of the documents; empty if the prompt is about the topic alone.
        result: Result of the request.
        cut: Truncations by document id; documents that the model saw in full are left out.
        question: Question about the documents; None if the prompt is about the topic alone.
    """

    ids: tuple[str, ...]
    result: AnsweredRequest[AnswerModel] | UnansweredRequest
    cut: dict[str, Cut]
    question: Question | None = None

    @property
    def messages(self) -> Messages:
        """Messages as they were sent; none if the length of a document could not be determined."""
        if isinstance(self.result, UnansweredRequest) and self.result.is_unmeasured:
            return ()
        return self.result.request.messages

    @property
    def is_cached(self) -> bool:
        """Whether the answer was in the cache."""
        return isinstance(self.result, AnsweredRequest) and self.result.is_cached

    @property
    def attempts(self) -> list[Attempt]:
        """Attempts that gave no usable answer; none for an answer and for a replay miss."""
        if isinstance(self.result, FailedRequest):
            return self.result.attempts
        return []

    @property
    def is_miss(self) -> bool:
        """Whether it is a replay whose cache lacks the answer."""
        return isinstance(self.result, UncachedRequest)

    @cached_property
    def readings(self) -> dict[str, Reading]:
        """Readings of the fields that have labels; empty without a usable answer."""
        if not isinstance(self.result, AnsweredRequest):
            return {}
        if self.question is None:
            return dict(self.result.readings)
        return self.question.combine(self.result.readings)

    @cached_property
    def values(self) -> dict[str, float | str]:
        """What was answered, by field: texts, expected grades and most probable labels.

        Empty without a usable answer.
        """
        if not isinstance(self.result, AnsweredRequest):
            return {}

        # First the texts, as the answer has them, then the fields with labels by their readings.
        answer = self.result.value
        labelled_fields = set(get_labels(type(answer)))
        values: dict[str, float | str] = answer.model_dump(exclude=labelled_fields)
        for name, reading in self.readings.items():
            if reading.is_grade:
                values[name] = compute_expected_grade(reading)
            else:
                values[name] = get_most_probable(reading)
        return values


async def make_subject(
    run: RunContext, topic: Topic, purpose: Purpose, ids: tuple[str, ...], requester: Requester
) -> Subject:
    """Return the topic and the documents to try a prompt on.

    If the prompt compares two objects that the topic does not name, they are requested.

    Args:
        run: Context with the corpus and the prompts.
        topic: Topic of the trial.
        purpose: Purpose of the prompt.
        ids: Ids of the documents.
        requester: Builder of the request for objects; without an engine, they are looked up in the
            cache.

    Raises:
        DataError: The corpus lacks a document, or the model names no two objects.
        UsageError: The prompt does not take this number of documents, or the cache lacks the
            objects.
    """
    subject = Subject(
        task=run.task,
        purpose=purpose,
        topic=topic,
        ids=ids,
        documents=await _fetch_documents(run, purpose, ids),
        objective=run.config.objective,
        document_tokens=run.config.ranking.document_tokens,
    )
    subject.check()

    # A prompt about a topic alone shows no objects: it finds them, or queries.
    is_about_documents = purpose.question is not None
    shows_objects = run.task.objects_answer is not None and is_about_documents
    if shows_objects and topic.objects is None:
        objects = await _request_missing_objects(run, topic, requester)
        subject = replace(subject, topic=replace(topic, objects=objects))
    return subject


async def _fetch_documents(run: RunContext, purpose: Purpose, ids: tuple[str, ...]) -> Documents:
    """Return the texts of documents, or of sentences for a prompt about these.

    Raises:
        DataError: The corpus lacks a document.
    """
    if not ids:
        return Texts("")
    await run.corpus.fetch(ids)
    if purpose.name == "sentence":
        return run.corpus.candidates
    return run.corpus.documents


async def _request_missing_objects(
    run: RunContext, topic: Topic, requester: Requester
) -> tuple[str, str]:
    """Return the two objects of a topic that the model finds in its title.

    Raises:
        DataError: The model names no two objects.
        UsageError: The requester has no engine, and the cache lacks the objects.
    """
    prompts = run.config.prompts
    purpose = purposes_of(run.task)["objects"]
    prompt = load(run.task, purpose, prompts.objects, prompts.folder)

    result = await request_objects(topic, prompt, requester)
    if isinstance(result, AnsweredRequest):
        return read_objects(result)
    if isinstance(result, UncachedRequest):
        raise UsageError(
            f"topic {topic.id} names no objects, and the cache {requester.client.cache.path} has no answer of "
            f"{prompt.label}; `touche-llm prompts try objects` requests them"
        )

    reason = result.attempts[-1].reason
    raise DataError(
        f"topic {topic.id}: the model names no two objects ({reason}); name them in <objects>"
    )


@dataclass(frozen=True, slots=True)
class OfflineBuilders:
    """Builders of requests that send nothing.

    Attributes:
        known: Looks answers up in the cache.
        dry: Answers by itself, to see the requests.
    """

    known: Requester
    dry: Requester


@asynccontextmanager
async def open_offline(config: Config) -> AsyncIterator[OfflineBuilders]:
    """Open two builders of requests that send nothing, with the settings of a run.

    One has the stored answers of the cache; the other answers by itself, so that its requests can
    be shown. No answer is stored.
    """
    # Stored answers are found even if the run itself would not use its cache.
    cache = config.cache.model_copy(update={"mode": CacheMode.REUSE}).read_only
    open_with_answers = partial(open_client, config.engine, config.sampling, cache)
    async with (
        open_with_answers(answers=StoredAnswers()) as known,
        open_with_answers(answers=DryRunEngine()) as dry,
    ):
        yield OfflineBuilders(known=make_requester(known), dry=make_requester(dry))


async def ask(prompt: Prompt, subject: Subject, requester: Requester) -> list[Trial]:
    """Send a prompt about a subject, with the requests that a run would send.

    A divided prompt is sent once for each field of its answer.

    Returns:
        A trial for each request, those of a document together.

    Raises:
        EngineError: The engine failed.
        PromptError: The prompt is invalid, or leaves no room for a document.
        ReplayMiss: The cache of a replay lacks an answer.
    """
    trials_by_field: list[list[Trial]] = []
    for field_prompt in prompt.request_prompts:
        trials_by_field.append(await _send_prompt(field_prompt, subject, requester))

    trials: list[Trial] = []
    trials_by_document = zip(*trials_by_field, strict=True)
    for document_trials in trials_by_document:
        trials.extend(document_trials)

    # Only now, so that the error of a replay counts all missing answers.
    misses = [trial.result.request for trial in trials if trial.is_miss]
    if misses:
        raise make_replay_miss(requester.client.cache.path, misses)
    return trials


async def _send_prompt(prompt: Prompt, subject: Subject, requester: Requester) -> list[Trial]:
    """Send an undivided prompt.

    Returns:
        One trial for each document, or a single one of a prompt that compares the documents or is
        about the topic alone.
    """
    question = subject.purpose.question
    if question is None:
        result = await _request_about_topic(prompt, subject, requester)
        return [Trial(ids=(), result=result, cut={})]
    if subject.purpose.depends_on == "documents":
        return [await _compare_documents(prompt, subject, question, requester)]

    requests = [DocumentRequest(subject.topic, document_id, prompt) for document_id in subject.ids]
    send = partial(
        _send_about_document,
        documents=subject.documents,
        question=question,
        requester=requester,
    )
    return await map_in_order(send, requests, requester.concurrency)


async def _send_about_document(
    request: DocumentRequest,
    *,
    documents: Documents,
    question: Question,
    requester: Requester,
) -> Trial:
    """Send a prompt that is about one document."""
    result, document_cut = await request_answer(request, documents, question, requester)
    cut: dict[str, Cut] = {}
    if document_cut is not None:
        cut[request.document_id] = document_cut
    return Trial(ids=(request.document_id,), result=result, cut=cut, question=question)


async def _request_about_topic(
    prompt: Prompt, subject: Subject, requester: Requester
) -> AnsweredRequest[Any] | UnansweredRequest:
    """Send a prompt that is about a topic alone: it finds the topic's objects, or queries for it."""
    if subject.purpose.name != "objects":
        return await request_queries(subject.topic, prompt, requester)

    # The model has to find the objects even if the topic names them.
    topic_without_objects = replace(subject.topic, objects=None)
    return await request_objects(topic_without_objects, prompt, requester)


async def _compare_documents(
    prompt: Prompt, subject: Subject, question: Question, requester: Requester
) -> Trial:
    """Send a prompt that compares the documents."""
    kind: ComparisonKind = "best" if subject.purpose.name == "best" else "order"
    comparer = Comparer(
        step="try",
        topic=subject.topic,
        documents=subject.documents,
        question=question,
        prompts={kind: prompt},
        requester=requester,
        slots=asyncio.Semaphore(requester.concurrency),
        objective=subject.objective,
        document_tokens=subject.document_tokens,
    )
    reply = await comparer.request_answer(Comparands(kind, subject.ids))
    return Trial(ids=subject.ids, result=reply.result, cut=reply.cut, question=question)


# A server's prefix cache serves the common beginning of requests; who shares a part is found by
# rendering others.
Shared = Literal["all", "topic", "nobody"]


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A piece of a message, with the requests that share the prompt up to its end.

    Attributes:
        message: Index of the message.
        role: Role of the message.
        shared: Requests that share the piece: all, those of the topic, or none.
        text: Text of the piece.
        tokens: Estimated number of tokens.
    """

    message: int
    role: str
    shared: Shared
    text: str
    tokens: int


class TrialParts(NamedTuple):
    """A trial, with the pieces of its messages."""

    trial: Trial
    parts: list[PromptPart]


class _ChangedDocuments:
    """Documents with the same ids and other texts."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def get(self, document_id: str) -> Document:
        """Return a document with other texts and the other side in place of that with this id.

        Requests about both show which part of a prompt does not depend on the document.
        """
        document = self._documents.get(document_id)
        other_sides = {"PRO": "CON", "CON": "PRO"}
        return replace(
            document,
            text=_change_text(document.text),
            title=_change_text(document.title),
            side=other_sides.get(document.side, document.side),
        )

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the given ids that there is no document of."""
        return self._documents.find_unknown(document_ids)


@asynccontextmanager
async def open_dry_requester() -> AsyncIterator[Requester]:
    """Open a requester of requests that sends, truncates and stores nothing."""
    cache = CacheConfig(mode=CacheMode.OFF)
    answers = DryRunEngine()
    async with open_client(EngineConfig(), SamplingConfig(), cache, answers=answers) as client:
        yield make_requester(client)


def change_documents(subject: Subject) -> Subject:
    """Return a subject with documents whose texts begin with other characters."""
    return replace(subject, documents=_ChangedDocuments(subject.documents))


def change_topic(subject: Subject) -> Subject:
    """Return a subject with a topic whose texts begin with other characters."""
    return replace(subject, topic=_change_topic(subject.topic))


def count_common(one: Messages, other: Messages) -> int:
    """Count the characters at the start of two chats until they differ."""
    chars = 0
    for message, other_message in zip(one, other, strict=False):
        if message.role != other_message.role:
            break
        chars += count_shared(message.content, other_message.content)
        if message.content != other_message.content:
            # The chats differ within this message, so nothing after it is a common start.
            break
    return chars


async def ask_for_parts(prompt: Prompt, subject: Subject, requester: Requester) -> list[TrialParts]:
    """Send a prompt like `ask`, and find the parts of its messages that other requests share.

    The prompt is also sent about other documents, for the same and for another topic.
    """
    same_topic_subject = change_documents(subject)
    other_topic_subject = change_topic(same_topic_subject)
    trials = await ask(prompt, subject, requester)
    same_topic_trials = await ask(prompt, same_topic_subject, requester)
    other_topic_trials = await ask(prompt, other_topic_subject, requester)

    trials_with_parts: list[TrialParts] = []
    for trial, same_topic, other_topic in zip(
        trials, same_topic_trials, other_topic_trials, strict=True
    ):
        parts = split_by_sharing(trial.messages, same_topic.messages, other_topic.messages)
        trials_with_parts.append(TrialParts(trial, parts))
    return trials_with_parts


def split_by_sharing(
    messages: Messages, same_topic: Messages, other_topic: Messages
) -> list[PromptPart]:
    """Split a chat into what all requests share, what those of the topic share, and the rest.

    Args:
        messages: Chat to split.
        same_topic: Chat about other documents for the same topic.
        other_topic: Chat about other documents for another topic.
    """
    chars_of_topic = count_common(messages, same_topic)
    # What all requests share, those of the topic share too.
    chars_of_all = min(chars_of_topic, count_common(messages, other_topic))

    parts: list[PromptPart] = []
    chars_before = 0
    for index, message in enumerate(messages):
        parts += _split_message(
            index,
            message,
            end_of_all=max(chars_of_all - chars_before, 0),
            end_of_topic=max(chars_of_topic - chars_before, 0),
        )
        chars_before += len(message.content)
    return parts


def _split_message(
    index: int, message: Message, *, end_of_all: int, end_of_topic: int
) -> list[PromptPart]:
    """Split a message by the requests that share it; parts without text are left out.

    Args:
        index: Index of the message in its chat.
        message: Message to split.
        end_of_all: Character of the message at which the text that all requests share ends; it may
            be beyond the end of the message.
        end_of_topic: Character at which the text that the requests of the topic share ends, at or
            after `end_of_all`.
    """
    content = message.content
    texts: dict[Shared, str] = {
        "all": content[:end_of_all],
        "topic": content[end_of_all:end_of_topic],
        "nobody": content[end_of_topic:],
    }
    parts: list[PromptPart] = []
    for shared, text in texts.items():
        if not text:
            continue
        part = PromptPart(
            message=index,
            role=message.role,
            shared=shared,
            text=text,
            tokens=round(len(text) / TOKEN_CHARS),
        )
        parts.append(part)
    return parts


def _change_topic(topic: Topic) -> Topic:
    """Return a topic whose texts begin with other characters; those that are empty stay so."""
    objects: tuple[str, str] | None = None
    if topic.objects is not None:
        first, second = topic.objects
        # Objects of a topic differ from each other.
        objects = (_change_text(first), f"{_change_text(second)} too")
    return Topic(
        id=_change_text(topic.id),
        title=_change_text(topic.title),
        description=_change_text(topic.description),
        narrative=_change_text(topic.narrative),
        objects=objects,
    )


def _change_text(text: str) -> str:
    """Return a text with another beginning; empty for an empty text."""
    return "※ another" if text else ""
