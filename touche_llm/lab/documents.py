"""Documents of a run with judgments by the model, the assessors and the user.

The records are sent to the page as JSON; their attributes are the names that its scripts read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from aiohttp import web

from touche_llm.api.opening import StoredAnswers, open_client
from touche_llm.data.records import Cut, Document, Label, Reading, Topic, UserLabels
from touche_llm.errors import DataError, ToucheError, UsageError
from touche_llm.evaluation.qrels import STANCE, qrels_file
from touche_llm.judging.requests import make_requester
from touche_llm.lab.answers import (
    AnswerField,
    ChatMessage,
    FailedAttempt,
    FieldReading,
    describe_attempt,
    describe_exchange,
    describe_fields,
    make_snippet,
    read_fields,
)
from touche_llm.lab.runs_of_lab import Workplace
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.model import AnsweredRequest
from touche_llm.prompt_lab.holdout import find_half
from touche_llm.prompt_lab.trial import Subject, Trial, ask
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.retrieval.corpus import Corpus
from touche_llm.runs.open_folder import DocumentRow, DocumentView, RunFolder

_CHANGED_REQUEST = "the prompt, its settings or the document changed since the run."


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic of a run in the list of topics.

    Attributes:
        id: Id of the topic.
        title: Title of the topic.
        half: Half of the topic: to choose on, or held out; empty if its title is not read.
        documents: Number of documents in the run.
        failures: Number of failed requests.
    """

    id: str
    title: str
    half: str
    documents: int
    failures: int


@dataclass(frozen=True, slots=True)
class TopicList:
    """Topics of a run, with the fields of an answer and the stance labels of the task."""

    topics: list[TopicEntry]
    fields: list[AnswerField]
    stances: list[str]


@dataclass(frozen=True, slots=True)
class DocumentEntry:
    """A document in the ranking of a topic.

    Attributes:
        rank: Rank in the run.
        document: Id of the document.
        title: Title; empty without a corpus.
        snippet: Beginning of the text; empty without a corpus.
        first: Rank in the first stage.
        stance: Stance in the run; empty if it has none.
        p: Probability of the stance; None if it is unknown.
        grades: Expected grades, by aspect.
        confidence: Probability of the least certain answered field; None without probabilities.
        failure: Kind of the last failed request; empty if none failed.
        truncated: Whether the model saw only a part of the document.
        assessors: Judgments by assessors, by field.
        differs: Fields in which the model differs from the assessors.
        own: Labels of the user, by field.
    """

    rank: int
    document: str
    title: str
    snippet: str
    first: int
    stance: str
    p: float | None
    grades: Mapping[str, float]
    confidence: float | None
    failure: str
    truncated: bool
    assessors: Mapping[str, str]
    differs: Sequence[str]
    own: Mapping[str, Label]


@dataclass(frozen=True, slots=True)
class DocumentList:
    """Ranking of a topic, and whether its judgments by assessors are hidden."""

    rows: list[DocumentEntry]
    hidden: bool


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request of the run with its answer.

    Attributes:
        prompt: Name of the prompt.
        key: Key of the answer in the cache; empty for requests that are not shown.
        messages: Messages as they were sent; empty if they are not shown.
        answer: Text of the answer; empty if the cache lacks it.
        thought: Reasoning before the answer; empty if there was none.
    """

    prompt: str
    key: str
    messages: list[ChatMessage]
    answer: str
    thought: str


@dataclass(frozen=True, slots=True)
class DocumentDetails:
    """A document with its judgments and requests.

    Attributes:
        document: Id of the document.
        title: Title; empty without a corpus.
        text: Text; None without a corpus.
        seen: Spans of the text that the model saw; None if it saw all.
        truncation: Sentence on how much the model saw; empty if all.
        fields: Readings of the answer, by field.
        assessors: Judgments by assessors, by field.
        differs: Fields in which the model differs from the assessors.
        own: Labels of the user, by field.
        note: Note of the user.
        requests: Requests about the document.
        comparisons: Summaries of comparisons with other documents.
        notes: Limitations of what is shown.
        failures: Unusable answers.
    """

    document: str
    title: str
    text: str | None
    seen: list[tuple[int, int]] | None
    truncation: str
    fields: dict[str, FieldReading]
    assessors: Mapping[str, str]
    differs: Sequence[str]
    own: Mapping[str, Label]
    note: str
    requests: list[SentRequest]
    comparisons: list[str]
    notes: list[str]
    failures: list[FailedAttempt]


@dataclass(frozen=True, slots=True)
class StoredLabels:
    """Labels and note of the user as they were stored."""

    own: Mapping[str, Label]
    note: str


@dataclass(frozen=True, slots=True)
class RevealedTopics:
    """Held-out topics whose judgments are shown from now on."""

    revealed: list[str]


@dataclass(frozen=True, slots=True)
class _RepeatedRequests:
    """Judge requests about a document, or notes on why they cannot be shown."""

    requests: list[SentRequest]
    notes: list[str]


def list_topics(lab: Workplace, *, run: str) -> TopicList:
    """Return the topics of a run and the fields of its answers."""
    opened = lab.open(run)
    has_titles = lab.has_titles(run)
    topics = [
        _describe_topic(opened, topic, has_title=has_titles) for topic in opened.topics.values()
    ]
    return TopicList(
        topics=topics,
        fields=describe_fields(opened.task),
        stances=list(opened.task.stances),
    )


def _describe_topic(opened: RunFolder, topic: Topic, *, has_title: bool) -> TopicEntry:
    """Return the entry of a topic of a run."""
    return TopicEntry(
        id=topic.id,
        title=topic.title,
        half=find_half(topic.title) if has_title else "",
        documents=len(opened.run.rankings.get(topic.id, [])),
        failures=opened.count_failures(topic.id),
    )


def list_documents(lab: Workplace, *, run: str, topic: str) -> DocumentList:
    """Return the ranking of a topic, without the judgments of a hidden topic.

    Raises:
        DataError: The run has no such topic.
    """
    opened = lab.open(run)
    shown_topic = opened.topics.get(topic)
    if shown_topic is None:
        raise DataError(f"topic {topic:.80}: not in {run}")

    qrels = lab.read_visible_qrels(run, [shown_topic], opened.config)
    rows = opened.rows(topic, qrels)
    documents = _read_documents(opened, [row.document_id for row in rows])
    user_labels = _read_labels(opened, topic)

    entries: list[DocumentEntry] = []
    for row in rows:
        entry = _describe_row(
            opened,
            topic,
            row,
            document=documents.get(row.document_id),
            user_labels=user_labels.get(row.document_id),
        )
        entries.append(entry)
    has_hidden_judgments = qrels is not None and lab.is_hidden(run, shown_topic)
    return DocumentList(rows=entries, hidden=has_hidden_judgments)


def _read_documents(opened: RunFolder, document_ids: Sequence[str]) -> dict[str, Document]:
    """Return documents by id; those that the corpus lacks are left out."""
    if opened.corpus is None:
        return {}

    corpus = opened.corpus.documents
    unknown = set(corpus.find_unknown(document_ids))
    known = [document_id for document_id in document_ids if document_id not in unknown]
    return {document_id: corpus.get(document_id) for document_id in known}


def _read_labels(opened: RunFolder, topic: str) -> dict[str, UserLabels]:
    """Return the labels of the user for a topic, by document id."""
    stored = opened.directory.read_labels()
    return {labels.document_id: labels for labels in stored if labels.topic_id == topic}


def _describe_row(
    opened: RunFolder,
    topic: str,
    row: DocumentRow,
    *,
    document: Document | None,
    user_labels: UserLabels | None,
) -> DocumentEntry:
    """Return the entry of a document in the ranking of a topic."""
    judgment = opened.find_judgment(topic, row.document_id)
    readings = {} if judgment is None else judgment.readings
    failures = opened.find_failures(topic, row.document_id)
    return DocumentEntry(
        rank=row.rank,
        document=row.document_id,
        title="" if document is None else document.title,
        snippet="" if document is None else make_snippet(document),
        first=row.first,
        stance=row.stance,
        p=_find_stance_probability(opened, topic, row, readings),
        grades=row.grades,
        confidence=_find_confidence(readings),
        failure=failures[-1].kind if failures else "",
        truncated=judgment is not None and judgment.cut is not None,
        assessors=row.people,
        differs=row.differs or [],
        own={} if user_labels is None else user_labels.labels,
    )


def _find_stance_probability(
    opened: RunFolder, topic: str, row: DocumentRow, readings: Mapping[str, Reading]
) -> float | None:
    """Return the probability of a document's stance; None if no answer has it.

    The stance prompt's answer is used, if there is one, else the judge prompt's.

    Args:
        opened: Folder of the run.
        topic: Id of the topic.
        row: Row of the document.
        readings: Readings of the judge prompt's answer, by field.
    """
    judge_reading = readings.get(STANCE)
    reading = opened.stance_readings.get((topic, row.document_id), judge_reading)
    # None too for an answer without logprobs: its text does not say how probable the label is.
    if reading is None or reading.probabilities is None:
        return None
    return reading.probabilities.get(row.stance)


def _find_confidence(readings: Mapping[str, Reading]) -> float | None:
    """Return the probability of the label of the answer's least certain field.

    None without probabilities.
    """
    highest = [
        max(reading.probabilities.values())
        for reading in readings.values()
        if reading.probabilities
    ]
    return min(highest, default=None)


def read_document(lab: Workplace, *, run: str, topic: str, document: str) -> DocumentDetails:
    """Return a document with its judgments and requests.

    Requests are shown only if the cache proves that they were sent so.

    Raises:
        DataError: The run has no such document for the topic.
    """
    opened = lab.open(run)
    row = _find_row(lab, opened, run, topic, document)
    view = opened.document(topic, row)
    stored_document = _read_documents(opened, [document]).get(document)
    judgment = opened.find_judgment(topic, document)
    judge_requests = _repeat_requests(opened, topic, document)

    # Without labels of the user, a record that has none.
    no_labels = UserLabels(topic_id=topic, document_id=document)
    user_labels = _read_labels(opened, topic).get(document, no_labels)

    attempts = chain.from_iterable(failure.attempts for failure in view.failures)
    return DocumentDetails(
        document=document,
        title="" if stored_document is None else stored_document.title,
        text=None if stored_document is None else stored_document.text,
        seen=None if judgment is None else _list_seen_spans(judgment.cut),
        truncation=view.truncation,
        fields=_read_view(opened, view),
        assessors=row.people,
        differs=row.differs or [],
        own=user_labels.labels,
        note=user_labels.note,
        requests=[*judge_requests.requests, *_list_stance_requests(view)],
        comparisons=view.comparisons,
        notes=[*judge_requests.notes, *opened.notes],
        failures=[describe_attempt(attempt) for attempt in attempts],
    )


def _find_row(
    lab: Workplace, opened: RunFolder, run: str, topic: str, document: str
) -> DocumentRow:
    """Return the row of a document in the ranking of a topic; raise DataError if there is none."""
    problem = f"topic {topic:.80}, document {document:.80}: not in {run}"
    shown_topic = opened.topics.get(topic)
    if shown_topic is None:
        raise DataError(problem)

    qrels = lab.read_visible_qrels(run, [shown_topic], opened.config)
    for row in opened.rows(topic, qrels):
        if row.document_id == document:
            return row
    raise DataError(problem)


def _list_seen_spans(cut: Cut | None) -> list[tuple[int, int]] | None:
    """Return the spans of a document's text that the model saw; None if it saw all."""
    if cut is None:
        return None
    return cut.parts or [(0, cut.kept_chars)]


def _read_view(opened: RunFolder, view: DocumentView) -> dict[str, FieldReading]:
    """Return the values of a document by field, each with the reading of its answer.

    The stance is read from the answer of the stance prompt, if there is one.
    """
    values: dict[str, float | str] = dict(view.row.grades)
    if view.row.stance and opened.task.stances:
        values[STANCE] = view.row.stance

    readings = dict(view.readings)
    if view.separate_stance is not None:
        readings[STANCE] = view.separate_stance
    return read_fields(values, readings)


def _list_stance_requests(view: DocumentView) -> list[SentRequest]:
    """Return the answers of the stance prompt, whose requests are not shown."""
    return [
        SentRequest(
            prompt=completion.prompt,
            key="",
            messages=[],
            answer=completion.text or "",
            thought="",
        )
        for completion in view.stance_answers
    ]


def _repeat_requests(opened: RunFolder, topic: str, document: str) -> _RepeatedRequests:
    """Return the judge requests about a document with their answers, or a note why not.

    The prompt is rendered again. The key of an answer is a hash of the request: if the keys are
    those in the judgment, the rendered requests are the ones that were sent.
    """
    if opened.answers is None or opened.corpus is None:
        return _RepeatedRequests(requests=[], notes=[])
    try:
        trials = asyncio.run(_repeat(opened, opened.answers, opened.corpus, topic, document))
    except ToucheError as error:
        return _note_no_requests(str(error))

    judgment = opened.find_judgment(topic, document)
    keys = [_get_key(trial) for trial in trials]
    if judgment is not None and judgment.answer_keys != keys:
        # The rendered prompt is not the one that was sent.
        return _note_no_requests(_CHANGED_REQUEST)

    prompt = opened.config.prompts.judge
    requests = [_describe_request(prompt, trial) for trial in trials]
    return _RepeatedRequests(requests=requests, notes=[])


def _describe_request(prompt: str, trial: Trial) -> SentRequest:
    """Return a request of a prompt, with its answer."""
    exchange = describe_exchange(trial)
    return SentRequest(
        prompt=prompt,
        key=_get_key(trial),
        messages=exchange.messages,
        answer=exchange.answer,
        thought=exchange.thought,
    )


def _note_no_requests(reason: str) -> _RepeatedRequests:
    """Return a note that the requests cannot be shown."""
    return _RepeatedRequests(requests=[], notes=[f"The request cannot be shown: {reason}"])


def _get_key(trial: Trial) -> str:
    """Return the key of an answer in the cache; empty without a usable answer."""
    return trial.result.key if isinstance(trial.result, AnsweredRequest) else ""


async def _repeat(
    opened: RunFolder, answers: Cache, corpus: Corpus, topic: str, document: str
) -> list[Trial]:
    """Render the judge requests about a document again, and take their answers from the cache.

    Nothing is sent to a server.

    Args:
        opened: Folder of the run.
        answers: Cache with the answers of the run.
        corpus: Corpus of the run.
        topic: Id of the topic.
        document: Id of the document.
    """
    config = opened.config
    purpose = purposes_of(opened.task)["judge"]
    prompt = load(
        opened.task,
        purpose,
        config.prompts.judge,
        config.prompts.folder,
        judge_per=config.judge_per,
    )
    inputs = Subject(
        task=opened.task,
        purpose=purpose,
        topic=opened.topics[topic],
        ids=(document,),
        documents=corpus.documents,
    )
    # A replay takes answers from the cache alone.
    replay_cache = config.cache.model_copy(update={"file": answers.path, "mode": CacheMode.REPLAY})
    opening = open_client(config.engine, config.sampling, replay_cache, answers=StoredAnswers())
    async with opening as client:
        return await ask(prompt, inputs, make_requester(client))


def write_labels(
    lab: Workplace,
    *,
    run: str,
    topic: str,
    document: str,
    labels: dict[str, Label],
    note: str,
) -> StoredLabels:
    """Store the user's labels of a document and a note in place of earlier ones.

    Args:
        lab: Workplace of the lab.
        run: Name of the run.
        topic: Id of the topic.
        document: Id of the document.
        labels: Labels by field; none and no note to delete the earlier ones.
        note: Note on the document.

    Raises:
        DataError: The run has no such document for the topic.
        UsageError: A label is not one of its field.
    """
    opened = lab.open(run)
    ranking = opened.run.rankings.get(topic, [])
    if not any(candidate.document_id == document for candidate in ranking):
        raise DataError(f"topic {topic:.80}, document {document:.80}: not in the run")
    _check_labels(labels, describe_fields(opened.task))

    stored = opened.directory.read_labels()
    kept = [entry for entry in stored if (entry.topic_id, entry.document_id) != (topic, document)]
    own = UserLabels(topic_id=topic, document_id=document, labels=labels, note=note.strip())
    if own.labels or own.note:
        kept.append(own)
    opened.directory.write_labels(kept)
    return StoredLabels(own=own.labels, note=own.note)


def _check_labels(labels: Mapping[str, Label], fields: Sequence[AnswerField]) -> None:
    """Raise UsageError if a label is not one that people may give to its field."""
    allowed_by_field = {field.name: field.list_user_labels() for field in fields}
    for name, value in labels.items():
        allowed = allowed_by_field.get(name, [])
        if value not in allowed:
            known = ", ".join(map(str, allowed))
            raise UsageError(f"{name:.80}: {value!r:.40}: must be one of {known}")


def export_qrels(lab: Workplace, *, run: str, field: str) -> web.Response:
    """Return the user's labels of a field as qrels, which `touche-llm evaluate` reads.

    Raises:
        DataError: The user gave no label of this field.
    """
    lines: list[str] = []
    for stored in lab.open(run).directory.read_labels():
        if field in stored.labels:
            label = stored.labels[field]
            lines.append(f"{stored.topic_id} 0 {stored.document_id} {label}\n")
    if not lines:
        raise DataError(f"{field:.80}: no label of yours; label a document first")

    attachment = {"Content-Disposition": f'attachment; filename="{qrels_file(field)}"'}
    return web.Response(text="".join(lines), content_type="text/plain", headers=attachment)


def reveal(lab: Workplace, *, run: str, topics: list[str]) -> RevealedTopics:
    """Show the judgments of held-out topics; the access is logged first.

    Raises:
        DataError: The run has no qrels, or the access cannot be logged.
    """
    opened = lab.open(run)
    qrels = lab.read_qrels([run], opened.task, opened.config)
    if qrels is None:
        raise DataError(f"{run}: no qrels, so there is nothing to show")
    lab.reveal(run, topics, qrels)
    return RevealedTopics(topics)
