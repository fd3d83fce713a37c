"""Views of the bench: a draft checked, rendered, and tried on pinned documents while its user types."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import unified_diff
from typing import Any

from msgspec import to_builtins

from touche_llm.data import concurrency
from touche_llm.data.records import Topic
from touche_llm.engines.token_estimates import TOKEN_CHARS
from touche_llm.errors import EngineError, PromptError, ReplayMiss, UsageError
from touche_llm.evaluation.qrels import STANCE, Qrels
from touche_llm.lab.bench import Bench, Benches
from touche_llm.lab.documents import describe_exchange, describe_fields, make_snippet, read_fields
from touche_llm.lab.runs_of_lab import run_apart
from touche_llm.lab.templates import describe_template
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.model import AnsweredRequest
from touche_llm.prompt_lab.holdout import find_half, record_trial
from touche_llm.prompt_lab.lint import check
from touche_llm.prompt_lab.trial import Trial, ask, ask_for_parts, make_subject, open_offline
from touche_llm.prompts.leakage import check_examples
from touche_llm.prompts.prompt import Prompt
from touche_llm.runs.open_folder import find_differences, get_assessments
from touche_llm.tasks.task import Task

MAX_PINNED = 8
_MAX_CANDIDATES = 50
# Topics that a draft is checked with.
_CHECKED_TOPICS = 5
# Failures without a reply of the server.
_LOST = ("server_error", "timeout")
_LINE = re.compile(r"(?:\.jinja:|\bline )(\d+)")
_QUOTED = re.compile(r"'([^']{2,60})'")


def describe_bench(benches: Benches, *, run: str) -> dict[str, Any]:
    """Return what the bench of a run has to work with."""
    bench = benches.get(run)
    engine, task = bench.config.engine, bench.context.task
    is_replay = bench.config.cache.mode is CacheMode.REPLAY
    has_qrels = bool(benches.lab.find_qrels([run], task, bench.config))
    return {
        "prompts": [
            {
                "name": name,
                "label": entry.loaded[1].label.partition("/")[2]
                if entry.loaded
                else entry.path.name,
            }
            for name, entry in bench.list_prompts().items()
        ],
        "topics": [
            {"id": each.id, "title": each.title, "half": find_half(each.title)}
            for each in bench.topics.values()
        ],
        "fields": describe_fields(task),
        "local": bench.is_local and not is_replay,
        "server": {
            "state": "replay" if is_replay else "unknown",
            "url": engine.base_url,
            "model": engine.model_name,
        },
        "problem": ""
        if has_qrels
        else "No qrels, so nothing is measured: evaluate the run, or start the lab with qrels.",
    }


def list_candidates(benches: Benches, *, run: str, topic: str, query: str = "") -> dict[str, Any]:
    """Return the first candidates of a topic whose id or text has the words of a query."""
    bench = benches.get(run)
    found = bench.find_topic(topic)
    ranking, words = bench.rank(found), query.casefold().split()
    documents = bench.context.corpus.documents
    unknown = set(documents.find_unknown([each.document_id for each in ranking]))
    qrels = benches.lab.read_visible_qrels(run, [found], bench.config)
    listed: list[dict[str, Any]] = []
    for candidate in ranking:
        if candidate.document_id in unknown or len(listed) == _MAX_CANDIDATES:
            continue
        document = documents.get(candidate.document_id)
        if all(
            word in f"{document.id} {document.title} {document.text}".casefold() for word in words
        ):
            is_judged = bool(get_assessments(qrels, topic, document.id))
            row = {
                "id": document.id,
                "title": document.title,
                "text": make_snippet(document),
                "judged": is_judged,
            }
            listed.append(row)
    return {"documents": listed}


async def check_draft(benches: Benches, *, run: str, name: str, text: str) -> dict[str, Any]:
    """Return the findings about a draft with their lines, its tokens, and its difference to the saved version."""
    bench = await benches.lab.apart(benches.get, run)
    template = await benches.lab.apart(describe_template, bench, name)
    lines = (template["text"].splitlines(), text.splitlines())
    reply = {
        "findings": [],
        "tokens": None,
        "diff": "\n".join(list(unified_diff(*lines, lineterm="", n=2))[2:]),
        "disk": template["hash"],
    }
    try:
        prompt = bench.load(name, text)
        topics = list(bench.topics.values())
        problems: list[str] = []
        check_examples(prompt, topics, bench.config.topics, problems.append)
        found = await run_apart(
            check, bench.context.task, bench.purpose, prompt, topics[:_CHECKED_TOPICS]
        )
    except (PromptError, UsageError) as error:
        return reply | {"findings": [_make_finding("error", str(error), text)]}
    findings = [_make_finding(each.level, each.message, text) for each in found.findings]
    findings += [_make_finding("warning", problem, text) for problem in problems]
    return reply | {"findings": findings, "tokens": round(found.shared / TOKEN_CHARS)}


def _make_finding(level: str, message: str, text: str) -> dict[str, Any]:
    """Return a finding with the line that it names, or that has the words that it quotes."""
    named = _LINE.search(message)
    line = int(named[1]) if named else None
    for quoted in _QUOTED.findall(message) if line is None else []:
        if quoted in text:
            line = text[: text.index(quoted)].count("\n") + 1
            break
    return {"level": level, "line": line, "message": message}


async def render_draft(
    benches: Benches, *, run: str, name: str, text: str, topic: str, document: str
) -> dict[str, Any]:
    """Return the messages that would be sent about a document, in parts by the requests that share them."""
    bench = await benches.lab.apart(benches.get, run)
    try:
        return await run_apart(
            _render, bench, bench.load(name, text), bench.find_topic(topic), document
        )
    except (PromptError, UsageError) as error:
        return {"problem": str(error)}


async def _render(bench: Bench, prompt: Prompt, topic: Topic, document: str) -> dict[str, Any]:
    async with open_offline(bench.config) as builders:
        subject = await make_subject(
            bench.context,
            topic,
            bench.purpose,
            (document,),
            builders.known,
        )
        trials = await ask_for_parts(prompt, subject, builders.dry)
    return {
        "messages": [
            {
                "role": message.role,
                "parts": [asdict(part) for part in parts if part.message == place],
            }
            for trial, parts in trials
            for place, message in enumerate(trial.messages)
        ]
    }


async def answer(
    benches: Benches, *, run: str, name: str, text: str, topic: str, documents: list[str]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the answers of a draft about pinned documents as they come, then their counts.

    When the page goes away, pending requests are cancelled.

    Raises:
        PromptError: The draft is invalid.
        EngineError: The server cannot be used.
    """
    if not 1 <= len(documents) <= MAX_PINNED:
        raise UsageError(f"documents: {len(documents)} pinned; pin 1 to {MAX_PINNED}")
    lab, started = benches.lab, time.monotonic()
    bench = await lab.apart(benches.get, run)
    prompt, found = bench.load(name, text), bench.find_topic(topic)
    qrels = await lab.apart(lab.read_visible_qrels, run, [found], bench.config)
    if qrels is not None:
        # Judgments are shown beside the answers.
        cache = bench.config.cache.file
        await asyncio.to_thread(
            record_trial, cache, found, documents, qrels, prompt.label, lab.warn
        )
    lines: list[dict[str, Any]] = []
    try:
        async for line in _answer_each(bench, prompt, found, documents):
            line |= _compare(bench.context.task, line["fields"], qrels, topic, line["document"])
            lines.append(line)
            yield line | {"hidden": lab.is_hidden(run, found)}
        failures = [line["failure"] for line in lines if line["failure"]]
        lost = [failure["reason"] for failure in failures if failure["kind"] in _LOST]
        if len(lost) == len(lines):
            raise EngineError(f"the server does not answer: {lost[0]}")
    except EngineError:
        await bench.close_model()
        raise
    state = "replay" if any(failure["kind"] == "replay" for failure in failures) else "ok"
    requests = sum(line["sent"] for line in lines)
    yield {
        "done": True,
        "requests": requests,
        "seconds": time.monotonic() - started,
        "state": state,
    }


async def _answer_each(
    bench: Bench, prompt: Prompt, topic: Topic, documents: Sequence[str]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the answer about each document as it comes."""
    builder = await bench.open_model()
    work = make_subject(bench.context, topic, bench.purpose, tuple(documents), builder)
    subject = await concurrency.run_async(work)

    async def request(document: str) -> dict[str, Any]:
        alone = replace(subject, ids=(document,))
        try:
            trials = await concurrency.run_async(ask(prompt, alone, builder))
        except ReplayMiss:
            failure = {
                "kind": "replay",
                "reason": "the cache has no answer to this text",
                "text": "",
            }
            return {
                "document": document,
                "cached": False,
                "sent": 0,
                "fields": {},
                "failure": failure,
            }
        return {"document": document, **_describe_trials(trials)}

    tasks = [asyncio.create_task(request(document)) for document in documents]
    try:
        for task in asyncio.as_completed(tasks):
            yield await task
    finally:
        for each in tasks:
            each.cancel()


def _describe_trials(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the answer about a document, of all parts of the prompt."""
    answered = [trial.result for trial in trials if isinstance(trial.result, AnsweredRequest)]
    failed = [
        trial.attempts[-1] for trial in trials if not isinstance(trial.result, AnsweredRequest)
    ]
    cuts = [cut for trial in trials for cut in trial.cut.values()]
    exchanges = [describe_exchange(trial) for trial in trials]
    fields: dict[str, Any] = {}
    for trial in trials if not failed else []:
        fields |= read_fields(trial.values, trial.readings)
    return {
        "cached": all(trial.is_cached for trial in trials),
        "sent": sum(not trial.is_cached for trial in trials),
        "fields": fields,
        "answer": "\n".join(each["answer"] for each in exchanges),
        "thought": "\n\n".join(filter(None, (each["thought"] for each in exchanges))),
        "truncated": f"the model saw {cuts[0].kept_chars:,} of {cuts[0].of_chars:,} characters"
        if cuts
        else "",
        "prompt_tokens": sum(result.answer.prompt_tokens for result in answered),
        "completion_tokens": sum(result.answer.completion_tokens for result in answered),
        "failure": to_builtins(failed[0]) if failed else None,
    }


def _compare(
    task: Task, fields: Mapping[str, Any], qrels: Qrels | None, topic: str, document: str
) -> dict[str, Any]:
    """Return the assessors' judgments of a document, and the fields in which the model differs."""
    people = get_assessments(qrels, topic, document)
    grades = {name: found["value"] for name, found in fields.items() if name in task.aspects}
    stance = fields[STANCE]["value"] if STANCE in fields else ""
    return {"assessors": people, "differs": find_differences(grades, stance, people, task) or []}
