"""Documents of a run: what the model and the assessors said of each, and the labels and notes of the user."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web
from msgspec.structs import asdict

from touche_llm.api.opening import StoredAnswers, open_client
from touche_llm.data.records import Document, Reading, UserLabels
from touche_llm.errors import DataError, ToucheError, UsageError
from touche_llm.evaluation.qrels import STANCE, qrels_file
from touche_llm.judging.requests import make_request_builder
from touche_llm.lab.runs_of_lab import Workplace
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.model import AnsweredRequest
from touche_llm.prompt_lab.holdout import find_half
from touche_llm.prompt_lab.trial import Subject, Trial, ask
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.retrieval.corpus import Corpus
from touche_llm.runs.open_folder import DocumentRow, RunFolder
from touche_llm.tasks.task import Task

# Characters of a text in a list.
_SNIPPET = 240
_SEPARATE_STANCE = "stance, separate request"
Fields = dict[str, dict[str, Any]]


def describe_fields(task: Task) -> list[dict[str, Any]]:
    """Return the fields of an answer: aspects with their grades, and the stance with its labels.

    `low` and `high` are the bounds of grades by people.
    """
    scales = task.qrels_scales
    fields: list[dict[str, Any]] = [
        {
            "name": name,
            "kind": "grade",
            "labels": [str(grade) for grade in task.aspects[name].grades],
            "low": max(scales[name].lowest, 0),
            "high": scales[name].highest,
        }
        for name in task.question.grades
    ]
    labels = list(task.stances)
    return fields + [
        {"name": STANCE, "kind": "label", "labels": labels, "low": None, "high": None}
    ] * bool(labels)


def read_fields(values: Mapping[str, Any], readings: Mapping[str, Reading]) -> Fields:
    """Return value, answered label, probabilities and the mass outside the labels of each field."""
    found: Fields = {}
    for name, value in values.items():
        reading = readings.get(name)
        found[name] = {
            "value": value,
            "answered": None if reading is None else reading.answered,
            "probabilities": None if reading is None else reading.probabilities,
            "off_label": None if reading is None else reading.off_label_mass,
        }
    return found


def make_snippet(document: Document) -> str:
    """Return the beginning of a document's text, as one line."""
    return " ".join(document.text[: 2 * _SNIPPET].split())[:_SNIPPET]


def list_topics(lab: Workplace, *, run: str) -> dict[str, Any]:
    """Return the topics of a run and the fields of its answers."""
    opened = lab.open(run)
    topics = [
        {
            "id": topic.id,
            "title": topic.title,
            "half": find_half(topic.title),
            "documents": len(opened.run.rankings.get(topic.id, [])),
            "failures": sum(
                len(found) for (of, _), found in opened.failed.items() if of == topic.id
            ),
        }
        for topic in opened.topics.values()
    ]
    return {
        "topics": topics,
        "fields": describe_fields(opened.task),
        "stances": list(opened.task.stances),
    }


def list_documents(lab: Workplace, *, run: str, topic: str) -> dict[str, Any]:
    """Return a row for each document of a topic, without the judgments of a hidden topic."""
    opened = lab.open(run)
    found = opened.topics.get(topic)
    if found is None:
        raise DataError(f"topic {topic:.80}: not in {run}")
    qrels = lab.read_visible_qrels(run, [found], opened.config)
    own = {
        each.document_id: each for each in opened.directory.read_labels() if each.topic_id == topic
    }
    rows = opened.rows(topic, qrels)
    texts = _read_documents(opened, [row.document_id for row in rows])
    is_hidden = qrels is not None and lab.is_hidden(run, found)
    return {
        "rows": [_make_row(opened, topic, row, texts, own) for row in rows],
        "hidden": is_hidden,
    }


def _read_documents(opened: RunFolder, ids: Sequence[str]) -> dict[str, Document]:
    if opened.corpus is None:
        return {}
    documents = opened.corpus.documents
    unknown = set(documents.find_unknown(ids))
    return {each: documents.get(each) for each in ids if each not in unknown}


def _make_row(
    opened: RunFolder,
    topic: str,
    row: DocumentRow,
    texts: Mapping[str, Document],
    own: Mapping[str, UserLabels],
) -> dict[str, Any]:
    judgment, stance = (
        opened.judgments[topic].get(row.document_id),
        opened.readings.get((topic, row.document_id)),
    )
    readings = {} if judgment is None else judgment.readings
    shares = (
        stance.probabilities
        if stance is not None
        else readings[STANCE].shares
        if STANCE in readings
        else {}
    )
    known = [each.probabilities for each in readings.values() if each.probabilities]
    failures, document = opened.failed.get((topic, row.document_id)), texts.get(row.document_id)
    return {
        "rank": row.rank,
        "document": row.document_id,
        "title": "" if document is None else document.title,
        "snippet": "" if document is None else make_snippet(document),
        "first": row.first,
        "stance": row.stance,
        "p": shares.get(row.stance),
        "grades": row.grades,
        "confidence": min((max(each.values()) for each in known), default=None),
        "failure": failures[-1].kind if failures else "",
        "truncated": judgment is not None and judgment.cut is not None,
        "assessors": row.people,
        "differs": row.differs or [],
        "own": own[row.document_id].labels if row.document_id in own else {},
    }


def read_document(lab: Workplace, *, run: str, topic: str, document: str) -> dict[str, Any]:
    """Return a document with its judgments, and its request as it was sent, if the cache proves it."""
    opened = lab.open(run)
    found = opened.topics.get(topic)
    qrels = None if found is None else lab.read_visible_qrels(run, [found], opened.config)
    row = next((each for each in opened.rows(topic, qrels) if each.document_id == document), None)
    if row is None or found is None:
        raise DataError(f"topic {topic:.80}, document {document:.80}: not in {run}")
    details = opened.document(topic, row)
    readings = dict(details.readings)
    if (separate := readings.pop(_SEPARATE_STANCE, None)) is not None:
        readings[STANCE] = separate
    values = {**row.grades, **({STANCE: row.stance} if row.stance and opened.task.stances else {})}
    judgment = opened.judgments[topic].get(document)
    cut = None if judgment is None else judgment.cut
    content = _read_documents(opened, [document]).get(document)
    requests, notes = _read_requests(opened, topic, document)
    stance = opened.readings.get((topic, document))
    for prompt, text in details.answers:
        if stance is not None and prompt.startswith(stance.prompt):
            requests.append(
                {"prompt": prompt, "key": "", "messages": [], "answer": text or "", "thought": ""}
            )
    own = _find_own(opened, topic, document)
    return {
        "document": document,
        "title": "" if content is None else content.title,
        "text": None if content is None else content.text,
        "seen": None if cut is None else cut.parts or [(0, cut.kept_chars)],
        "truncation": details.truncation,
        "fields": read_fields(values, readings),
        "assessors": row.people,
        "differs": row.differs or [],
        "own": own.labels,
        "note": own.note,
        "requests": requests,
        "comparisons": details.comparisons,
        "notes": [*notes, *opened.notes],
        "failures": [
            asdict(attempt) for failure in details.failures for attempt in failure.attempts
        ],
    }


def _read_requests(
    opened: RunFolder, topic: str, document: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the judge requests about a document with their answers, and notes if they cannot be shown.

    The prompt is rendered again; that it is the one that was sent is proved by the keys of the
    answers.
    """
    if opened.answers is None or opened.corpus is None:
        return [], []
    try:
        trials = asyncio.run(_repeat(opened, opened.answers, opened.corpus, topic, document))
    except ToucheError as error:
        return [], [f"The request cannot be shown: {error}"]
    judgment = opened.judgments[topic].get(document)
    keys = [
        trial.result.key if isinstance(trial.result, AnsweredRequest) else "" for trial in trials
    ]
    if judgment is not None and keys != judgment.answer_keys:
        return [], [
            "The request cannot be shown: the prompt, its settings or the document changed since the run."
        ]
    prompt = opened.config.prompts.judge
    return [
        {"prompt": prompt, "key": key, **describe_exchange(trial)}
        for key, trial in zip(keys, trials, strict=True)
    ], []


async def _repeat(
    opened: RunFolder, answers: Cache, corpus: Corpus, topic: str, document: str
) -> list[Trial]:
    """Return the judge requests about a document with their answers from the cache.

    Nothing is sent.
    """
    config, purpose = opened.config, purposes_of(opened.task)["judge"]
    prompt = load(
        opened.task,
        purpose,
        config.prompts.judge,
        config.prompts.folder,
        judge_per=config.judge_per,
    )
    subject = Subject(opened.task, purpose, opened.topics[topic], (document,), corpus.documents)
    cache = config.cache.model_copy(update={"file": answers.path, "mode": CacheMode.REPLAY})
    answering = StoredAnswers()
    async with open_client(config.engine, config.sampling, cache, answers=answering) as client:
        return await ask(prompt, subject, make_request_builder(client))


def describe_exchange(trial: Trial) -> dict[str, Any]:
    """Return the messages of a request, the answer and the reasoning, as they were sent and received."""
    messages = [{"role": message.role, "text": message.content} for message in trial.messages]
    if isinstance(trial.result, AnsweredRequest):
        return {
            "messages": messages,
            "answer": trial.result.answer.text,
            "thought": trial.result.thought,
        }
    last = trial.attempts[-1]
    return {"messages": messages, "answer": last.text, "thought": ""}


def _find_own(opened: RunFolder, topic: str, document: str) -> UserLabels:
    found = (
        each
        for each in opened.directory.read_labels()
        if (each.topic_id, each.document_id) == (topic, document)
    )
    return next(found, UserLabels(topic_id=topic, document_id=document))


def write_labels(
    lab: Workplace, *, run: str, topic: str, document: str, labels: dict[str, int | str], note: str
) -> dict[str, Any]:
    """Store the user's labels of a document and a note in place of earlier ones."""
    opened = lab.open(run)
    if document not in {each.document_id for each in opened.run.rankings.get(topic, [])}:
        raise DataError(f"topic {topic:.80}, document {document:.80}: not in the run")
    known = {field["name"]: field for field in describe_fields(opened.task)}
    for name, value in labels.items():
        of = known.get(name, {"kind": "label", "labels": []})
        allowed = of["labels"] if of["kind"] == "label" else range(of["low"], of["high"] + 1)
        if value not in allowed:
            raise UsageError(
                f"{name:.80}: {value!r:.40}: must be one of {', '.join(map(str, allowed))}"
            )
    own = UserLabels(topic_id=topic, document_id=document, labels=labels, note=note.strip())
    stored = opened.directory.read_labels()
    others = [each for each in stored if (each.topic_id, each.document_id) != (topic, document)]
    opened.directory.write_labels([*others, own] if labels or own.note else others)
    return {"own": labels, "note": own.note}


def export_qrels(lab: Workplace, *, run: str, field: str) -> web.Response:
    """Return the user's labels of a field as qrels, which `touche-llm evaluate` reads."""
    found = [each for each in lab.open(run).directory.read_labels() if field in each.labels]
    if not found:
        raise DataError(f"{field:.80}: no label of yours; label a document first")
    text = "".join(f"{each.topic_id} 0 {each.document_id} {each.labels[field]}\n" for each in found)
    attachment = {"Content-Disposition": f'attachment; filename="{qrels_file(field)}"'}
    return web.Response(text=text, content_type="text/plain", headers=attachment)


def reveal(lab: Workplace, *, run: str, topics: list[str]) -> dict[str, Any]:
    """Show the judgments of held-out topics; the access is logged first."""
    opened = lab.open(run)
    qrels = lab.read_qrels([run], opened.task, opened.config)
    if qrels is None:
        raise DataError(f"{run}: no qrels, so there is nothing to show")
    lab.reveal(run, topics, qrels)
    return {"revealed": topics}
