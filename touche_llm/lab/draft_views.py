"""Views of the bench: a draft checked, rendered, and tried on pinned documents.

The records are sent to the page as JSON; their attributes are the names that its scripts read.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from typing import Literal

from touche_llm.data import concurrency
from touche_llm.data.records import Document, Topic
from touche_llm.engines.token_estimates import TOKEN_CHARS
from touche_llm.errors import EngineError, PromptError, ReplayMiss, UsageError
from touche_llm.evaluation.qrels import STANCE, Qrels
from touche_llm.judging.requests import Requester
from touche_llm.lab.answers import (
    AnswerField,
    FailedAttempt,
    FieldReading,
    describe_attempt,
    describe_exchange,
    describe_fields,
    make_snippet,
    read_fields,
)
from touche_llm.lab.bench import Bench, Benches
from touche_llm.lab.runs_of_lab import Workplace, run_apart
from touche_llm.lab.templates import describe_template
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.model import AnsweredRequest
from touche_llm.prompt_lab.holdout import find_half, record_trial
from touche_llm.prompt_lab.lint import check
from touche_llm.prompt_lab.trial import (
    PromptPart,
    Subject,
    Trial,
    ask,
    ask_for_parts,
    make_subject,
    open_offline,
)
from touche_llm.prompts.leakage import check_examples
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import CatalogEntry
from touche_llm.runs.open_folder import describe_cut, find_differences, get_assessments
from touche_llm.tasks.task import Task

MAX_PINNED = 8
_MAX_CANDIDATES = 50
# Topics that a draft is checked with.
_CHECKED_TOPICS = 5
# Failures without a reply of the server.
_LOST = ("server_error", "timeout")
_LINE = re.compile(r"(?:\.jinja:|\bline )(\d+)")
_QUOTED = re.compile(r"'([^']{2,60})'")
_NO_QRELS = "No qrels, so nothing is measured: evaluate the run, or start the lab with qrels."


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """A prompt to choose: its name or path, and its label without the task."""

    name: str
    label: str


@dataclass(frozen=True, slots=True)
class BenchTopic:
    """A topic to choose, with its half: to choose on, or held out."""

    id: str
    title: str
    half: str


@dataclass(frozen=True, slots=True)
class ServerState:
    """Server of the bench.

    Attributes:
        state: Whether answers come from the cache alone, or nothing is known yet.
        url: Address of the server.
        model: Model that is requested; None for the one that the server names.
    """

    state: Literal["replay", "unknown"]
    url: str
    model: str | None


@dataclass(frozen=True, slots=True)
class BenchDescription:
    """What the bench of a run has to work with.

    Attributes:
        prompts: Prompts to choose.
        topics: Topics to choose.
        fields: Fields of an answer.
        local: Whether a server of this machine answers.
        server: Server of the bench.
        problem: Why nothing is measured; empty if the run has qrels.
    """

    prompts: list[PromptChoice]
    topics: list[BenchTopic]
    fields: list[AnswerField]
    local: bool
    server: ServerState
    problem: str


@dataclass(frozen=True, slots=True)
class CandidateEntry:
    """A candidate of a topic, and whether assessors judged it.

    `text` is the beginning of its text.
    """

    id: str
    title: str
    text: str
    judged: bool


@dataclass(frozen=True, slots=True)
class CandidateList:
    """Candidates of a topic."""

    documents: list[CandidateEntry]


@dataclass(frozen=True, slots=True)
class DraftFinding:
    """A problem of a draft, with the line that it is about; None if it names none."""

    level: Literal["error", "warning"]
    line: int | None
    message: str


@dataclass(frozen=True, slots=True)
class DraftCheck:
    """Result of the checks of a draft.

    Attributes:
        findings: Problems of the draft.
        tokens: Estimated tokens that all requests share; None for an invalid draft.
        diff: Differences from the saved version.
        disk: SHA-256 of the saved version.
    """

    findings: list[DraftFinding]
    tokens: int | None
    diff: str
    disk: str


@dataclass(frozen=True, slots=True)
class RenderedMessage:
    """A message in parts, by the requests that share them."""

    role: str
    parts: list[PromptPart]


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """Messages that would be sent about a document."""

    messages: list[RenderedMessage]


@dataclass(frozen=True, slots=True)
class DraftProblem:
    """Why a draft cannot be rendered."""

    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftAnswer:
    """Answer of a draft about a document, of all parts of the prompt.

    Attributes:
        document: Id of the document.
        cached: Whether all answers come from the cache.
        sent: Number of requests that were sent.
        fields: Readings of the answer, by field; empty if a part failed.
        answer: Text of the answer.
        thought: Reasoning before the answer.
        truncated: Sentence on how much of the document the model saw; empty if all.
        prompt_tokens: Tokens of the prompts with a usable answer.
        completion_tokens: Tokens of the usable answers.
        failure: First unusable answer; None if all are usable.
        assessors: Judgments by assessors, by field.
        differs: Fields in which the model differs from the assessors.
        hidden: Whether the judgments by assessors are hidden.
    """

    document: str
    cached: bool
    sent: int
    fields: dict[str, FieldReading]
    answer: str = ""
    thought: str = ""
    truncated: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failure: FailedAttempt | None
    assessors: Mapping[str, str]
    differs: Sequence[str]
    hidden: bool


@dataclass(frozen=True, slots=True)
class AnswersDone:
    """End of the answers about pinned documents.

    Attributes:
        done: Marks the last line.
        requests: Number of requests that were sent.
        seconds: Time that the answers took.
        state: Whether a replay lacks an answer, or the server answered.
    """

    done: Literal[True]
    requests: int
    seconds: float
    state: Literal["replay", "ok"]


def describe_bench(benches: Benches, *, run: str) -> BenchDescription:
    """Return what the bench of a run has to work with."""
    bench = benches.get(run)
    task = bench.context.task
    engine = bench.config.engine
    is_replay = bench.config.cache.mode is CacheMode.REPLAY
    has_qrels = bool(benches.lab.find_qrels([run], task, bench.config))
    return BenchDescription(
        prompts=[_describe_choice(name, entry) for name, entry in bench.list_prompts().items()],
        topics=[
            BenchTopic(topic.id, topic.title, find_half(topic.title))
            for topic in bench.topics.values()
        ],
        fields=describe_fields(task),
        local=bench.is_local and not is_replay,
        server=ServerState(
            state="replay" if is_replay else "unknown",
            url=engine.base_url,
            model=engine.model_name,
        ),
        problem="" if has_qrels else _NO_QRELS,
    )


def _describe_choice(name: str, entry: CatalogEntry) -> PromptChoice:
    """Return a prompt to choose; one that cannot be loaded has the name of its file."""
    if entry.loaded is None:
        return PromptChoice(name, label=entry.path.name)
    _, prompt = entry.loaded
    _, _, label = prompt.label.partition("/")
    return PromptChoice(name, label)


def list_candidates(benches: Benches, *, run: str, topic: str, query: str = "") -> CandidateList:
    """Return the first candidates of a topic that have all words of a query."""
    bench = benches.get(run)
    shown_topic = bench.find_topic(topic)
    documents = bench.context.corpus.documents
    qrels = benches.lab.read_visible_qrels(run, [shown_topic], bench.config)
    words = query.casefold().split()

    document_ids = [candidate.document_id for candidate in bench.rank(shown_topic)]
    unknown = set(documents.find_unknown(document_ids))
    entries: list[CandidateEntry] = []
    for document_id in document_ids:
        if len(entries) == _MAX_CANDIDATES:
            break
        if document_id in unknown:
            continue
        document = documents.get(document_id)
        if _has_words(document, words):
            entry = CandidateEntry(
                id=document.id,
                title=document.title,
                text=make_snippet(document),
                judged=bool(get_assessments(qrels, topic, document.id)),
            )
            entries.append(entry)
    return CandidateList(entries)


def _has_words(document: Document, words: Sequence[str]) -> bool:
    """Return whether a document has all words, in lower case."""
    text = f"{document.id} {document.title} {document.text}".casefold()
    return all(word in text for word in words)


async def check_draft(benches: Benches, *, run: str, name: str, text: str) -> DraftCheck:
    """Return the problems of a draft, its tokens, and its changes."""
    bench = await benches.lab.apart(benches.get, run)
    template = await benches.lab.apart(describe_template, bench, name)
    unchecked = DraftCheck(
        findings=[],
        tokens=None,
        diff=_format_changes(template.text, text),
        disk=template.hash,
    )

    try:
        prompt = bench.load(name, text)
        problems = _list_example_problems(bench, prompt)
        checked_topics = list(bench.topics.values())[:_CHECKED_TOPICS]
        checked = await run_apart(check, bench.context.task, bench.purpose, prompt, checked_topics)
    except (PromptError, UsageError) as error:
        return replace(unchecked, findings=[_make_finding("error", str(error), text)])

    findings = [_make_finding(finding.level, finding.message, text) for finding in checked.findings]
    findings += [_make_finding("warning", problem, text) for problem in problems]
    return replace(unchecked, findings=findings, tokens=round(checked.shared / TOKEN_CHARS))


def _list_example_problems(bench: Bench, prompt: Prompt) -> list[str]:
    """Return what is wrong with the few-shot examples of a prompt on a bench's topics."""
    problems: list[str] = []
    check_examples(prompt, list(bench.topics.values()), bench.config.topics, problems.append)
    return problems


def _format_changes(saved: str, draft: str) -> str:
    """Return the differences of a draft from the saved text."""
    lines = list(unified_diff(saved.splitlines(), draft.splitlines(), lineterm="", n=2))
    # The first two lines name files.
    return "\n".join(lines[2:])


def _make_finding(level: Literal["error", "warning"], message: str, text: str) -> DraftFinding:
    """Return a finding with the line of the text that it is about."""
    return DraftFinding(level=level, line=_find_line(message, text), message=message)


def _find_line(message: str, text: str) -> int | None:
    """Return the line that a message names, or the first with words that it quotes."""
    named = _LINE.search(message)
    if named is not None:
        return int(named[1])
    for quoted in _QUOTED.findall(message):
        if quoted in text:
            before = text[: text.index(quoted)]
            return before.count("\n") + 1
    return None


async def render_draft(
    benches: Benches, *, run: str, name: str, text: str, topic: str, document: str
) -> RenderedPrompt | DraftProblem:
    """Return the messages that would be sent about a document.

    They are in parts, by the requests that share them.
    """
    bench = await benches.lab.apart(benches.get, run)
    try:
        prompt = bench.load(name, text)
        return await run_apart(_render, bench, prompt, bench.find_topic(topic), document)
    except (PromptError, UsageError) as error:
        return DraftProblem(str(error))


async def _render(bench: Bench, prompt: Prompt, topic: Topic, document: str) -> RenderedPrompt:
    """Return the messages that would be sent about a document; nothing is sent."""
    async with open_offline(bench.config) as builders:
        subject = await make_subject(
            bench.context,
            topic,
            bench.purpose,
            (document,),
            builders.known,
        )
        trials = await ask_for_parts(prompt, subject, builders.dry)

    messages: list[RenderedMessage] = []
    for trial, parts in trials:
        for index, message in enumerate(trial.messages):
            own_parts = [part for part in parts if part.message == index]
            messages.append(RenderedMessage(message.role, own_parts))
    return RenderedPrompt(messages)


async def answer_documents(
    benches: Benches, *, run: str, name: str, text: str, topic: str, documents: list[str]
) -> AsyncIterator[DraftAnswer | AnswersDone]:
    """Yield the answers about pinned documents as they come, then their counts.

    When the page goes away, pending requests are cancelled.

    Raises:
        PromptError: The draft is invalid.
        UsageError: Too many documents are pinned, or none.
        EngineError: The server cannot be used.
    """
    if not 1 <= len(documents) <= MAX_PINNED:
        raise UsageError(f"documents: {len(documents)} pinned; pin 1 to {MAX_PINNED}")
    started = time.monotonic()
    lab = benches.lab
    bench = await lab.apart(benches.get, run)
    prompt = bench.load(name, text)
    shown_topic = bench.find_topic(topic)

    qrels = await lab.apart(lab.read_visible_qrels, run, [shown_topic], bench.config)
    if qrels is not None:
        await _log_trial(lab, bench, prompt, shown_topic, documents, qrels)

    answers: list[DraftAnswer] = []
    try:
        async for model_answer in _answer_each(bench, prompt, shown_topic, documents):
            judged = _add_assessments(model_answer, bench.context.task, qrels, topic)
            answers.append(judged)
            yield replace(judged, hidden=lab.is_hidden(run, shown_topic))
        _check_replies(answers)
    except EngineError:
        await bench.close_model()
        raise
    yield _summarize(answers, time.monotonic() - started)


async def _log_trial(
    lab: Workplace,
    bench: Bench,
    prompt: Prompt,
    topic: Topic,
    documents: Sequence[str],
    qrels: Qrels,
) -> None:
    """Log that judgments are shown beside the answers of a draft."""
    await asyncio.to_thread(
        record_trial,
        bench.config.cache.file,
        topic,
        documents,
        qrels,
        prompt.label,
        lab.warn,
    )


def _check_replies(answers: Sequence[DraftAnswer]) -> None:
    """Raise EngineError if the server replied to no request."""
    lost = [
        answer.failure
        for answer in answers
        if answer.failure is not None and answer.failure.kind in _LOST
    ]
    if len(lost) == len(answers):
        raise EngineError(f"the server does not answer: {lost[0].reason}")


def _summarize(answers: Sequence[DraftAnswer], seconds: float) -> AnswersDone:
    """Return the counts of the answers about pinned documents."""
    failures = [answer.failure for answer in answers if answer.failure is not None]
    is_replay = any(failure.kind == "replay" for failure in failures)
    return AnswersDone(
        done=True,
        requests=sum(answer.sent for answer in answers),
        seconds=seconds,
        state="replay" if is_replay else "ok",
    )


async def _answer_each(
    bench: Bench, prompt: Prompt, topic: Topic, documents: Sequence[str]
) -> AsyncIterator[DraftAnswer]:
    """Yield the answer about each document as it comes, without assessments."""
    requester = await bench.open_model()
    making = make_subject(bench.context, topic, bench.purpose, tuple(documents), requester)
    subject = await concurrency.run_async(making)

    tasks = [
        asyncio.create_task(_answer_one(prompt, subject, document, requester))
        for document in documents
    ]
    try:
        for task in asyncio.as_completed(tasks):
            yield await task
    finally:
        for pending in tasks:
            pending.cancel()


async def _answer_one(
    prompt: Prompt, subject: Subject, document: str, requester: Requester
) -> DraftAnswer:
    """Return the answer about one document of a subject."""
    alone = replace(subject, ids=(document,))
    try:
        trials = await concurrency.run_async(ask(prompt, alone, requester))
    except ReplayMiss:
        return _describe_miss(document)
    return _describe_trials(document, trials)


def _describe_miss(document: str) -> DraftAnswer:
    """Return the answer about a document that the cache of a replay lacks."""
    failure = FailedAttempt(
        sample=0,
        kind="replay",
        reason="the cache has no answer to this text",
        text="",
    )
    return DraftAnswer(
        document=document,
        cached=False,
        sent=0,
        fields={},
        failure=failure,
        assessors={},
        differs=[],
        hidden=False,
    )


def _describe_trials(document: str, trials: Sequence[Trial]) -> DraftAnswer:
    """Return the answer about a document, of all parts of the prompt."""
    exchanges = [describe_exchange(trial) for trial in trials]
    thoughts = [exchange.thought for exchange in exchanges if exchange.thought]
    cuts = [cut for trial in trials for cut in trial.cut.values()]
    answered = [trial.result for trial in trials if isinstance(trial.result, AnsweredRequest)]
    failure = _find_failure(trials)
    return DraftAnswer(
        document=document,
        cached=all(trial.is_cached for trial in trials),
        sent=sum(not trial.is_cached for trial in trials),
        fields=_read_trials(trials) if failure is None else {},
        answer="\n".join(exchange.answer for exchange in exchanges),
        thought="\n\n".join(thoughts),
        truncated=describe_cut(cuts[0]) if cuts else "",
        prompt_tokens=sum(result.answer.prompt_tokens for result in answered),
        completion_tokens=sum(result.answer.completion_tokens for result in answered),
        failure=failure,
        assessors={},
        differs=[],
        hidden=False,
    )


def _find_failure(trials: Sequence[Trial]) -> FailedAttempt | None:
    """Return the last attempt of the first request that failed.

    None if all have an answer.
    """
    for trial in trials:
        if not isinstance(trial.result, AnsweredRequest):
            return describe_attempt(trial.attempts[-1])
    return None


def _read_trials(trials: Sequence[Trial]) -> dict[str, FieldReading]:
    """Return the readings of all parts of a prompt, by field."""
    fields: dict[str, FieldReading] = {}
    for trial in trials:
        fields |= read_fields(trial.values, trial.readings)
    return fields


def _add_assessments(
    answer: DraftAnswer, task: Task, qrels: Qrels | None, topic: str
) -> DraftAnswer:
    """Return an answer with the assessors' judgments and the differences from them."""
    grades: dict[str, float] = {}
    stance = ""
    for name, field in answer.fields.items():
        if isinstance(field.value, float | int):
            grades[name] = field.value
        elif name == STANCE:
            stance = field.value

    people = get_assessments(qrels, topic, answer.document)
    differs = find_differences(grades, stance, people, task)
    return replace(answer, assessors=people, differs=differs or [])
