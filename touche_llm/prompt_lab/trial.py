"""Trial of a prompt on a topic and documents, with the requests of a run, and what these share with others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from touche_llm.api.opening import StoredAnswers, open_client
from touche_llm.config.configuration import Config
from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import Cut, Document, Reading, Topic
from touche_llm.engines.dry_run import DryRunEngine
from touche_llm.engines.settings import EngineConfig
from touche_llm.engines.token_estimates import TOKEN_CHARS, count_shared
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.grades import compute_expected_grade
from touche_llm.judging.objects import read_objects, request_objects
from touche_llm.judging.queries import request_queries
from touche_llm.judging.readings import read_labels
from touche_llm.judging.requests import RequestBuilder, make_request_builder, request_answer
from touche_llm.llm.answer_schema import AnswerModel, get_labels
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.client import FailedRequest, MissingAnswer, UnansweredRequest
from touche_llm.llm.label_statistics import get_most_probable
from touche_llm.llm.model import AnsweredRequest, make_replay_miss
from touche_llm.llm.request import Message, Request
from touche_llm.llm.settings import CacheConfig, SamplingConfig
from touche_llm.prompts.prompt import Prompt, Purpose
from touche_llm.prompts.purposes import MAX_DOCUMENTS, load, purposes_of
from touche_llm.ranking.comparer import MAX_CHOICES, Comparer, ComparisonKind
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
    """Topic and documents of a trial; no documents if the prompt is about the topic only.

    Objective and maximum number of tokens of a document are for prompts that compare.
    """

    task: Task
    purpose: Purpose
    topic: Topic
    ids: tuple[str, ...]
    documents: Documents
    objective: Objective = "both"
    document_tokens: int = RankingSettings().document_tokens

    def check(self) -> None:
        """Raise UsageError if the prompt does not take this number of documents."""
        purpose, number = self.purpose.name, len(self.ids)
        if len(set(self.ids)) < number:
            raise UsageError("a document is given twice; name each once")
        if self.purpose.question is None:
            if number:
                raise UsageError(
                    f"the prompt for {purpose} asks about a topic alone; name no document"
                )
        elif self.purpose.depends_on == "documents":
            most = MAX_CHOICES if purpose == "best" else MAX_DOCUMENTS
            if not 2 <= number <= most:
                raise UsageError(
                    f"the prompt for {purpose} compares 2 to {most} documents, not {number}"
                )
        elif not number:
            raise UsageError(f"the prompt for {purpose} asks about documents; name one or more")


@dataclass(frozen=True)
class Trial:
    """One request of a trial and its result.

    Attributes:
        ids: Ids of the documents; empty if the prompt is about the topic alone.
        result: Result of the request.
        cut: Omitted text by document.
        question: Question about the documents; None if the prompt is about the topic alone.
    """

    ids: tuple[str, ...]
    result: AnsweredRequest[AnswerModel] | FailedRequest
    cut: dict[str, Cut]
    question: Question | None = None

    @property
    def messages(self) -> Messages:
        """Messages as they were sent; none if the length of a document could not be determined."""
        if isinstance(self.result, FailedRequest) and self.result.is_unmeasured:
            return ()
        return self.result.request.messages

    @property
    def is_cached(self) -> bool:
        """Whether the answer was in the cache."""
        return isinstance(self.result, AnsweredRequest) and self.result.is_cached

    @cached_property
    def readings(self) -> dict[str, Reading]:
        """Return the reading of each field that has labels; empty without a usable answer."""
        if not isinstance(self.result, AnsweredRequest):
            return {}
        return read_labels(self.result, self.question)

    @cached_property
    def values(self) -> dict[str, float | str]:
        """Return expected grades, most probable labels, and texts.

        Empty without a usable answer.
        """
        if not isinstance(self.result, AnsweredRequest):
            return {}
        said: dict[str, Any] = self.result.value.model_dump(
            exclude=set(get_labels(type(self.result.value)))
        )
        for name, reading in self.readings.items():
            graded = isinstance(reading.answered, int)
            said[name] = compute_expected_grade(reading) if graded else get_most_probable(reading)
        return said


async def make_subject(
    run: RunContext, topic: Topic, purpose: Purpose, ids: tuple[str, ...], builder: RequestBuilder
) -> Subject:
    """Return what to try a prompt for this purpose on.

    Objects that the topic does not name are requested; if the builder has no engine, they are
    looked up in the cache.
    """
    task, config = run.task, run.config
    documents: Documents = Texts("")
    if ids:
        await run.corpus.fetch(ids)
        documents = run.corpus.candidates if purpose.name == "sentence" else run.corpus.documents
    subject = Subject(
        task, purpose, topic, ids, documents, config.objective, config.ranking.document_tokens
    )
    subject.check()
    if purpose.question is None or task.objects_answer is None or topic.objects is not None:
        return subject
    prompt = load(task, purposes_of(task)["objects"], config.prompts.objects, config.prompts.folder)
    result = await request_objects(topic, task, prompt, builder)
    if isinstance(result, AnsweredRequest):
        return replace(subject, topic=replace(topic, objects=read_objects(result)))
    if isinstance(result, FailedRequest):
        reason = result.attempts[-1].reason
        raise DataError(
            f"topic {topic.id}: the model names no two objects ({reason}); name them in <objects>"
        )
    raise UsageError(
        f"topic {topic.id} names no objects, and the cache {builder.model.cache.path} has no answer of "
        f"{prompt.label}; `touche-llm prompts try objects` requests them"
    )


@dataclass(frozen=True, slots=True)
class OfflineBuilders:
    """Builders of requests that send nothing.

    Attributes:
        known: Looks answers up in the cache.
        dry: Answers by itself, to see the requests.
    """

    known: RequestBuilder
    dry: RequestBuilder


@asynccontextmanager
async def open_offline(config: Config) -> AsyncIterator[OfflineBuilders]:
    """Open the builders of requests that send nothing, with the settings of a run."""
    reused = config.cache.model_copy(update={"mode": CacheMode.REUSE})
    engine, sampling, cache = config.engine, config.sampling, reused.read_only
    async with (
        open_client(engine, sampling, cache, answers=StoredAnswers()) as known,
        open_client(engine, sampling, cache, answers=DryRunEngine()) as dry,
    ):
        yield OfflineBuilders(known=make_request_builder(known), dry=make_request_builder(dry))


async def ask(prompt: Prompt, subject: Subject, builder: RequestBuilder) -> list[Trial]:
    """Send a prompt about a subject, with the requests that a run would send.

    Returns:
        A trial for each request: of a document, one for each part of the prompt.

    Raises:
        EngineError: The engine failed.
        PromptError: The prompt is invalid, or leaves no room for a document.
        ReplayMiss: The cache of a replay lacks an answer.
    """
    by_part: list[list[Trial | MissingAnswer]] = []
    for part in prompt.sent:
        by_part.append(await _send_part(part, subject, builder))

    trials: list[Trial] = []
    misses: list[Request] = []
    for of_document in zip(*by_part, strict=True):
        for trial in of_document:
            if isinstance(trial, MissingAnswer):
                misses.append(trial.request)
            else:
                trials.append(trial)
    if misses:
        raise make_replay_miss(builder.model.cache.path, misses)
    return trials


async def _send_part(
    prompt: Prompt, subject: Subject, builder: RequestBuilder
) -> list[Trial | MissingAnswer]:
    """Send one part of a prompt; return a trial for each document, or one for the topic."""
    purpose = subject.purpose
    if purpose.question is None:
        result = await _request_about_topic(prompt, subject, builder)
        return [_make_trial((), result, cut={})]

    if purpose.depends_on == "documents":
        return [await _compare_documents(prompt, subject, purpose.question, builder)]

    question = purpose.question

    async def send(document_id: str) -> Trial | MissingAnswer:
        result, cut = await request_answer(
            subject.topic,
            document_id,
            subject.documents,
            question,
            prompt,
            builder,
        )
        return _make_trial(
            (document_id,),
            result,
            cut={} if cut is None else {document_id: cut},
            question=question,
        )

    return await map_in_order(send, subject.ids, builder.concurrency)


def _make_trial(
    ids: tuple[str, ...],
    result: AnsweredRequest[AnswerModel] | UnansweredRequest,
    cut: dict[str, Cut],
    question: Question | None = None,
) -> Trial | MissingAnswer:
    """Return the trial with this result, or the request whose answer a replay lacks."""
    if isinstance(result, MissingAnswer):
        return result
    return Trial(ids=ids, result=result, cut=cut, question=question)


async def _request_about_topic(
    prompt: Prompt, subject: Subject, builder: RequestBuilder
) -> AnsweredRequest[Any] | UnansweredRequest:
    """Send a prompt that is about a topic alone."""
    if subject.purpose.name == "objects":
        topic = replace(subject.topic, objects=None)
        return await request_objects(topic, subject.task, prompt, builder)
    return await request_queries(subject.topic, prompt, builder)


async def _compare_documents(
    prompt: Prompt, subject: Subject, question: Question, builder: RequestBuilder
) -> Trial | MissingAnswer:
    """Send a prompt that compares the documents."""
    kind: ComparisonKind = "best" if subject.purpose.name == "best" else "order"
    comparer = Comparer(
        step="try",
        topic=subject.topic,
        documents=subject.documents,
        question=question,
        prompts={kind: prompt},
        builder=builder,
        slots=asyncio.Semaphore(builder.concurrency),
        objective=subject.objective,
        document_tokens=subject.document_tokens,
    )
    result, cut = await comparer.request_answer(kind, subject.ids)
    return _make_trial(subject.ids, result, cut, question)


# A server's prefix cache serves the common beginning of requests; who shares a part is found by
# rendering others.
Shared = Literal["all", "topic", "nobody"]


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A piece of a message, and the requests that share the prompt up to its end: all, its topic's, or none.

    `tokens` is an estimate.
    """

    message: int
    role: str
    shared: Shared
    text: str
    tokens: int


class _Changed:
    """Documents with the same ids and other texts."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def get(self, document_id: str) -> Document:
        document = self._documents.get(document_id)
        side = {"PRO": "CON", "CON": "PRO"}.get(document.side, document.side)
        return replace(
            document, text=_other(document.text), title=_other(document.title), side=side
        )

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        return self._documents.find_unknown(document_ids)


@asynccontextmanager
async def open_dry_builder() -> AsyncIterator[RequestBuilder]:
    """Open a builder of requests that sends, truncates and stores nothing."""
    cache = CacheConfig(mode=CacheMode.OFF)
    answers = DryRunEngine()
    async with open_client(EngineConfig(), SamplingConfig(), cache, answers=answers) as client:
        yield make_request_builder(client)


def make_other_subject(subject: Subject, *, topic: bool) -> Subject:
    """Return the subject with other document texts, and another `topic` if wanted.

    First characters differ.
    """
    changed = replace(subject, documents=_Changed(subject.documents))
    return replace(changed, topic=_other_topic(subject.topic)) if topic else changed


def count_common(one: Messages, other: Messages) -> int:
    """Count the characters of two chats before they begin to differ."""
    chars = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return chars + (
                count_shared(mine.content, theirs.content) if mine.role == theirs.role else 0
            )
        chars += len(mine.content)
    return chars


async def ask_for_parts(
    prompt: Prompt, subject: Subject, builder: RequestBuilder
) -> list[tuple[Trial, list[PromptPart]]]:
    """Send a prompt like `ask`.

    Return each trial with the parts of its prompt, found by sending two others.
    """
    subjects = (
        subject,
        make_other_subject(subject, topic=False),
        make_other_subject(subject, topic=True),
    )
    trials = [await ask(prompt, each, builder) for each in subjects]
    return [
        (mine, split_by_sharing(mine.messages, same.messages, other.messages))
        for mine, same, other in zip(*trials, strict=True)
    ]


def split_by_sharing(
    messages: Messages, same_topic: Messages, other_topic: Messages
) -> list[PromptPart]:
    """Split a chat by the requests that share it.

    The others are about other documents, for this or another topic.
    """
    of_topic = count_common(messages, same_topic)
    of_all = min(of_topic, count_common(messages, other_topic))
    parts: list[PromptPart] = []
    passed = 0
    for place, message in enumerate(messages):
        start, length = 0, len(message.content)
        shares: tuple[tuple[Shared, int], ...] = (
            ("all", of_all),
            ("topic", of_topic),
            ("nobody", passed + length),
        )
        for shared, shared_to in shares:
            end = min(shared_to - passed, length)
            if end > start:
                tokens = round((end - start) / TOKEN_CHARS)
                parts.append(
                    PromptPart(place, message.role, shared, message.content[start:end], tokens)
                )
                start = end
        passed += length
    return parts


def _other_topic(topic: Topic) -> Topic:
    objects = topic.objects and (_other(topic.objects[0]), f"{_other(topic.objects[1])} too")
    return Topic(
        _other(topic.id),
        _other(topic.title),
        _other(topic.description),
        _other(topic.narrative),
        objects or None,
    )


def _other(text: str) -> str:
    """Return a text with another beginning; empty for an empty text."""
    return "※ another" if text else ""
