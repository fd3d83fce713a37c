"""Trial of a prompt on a topic and documents, with the requests of a run, and what these share with others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from touche_llm.config import Config
from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import Attempt, Cut, Document, Reading, Topic
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.pointwise import RequestBuilder, find_objects, read_labels, request_answer
from touche_llm.llm.answers import AnswerModel, FailedRequest, get_labels
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.engine import EngineInfo
from touche_llm.llm.logprobs import compute_expected_grade, get_most_probable
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.recorder import (
    TOKEN_CHARS,
    RecordingClient,
    count_shared,
    make_dry_engine,
    open_known_answers,
)
from touche_llm.llm.request import Message, Sampling
from touche_llm.pipeline.candidates import find_queries
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.engines import assume_engine_info, make_request_builder
from touche_llm.prompts.prompt import Prompt, Purpose
from touche_llm.prompts.purposes import MAX_DOCUMENTS, load, purposes_of
from touche_llm.ranking.comparer import MAX_CHOICES, Comparer
from touche_llm.ranking.steps import RankingSettings
from touche_llm.retrieval.base import Documents
from touche_llm.tasks.definition import Objective
from touche_llm.tasks.features import Question
from touche_llm.tasks.task import Task


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

    `messages` are empty if the length of the document could not be determined; `cut` is omitted
    text by document.
    """

    ids: tuple[str, ...]
    messages: tuple[Message, ...]
    result: AnsweredRequest[AnswerModel] | FailedRequest
    cut: dict[str, Cut]
    cached: bool
    question: Question | None = None

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
    (found,), failures = await find_objects([topic], task, prompt, builder, _nothing)
    if found.objects is not None:
        return replace(subject, topic=found)
    if failures:
        reason = failures[0].attempts[-1].reason
        raise DataError(
            f"topic {topic.id}: the model names no two objects ({reason}); name them in <objects>"
        )
    raise UsageError(
        f"topic {topic.id} names no objects, and the cache {builder.model.cache.path} has no answer of "
        f"{prompt.label}; `touche-llm prompts try objects` requests them"
    )


@contextmanager
def open_offline(config: Config) -> Iterator[tuple[RequestBuilder, RequestBuilder]]:
    """Yield two request builders: one looks answers up in the cache, the other only records the requests."""
    with open_known_answers(config.cache.file, CacheMode.REUSE) as cache:
        facts = assume_engine_info(config.engine, cache)
        models = (
            ModelClient(engine_info=facts, engine=engine, cache=cache)
            for engine in (None, make_dry_engine())
        )
        known, dry = (
            make_request_builder(model, config.engine, config.sampling) for model in models
        )
        yield known, dry


async def ask(prompt: Prompt, subject: Subject, builder: RequestBuilder) -> list[Trial]:
    """Send a prompt about a subject, with the requests that a run would send.

    Return a trial for each of them.
    """
    given = {
        attribute.name: getattr(builder.model, attribute.name)
        for attribute in fields(ModelClient)
        if not attribute.name.startswith("_")
    }
    # Of several trials with one model, the first connects it.
    start_up = None if builder.model.start_up is None else builder.model.connect
    model = RecordingClient(**given | {"misses": [], "start_up": start_up})
    builder = replace(builder, model=model)
    purpose = subject.purpose
    trials: list[list[Trial]] = []
    for sent in prompt.sent:
        before = len(model.requests)
        if purpose.question is None or purpose.depends_on == "documents":
            found = [await _send_one(sent, subject, builder, model)]
        else:
            found = await _send_each(sent, subject, builder)
        messages = {
            request.origin.document_id: request.messages for request in model.requests[before:]
        }
        trials.append(
            [
                Trial(
                    ids=ids,
                    messages=messages.get(" ".join(ids) or None, ()),
                    result=result,
                    cut=cut,
                    cached=isinstance(result, AnsweredRequest) and result.key not in model.sent,
                    question=purpose.question,
                )
                for ids, result, cut in found
            ]
        )
    model.raise_on_misses()
    return [trial for of_document in zip(*trials, strict=True) for trial in of_document]


_Sent = tuple[tuple[str, ...], AnsweredRequest[Any] | FailedRequest, dict[str, Cut]]


async def _send_one(
    prompt: Prompt, subject: Subject, builder: RequestBuilder, model: RecordingClient
) -> _Sent:
    topic, purpose, cut = subject.topic, subject.purpose, dict[str, Cut]()
    attempts: list[Attempt] = []
    if purpose.name == "objects":
        await find_objects([replace(topic, objects=None)], subject.task, prompt, builder, _nothing)
    elif purpose.question is None:
        await find_queries([topic], prompt, builder, _nothing)
    else:
        comparer = Comparer(
            step="try",
            topic=topic,
            documents=subject.documents,
            question=purpose.question,
            prompts={purpose.name: prompt},
            builder=builder,
            slots=asyncio.Semaphore(builder.concurrency),
            objective=subject.objective,
            document_tokens=subject.document_tokens,
        )
        await (
            comparer.estimate_best(subject.ids)
            if purpose.name == "best"
            else comparer.order(subject.ids)
        )
        attempts = [attempt for failure in comparer.failures for attempt in failure.attempts]
        cut = {
            name: part
            for comparison in comparer.comparisons
            for name, part in comparison.cut.items()
        }
    # A document whose length could not be determined leaves no request.
    result = model.results[model.requests[-1].key] if model.requests else FailedRequest(attempts)
    return subject.ids, result, cut


async def _send_each(prompt: Prompt, subject: Subject, builder: RequestBuilder) -> list[_Sent]:
    question = subject.purpose.question
    assert question is not None

    async def send(document_id: str) -> _Sent:
        result, cut = await request_answer(
            subject.topic, document_id, subject.documents, question, prompt, builder
        )
        return (document_id,), result, {} if cut is None else {document_id: cut}

    return await map_in_order(send, subject.ids, builder.concurrency)


def _nothing() -> None:
    pass


# A server's prefix cache serves the common beginning of requests; who shares a part is found by
# rendering others.
Messages = tuple[Message, ...]
Shared = Literal["all", "topic", "nobody"]
_ENDLESS = 2**30


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


def offline_builder() -> RequestBuilder:
    """Make a request builder that sends, truncates and stores nothing."""
    facts = EngineInfo(model="", revision="", context=_ENDLESS, overhead=0, engine="")
    cache = Cache(Path("none"), CacheMode.OFF)
    return RequestBuilder(
        ModelClient(engine_info=facts, engine=make_dry_engine(), cache=cache), Sampling(), {}, 1
    )


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
