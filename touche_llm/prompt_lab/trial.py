"""Trial of a prompt on a topic and documents, with the requests of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from touche_llm.data.concurrency import Slots, map_in_order
from touche_llm.data.records import Attempt, Cut, Document, Reading, Topic
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.pointwise import Documents, RequestBuilder, find_objects, read_labels, request_answer
from touche_llm.judging.sentence_pairs import SEPARATOR
from touche_llm.llm.answers import AnswerModel, FailedRequest, get_labels
from touche_llm.llm.logprobs import compute_expected_grade, get_most_probable
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.recorder import RecordingClient
from touche_llm.llm.request import Message
from touche_llm.pipeline.candidates import find_queries
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.corpora import LocalCorpus
from touche_llm.pipeline.stages import retrieve_candidates
from touche_llm.prompts.prompt import Prompt, Purpose
from touche_llm.prompts.purposes import MAX_DOCUMENTS, load, load_named, purposes_of
from touche_llm.ranking.comparer import MAX_CHOICES, Comparer
from touche_llm.tasks.definition import Objective
from touche_llm.tasks.features import Question
from touche_llm.tasks.task import Task

_MAX_DOCUMENTS = 4
_INVENTED = (
    Topic(
        "1",
        "Is a bicycle better than a car for going to work?",
        "A user who lives five kilometres from the office wants to know what to travel with.",
        "Highly relevant texts compare the two in cost, time and health. Texts about races or about repairs are not.",
        ("bicycle", "car"),
    ),
    Topic(
        "2",
        "Which keeps longer, bread from rye or from wheat?",
        "Somebody who bakes once a week asks for the flour with which bread stays fresh.",
        "Relevant texts name the flour and say something of days or of storing; recipes alone are not relevant.",
        ("rye", "wheat"),
    ),
)
_INVENTED_TEXTS = (
    "Most people who took the first for a year say that it saved them money, though not in winter. The second costs "
    "more to keep, as a study of forty households found, but nobody was late because of rain.",
    "Nobody can say this in general. It depends on the time at hand, on the weather and on what somebody likes, and "
    "those who tried both went back to what they were used to after a month.",
    "Last spring we looked at both. The figures speak for the second: fewer faults, less noise, half of the waiting.",
    "There are good reasons for the first, and cost is one of them. It needs little room and hardly any care.",
)


@dataclass(frozen=True, slots=True)
class Material:
    """Topics and documents for checking prompts.

    Attributes:
        topics: Topics of a file, or invented ones.
        documents: Documents by id.
        ids: Ids of four documents; two or three if there are no more.
    """

    topics: Sequence[Topic]
    documents: Documents
    ids: tuple[str, ...]


class Texts:
    """Documents with one text for all ids, or with a text for each id."""

    def __init__(self, texts: Mapping[str, str] | str) -> None:
        self._texts = texts

    def get(self, document_id: str) -> Document:
        """Return the document with this id."""
        text = self._texts if isinstance(self._texts, str) else self._texts[document_id]
        return Document(document_id, text, title="x", side="PRO")

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return an empty list: every id is known."""
        return []


def make_invented_material(topics: Sequence[Topic] = ()) -> Material:
    """Return invented documents, with the given or else invented topics."""
    texts = dict(zip("abcd", _INVENTED_TEXTS, strict=True))
    return Material(topics or _INVENTED, Texts(texts), tuple(texts))


def take_corpus_material(topics: Sequence[Topic], corpus: LocalCorpus, purpose: Purpose) -> Material:
    """Return the first documents of a corpus; sentences or pairs of sentences if the prompt shows them.

    Raises:
        DataError: The corpus has fewer than two.
    """
    store = corpus.store
    if corpus.documents is store:
        ids = store.get_ids(list(range(min(_MAX_DOCUMENTS, len(store)))))
    else:
        ids = store.parts.get_ids(list(range(min(2 * _MAX_DOCUMENTS, len(store.parts)))))
        if purpose.name != "sentence":
            ids = [SEPARATOR.join(pair) for pair in zip(ids[::2], ids[1::2], strict=False)]
    if len(ids) < 2:
        raise DataError(f"{corpus.name}: has too few documents to compare two requests; give a corpus with more")
    documents = corpus.candidates if purpose.name == "sentence" else corpus.documents
    return Material(topics or _INVENTED, documents, tuple(ids[:_MAX_DOCUMENTS]))


# Number of documents that an error suggests.
_SUGGESTED = 5


@dataclass(frozen=True, slots=True)
class Subject:
    """Topic and documents of a trial; no documents if the prompt is about the topic only."""

    task: Task
    purpose: Purpose
    topic: Topic
    ids: tuple[str, ...]
    documents: Documents

    def check(self) -> None:
        """Raise UsageError if the prompt does not take this number of documents."""
        purpose, number = self.purpose.name, len(self.ids)
        if len(set(self.ids)) < number:
            raise UsageError("a document is given twice; name each once")
        if self.purpose.question is None:
            if number:
                raise UsageError(f"the prompt for {purpose} asks about a topic alone; name no document")
        elif self.purpose.depends_on == "documents":
            most = MAX_CHOICES if purpose == "best" else MAX_DOCUMENTS
            if not 2 <= number <= most:
                raise UsageError(f"the prompt for {purpose} compares 2 to {most} documents, not {number}")
        elif not number:
            raise UsageError(f"the prompt for {purpose} asks about documents; name one or more")


@dataclass(frozen=True)
class Trial:
    """One request of a trial and its result.

    Attributes:
        ids: Ids of the documents.
        messages: The messages sent; empty if the length of the document could not be determined.
        result: The answer or the failure.
        cut: Omitted text by document.
        cached: Whether the answer came from the cache.
        question: Question of the prompt; None if it is about the topic alone.
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
        """Return expected grades, most probable labels, and texts; empty without a usable answer."""
        if not isinstance(self.result, AnsweredRequest):
            return {}
        said: dict[str, Any] = self.result.value.model_dump(exclude=set(get_labels(type(self.result.value))))
        for name, reading in self.readings.items():
            graded = isinstance(reading.answered, int)
            said[name] = compute_expected_grade(reading) if graded else get_most_probable(reading)
        return said


@dataclass(frozen=True, slots=True)
class TrialContext:
    """Context of a trial: one topic, a prompt and documents.

    Attributes:
        run: Context of a run with a single topic.
        name: Name or path of the prompt.
        ids: Ids of documents.
    """

    run: RunContext
    name: str
    ids: tuple[str, ...]

    def load(self) -> tuple[Purpose, Prompt]:
        """Load the prompt from its current files, with its purpose; raise PromptError if it is invalid."""
        return load_named(self.run.task, self.name, self.run.config.prompts.folder)

    async def subject(self, purpose: Purpose, builder: RequestBuilder) -> Subject:
        """Return what to try a prompt for this purpose on; `builder` requests objects that the topic does not name.

        Raises:
            UsageError: The documents do not fit the purpose, or objects are missing and there is no engine.
            DataError: The model named no objects.
        """
        (topic,), task = self.run.topics, self.run.task
        documents: Documents = Texts({})
        if self.ids:
            corpus = self.run.corpus
            await corpus.fetch(self.ids)
            documents = corpus.candidates if purpose.name == "sentence" else corpus.documents
        subject = Subject(task, purpose, topic, self.ids, documents)
        subject.check()
        if purpose.question is None or task.objects_answer is None or topic.objects is not None:
            return subject
        prompts = self.run.config.prompts
        prompt = load(task, purposes_of(task)["objects"], prompts.objects, prompts.folder)
        return await _with_objects(subject, prompt, builder)


async def find_best_documents(context: RunContext) -> list[str]:
    """Return the ids of the topic's first documents by the first stage, or of sentences where pairs are made."""
    (ranking,) = (await retrieve_candidates(context)).list_rankings()
    return [candidate.document_id for candidate in ranking[:_SUGGESTED]]


async def ask(
    prompt: Prompt, subject: Subject, builder: RequestBuilder, *, objective: Objective = "both", document_tokens: int
) -> list[Trial]:
    """Send a prompt about a subject, with the requests that a run would send.

    Args:
        prompt: Prompt, loaded for the subject's purpose.
        subject: Subject of the requests.
        builder: Builds the requests.
        objective: Comparison criterion, for prompts that compare.
        document_tokens: Maximum number of tokens of a document, for prompts that compare.

    Returns:
        One trial for each document; a single one if documents are compared or the prompt is about a topic only.

    Raises:
        PromptError: The template fails, or leaves no room for the documents.
        ReplayMiss: The cache lacks an answer in replay.
        DataError: A document is missing, or the prompt cannot be used for the topic.
    """
    given = {attribute.name: getattr(builder.model, attribute.name) for attribute in fields(ModelClient)}
    model = RecordingClient(**given | {"misses": []})
    builder = replace(builder, model=model)
    purpose = subject.purpose
    if purpose.question is None or purpose.depends_on == "documents":
        found = [await _send_one(prompt, subject, builder, model, objective, document_tokens)]
    else:
        found = await _send_each(prompt, subject, builder)
    model.raise_on_misses()
    messages = {request.origin.document_id: request.messages for request in model.requests}
    return [
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


_Sent = tuple[tuple[str, ...], AnsweredRequest[Any] | FailedRequest, dict[str, Cut]]


async def _send_one(
    prompt: Prompt,
    subject: Subject,
    builder: RequestBuilder,
    model: RecordingClient,
    objective: Objective,
    document_tokens: int,
) -> _Sent:
    """Send a prompt about a topic alone, or that compares documents."""
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
            position=0,
            documents=subject.documents,
            question=purpose.question,
            prompts={purpose.name: prompt},
            builder=builder,
            slots=Slots(builder.concurrency),
            objective=objective,
            document_tokens=document_tokens,
        )
        await (comparer.estimate_best(subject.ids) if purpose.name == "best" else comparer.order(subject.ids))
        attempts = [attempt for failure in comparer.failures for attempt in failure.attempts]
        cut = {name: part for comparison in comparer.comparisons for name, part in comparison.cut.items()}
    # A document whose length could not be determined leaves no request.
    result = model.results[model.requests[-1].key] if model.requests else FailedRequest(attempts)
    return subject.ids, result, cut


async def _send_each(prompt: Prompt, subject: Subject, builder: RequestBuilder) -> list[_Sent]:
    """Send a prompt about each document."""
    question = subject.purpose.question
    assert question is not None

    async def send(document_id: str) -> _Sent:
        result, cut = await request_answer(subject.topic, document_id, subject.documents, question, prompt, builder)
        return (document_id,), result, {} if cut is None else {document_id: cut}

    return await map_in_order(send, subject.ids, builder.concurrency)


async def _with_objects(subject: Subject, prompt: Prompt, builder: RequestBuilder) -> Subject:
    """Return the subject with the topic's two objects, found by a prompt; without an engine, in the cache."""
    topics, failures = await find_objects([subject.topic], subject.task, prompt, builder, _nothing)
    if topics[0].objects is not None:
        return replace(subject, topic=topics[0])
    if failures:
        reason = failures[0].attempts[-1].reason
        raise DataError(f"topic {subject.topic.id}: the model names no two objects ({reason}); name them in <objects>")
    raise UsageError(
        f"topic {subject.topic.id} names no objects, and the cache {builder.model.cache.path} has no answer of "
        f"{prompt.label}; `touche-llm prompts try objects` requests them"
    )


def _nothing() -> None:
    """Ignore a step of a stage."""
