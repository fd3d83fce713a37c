"""Documents of a run: what the model and the assessors said of each, and the labels and notes of the user."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web
from msgspec import structs

from touche_llm.data.records import Document, Reading, UserLabels
from touche_llm.errors import DataError, ToucheError, UsageError
from touche_llm.evaluation.qrels import STANCE, qrels_file
from touche_llm.lab.workplace import Workplace
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.pipeline.engines import assume_engine_info, make_request_builder
from touche_llm.prompt_lab.holdout import find_half
from touche_llm.prompt_lab.trial import Subject, Trial, ask
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.report.folder import DocumentRow, RunFolder
from touche_llm.tasks.task import Task

# Characters of a text in a list.
SNIPPET = 240
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
    return fields + [{"name": STANCE, "kind": "label", "labels": labels, "low": None, "high": None}] * bool(labels)


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


def list_topics(lab: Workplace, *, run: str) -> dict[str, Any]:
    """Return the topics of a run and the fields of its answers."""
    opened = lab.open(run)
    topics = [
        {
            "id": topic.id,
            "title": topic.title,
            "half": find_half(topic.title),
            "documents": len(opened.run.rankings.get(topic.id, [])),
            "failures": sum(len(found) for (of, _), found in opened.failed.items() if of == topic.id),
        }
        for topic in opened.topics.values()
    ]
    return {"topics": topics, "fields": describe_fields(opened.task), "stances": list(opened.task.stances)}


def list_documents(lab: Workplace, *, run: str, topic: str) -> dict[str, Any]:
    """Return a row for each document of a topic, without the judgments of a hidden topic."""
    opened = lab.open(run)
    found = opened.topics.get(topic)
    if found is None:
        raise DataError(f"topic {topic:.80}: not in {run}")
    qrels = lab.read_visible_qrels(run, [found], opened.config)
    own = {each.document_id: each for each in opened.directory.read_labels() if each.topic_id == topic}
    rows = opened.rows(topic, qrels)
    texts = _read_documents(opened, [row.document_id for row in rows])
    is_hidden = qrels is not None and lab.is_hidden(run, found)
    return {"rows": [_make_row(opened, topic, row, texts, own) for row in rows], "hidden": is_hidden}


def _read_documents(opened: RunFolder, ids: Sequence[str]) -> dict[str, Document]:
    if opened.corpus is None:
        return {}
    documents = opened.corpus.documents
    unknown = set(documents.find_unknown(ids))
    return {each: documents.get(each) for each in ids if each not in unknown}


def _make_row(
    opened: RunFolder, topic: str, row: DocumentRow, texts: Mapping[str, Document], own: Mapping[str, UserLabels]
) -> dict[str, Any]:
    judgment, stance = opened.judgments[topic].get(row.document_id), opened.readings.get((topic, row.document_id))
    readings = {} if judgment is None else judgment.readings
    shares = stance.probabilities if stance is not None else readings[STANCE].shares if STANCE in readings else {}
    known = [each.probabilities for each in readings.values() if each.probabilities]
    failures, document = opened.failed.get((topic, row.document_id)), texts.get(row.document_id)
    return {
        "rank": row.rank,
        "document": row.document_id,
        "title": "" if document is None else document.title,
        "snippet": "" if document is None else " ".join(document.text[: 2 * SNIPPET].split())[:SNIPPET],
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
            requests.append({"prompt": prompt, "key": "", "messages": [], "answer": text or "", "thought": ""})
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
        "notes": [*notes, *opened.list_notes(), *details.comparisons],
        "failures": [
            {"kind": attempt.kind, "reason": attempt.reason, "text": attempt.text}
            for failure in details.failures
            for attempt in failure.attempts
        ],
    }


def _read_requests(opened: RunFolder, topic: str, document: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the judge request about a document with its answer, and notes if it cannot be shown.

    The prompt is rendered again; that it is the one that was sent is proved by the key of its answer.
    """
    judgment = opened.judgments[topic].get(document)
    shown: list[dict[str, Any]] = []
    notes: list[str] = []
    if opened.answers is None or opened.corpus is None:
        return shown, notes
    try:
        trial = asyncio.run(_repeat(opened, topic, document))
    except ToucheError as error:
        trial = None
        notes.append(f"The request cannot be shown: {error}")
    if trial is not None:
        key = trial.result.key if isinstance(trial.result, AnsweredRequest) else ""
        if key and judgment is not None and judgment.key != key:
            notes.append("The request cannot be shown: the prompt, its settings or the document changed since the run.")
        else:
            shown.append({"prompt": opened.config.prompts.judge, "key": key, **describe_exchange(trial)})
    return shown, notes


def describe_exchange(trial: Trial) -> dict[str, Any]:
    """Return the messages of a request, the answer and the reasoning, as they were sent and received."""
    messages = [{"role": message.role, "text": message.content} for message in trial.messages]
    if isinstance(trial.result, AnsweredRequest):
        thoughts = [chain.thought for chain in trial.result.chains if chain.thought_key]
        return {"messages": messages, "answer": trial.result.answer.text, "thought": "\n\n".join(thoughts)}
    last = trial.result.attempts[-1] if trial.result.attempts else None
    return {"messages": messages, "answer": "" if last is None else last.text, "thought": ""}


async def _repeat(opened: RunFolder, topic: str, document: str) -> Trial:
    """Return the request about a document with its answer from the cache; nothing is sent."""
    assert opened.answers is not None and opened.corpus is not None
    config, purpose = opened.config, purposes_of(opened.task)["judge"]
    prompt = load(opened.task, purpose, config.prompts.judge, config.prompts.folder)
    info = assume_engine_info(config.engine, opened.answers)
    model = ModelClient(engine_info=info, engine=None, cache=opened.answers)
    builder = make_request_builder(model, config.engine, config.sampling)
    subject = Subject(opened.task, purpose, opened.topics[topic], (document,), opened.corpus.documents)
    (trial,) = await ask(prompt, subject, builder, document_tokens=config.ranking.document_tokens)
    return trial


def _find_own(opened: RunFolder, topic: str, document: str) -> UserLabels:
    for each in opened.directory.read_labels():
        if (each.topic_id, each.document_id) == (topic, document):
            return each
    return UserLabels(topic_id=topic, document_id=document)


def write_label(
    lab: Workplace, *, run: str, topic: str, document: str, field: str, value: int | str | None
) -> dict[str, Any]:
    """Store the user's label of a field, or remove it with None; return the labels of the document."""
    opened = lab.open(run)
    known = {each["name"]: each for each in describe_fields(opened.task)}
    if field not in known:
        raise UsageError(f"{field:.80}: no field of {opened.task.name}; it has {', '.join(known)}")
    of = known[field]
    allowed = of["labels"] if of["kind"] == "label" else range(of["low"], of["high"] + 1)
    if value is not None and value not in allowed:
        raise UsageError(f"{field}: {value!r:.40}: must be one of {', '.join(map(str, allowed))}")
    own = _find_own(opened, topic, document)
    labels = {name: each for name, each in (own.labels | {field: value}).items() if each is not None}
    _store(opened, structs.replace(own, labels=labels))
    return {"own": labels}


def write_note(lab: Workplace, *, run: str, topic: str, document: str, note: str) -> dict[str, Any]:
    """Store the user's note on a document."""
    opened = lab.open(run)
    _store(opened, structs.replace(_find_own(opened, topic, document), note=note.strip()))
    return {"note": note.strip()}


def _store(opened: RunFolder, own: UserLabels) -> None:
    key = (own.topic_id, own.document_id)
    if own.document_id not in {each.document_id for each in opened.run.rankings.get(own.topic_id, [])}:
        raise DataError(f"topic {own.topic_id:.80}, document {own.document_id:.80}: not in the run")
    others = [each for each in opened.directory.read_labels() if (each.topic_id, each.document_id) != key]
    opened.directory.write_labels([*others, own] if own.labels or own.note else others)


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
    qrels = lab.read_qrels(run, opened.task, opened.config)
    if qrels is None:
        raise DataError(f"{run}: no qrels, so there is nothing to show")
    lab.reveal(run, topics, qrels)
    return {"revealed": topics}
