"""Views of the bench: a draft checked, rendered, and tried on pinned documents.

The records are sent to the page as JSON; their attributes are the names that its scripts read.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from touche_llm.lab.runs_of_lab import Workplace, run_in_thread
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

MAX_PINNED = 8
_MAX_CANDIDATES = 50
# Topics that a draft is checked with.
_CHECKED_TOPICS = 5
# Kinds of failures in which the server sent no reply.
_KINDS_WITHOUT_REPLY = ("server_error", "timeout")
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
    assessors: Mapping[str, str] = field(default_factory=dict)
    differs: Sequence[str] = ()
    hidden: bool = False


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
    """Return what the bench of a run has to work with: prompts, topics, fields, and the server."""
    bench = benches.get(run)
    task = bench.context.task
    is_replay = bench.config.cache.mode is CacheMode.REPLAY
    has_qrels = bool(benches.lab.find_qrels([run], task, bench.config))
    server = ServerState(
        state="replay" if is_replay else "unknown",
        url=bench.config.engine.base_url,
        model=bench.config.engine.model_name,
    )
    return BenchDescription(
        prompts=[_describe_choice(name, entry) for name, entry in bench.list_prompts().items()],
        topics=[_describe_topic(topic) for topic in bench.topics.values()],
        fields=describe_fields(task),
        local=bench.is_local and not is_replay,
        server=server,
        problem="" if has_qrels else _NO_QRELS,
    )


def _describe_topic(topic: Topic) -> BenchTopic:
    """Return a topic to choose."""
    return BenchTopic(id=topic.id, title=topic.title, half=find_half(topic.title))


def _describe_choice(name: str, entry: CatalogEntry) -> PromptChoice:
    """Return a prompt to choose; one that cannot be loaded has the name of its file."""
    if entry.loaded is None:
        return PromptChoice(name, label=entry.path.name)
    _, prompt = entry.loaded
    # A label is `TASK/NAME`.
    _, _, label = prompt.label.partition("/")
    return PromptChoice(name, label)


def list_candidates(benches: Benches, *, run: str, topic: str, query: str = "") -> CandidateList:
    """Return the first candidates of a topic that have all words of a query."""
    bench = benches.get(run)
    shown_topic = bench.find_topic(topic)
    qrels = benches.lab.read_visible_qrels(run, [shown_topic], bench.config)
    words = query.casefold().split()

    entries: list[CandidateEntry] = []
    for document in _read_candidates(bench, shown_topic):
        if len(entries) == _MAX_CANDIDATES:
            break
        if _has_words(document, words):
            entry = CandidateEntry(
                id=document.id,
                title=document.title,
                text=make_snippet(document),
                judged=bool(get_assessments(qrels, topic, document.id)),
            )
            entries.append(entry)
    return CandidateList(entries)


def _read_candidates(bench: Bench, topic: Topic) -> Iterator[Document]:
    """Yield the candidates of a topic, best first, without those that the corpus lacks."""
    corpus = bench.context.corpus.documents
    document_ids = [candidate.document_id for candidate in bench.rank(topic)]
    unknown = set(corpus.find_unknown(document_ids))
    for document_id in document_ids:
        if document_id not in unknown:
            yield corpus.get(document_id)


def _has_words(document: Document, words: Sequence[str]) -> bool:
    """Return whether a document has all words, in lower case."""
    text = f"{document.id} {document.title} {document.text}".casefold()
    return all(word in text for word in words)


async def check_draft(benches: Benches, *, run: str, name: str, text: str) -> DraftCheck:
    """Return the problems of a draft, its tokens, and its changes.

    Args:
        benches: Benches.
        run: Name of the run.
        name: Name of the prompt.
        text: Text of the draft.
    """
    bench = await benches.lab.call_in_thread(benches.get, run)
    template = await benches.lab.call_in_thread(describe_template, bench, name)
    try:
        problems = await run_in_thread(_find_problems, bench, name, text)
    except (PromptError, UsageError) as error:
        problems = _DraftProblems([_make_finding("error", str(error), text)], tokens=None)
    return DraftCheck(
        findings=problems.findings,
        tokens=problems.tokens,
        diff=_format_changes(template.text, text),
        disk=template.hash,
    )


@dataclass(frozen=True, slots=True)
class _DraftProblems:
    """Problems of a draft.

    Attributes:
        findings: The problems.
        tokens: Estimated tokens that all requests share; None for an invalid draft.
    """

    findings: list[DraftFinding]
    tokens: int | None


async def _find_problems(bench: Bench, name: str, text: str) -> _DraftProblems:
    """Return the problems of a draft that is a valid prompt, also those of its few-shot examples.

    Args:
        bench: Bench of the run.
        name: Name of the prompt.
        text: Text of the draft.

    Raises:
        PromptError: The draft is no valid prompt.
        UsageError: The draft cannot be rendered for a topic.
    """
    prompt = bench.load(name, text)
    example_problems = _list_example_problems(bench, prompt)
    topics = list(bench.topics.values())[:_CHECKED_TOPICS]
    checked = await check(bench.context.task, bench.purpose, prompt, topics)
    # `shared` is a number of characters.
    shared_tokens = round(checked.shared / TOKEN_CHARS)

    findings = [_make_finding(finding.level, finding.message, text) for finding in checked.findings]
    for problem in example_problems:
        findings.append(_make_finding("warning", problem, text))
    return _DraftProblems(findings, tokens=shared_tokens)


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
    """Return the line that a message is about; None if it names none.

    That is the line with the number in the message, or the first with words that it quotes.
    """
    number = _LINE.search(message)
    if number is not None:
        return int(number[1])

    for quoted in _QUOTED.findall(message):
        if quoted in text:
            before, _, _ = text.partition(quoted)
            return before.count("\n") + 1
    return None


async def render_draft(
    benches: Benches, *, run: str, name: str, text: str, topic: str, document: str
) -> RenderedPrompt | DraftProblem:
    """Return the messages that would be sent about a document, or why they cannot be rendered.

    Args:
        benches: Benches.
        run: Name of the run.
        name: Name of the prompt.
        text: Text of the draft.
        topic: Id of the topic.
        document: Id of the document.
    """
    bench = await benches.lab.call_in_thread(benches.get, run)
    try:
        prompt = bench.load(name, text)
        return await run_in_thread(_render, bench, prompt, bench.find_topic(topic), document)
    except (PromptError, UsageError) as error:
        return DraftProblem(str(error))


async def _render(bench: Bench, prompt: Prompt, topic: Topic, document: str) -> RenderedPrompt:
    """Return the messages that would be sent about a document; nothing is sent.

    Each message is split into parts. A part is text that is the same in a set of requests: in all
    requests of the prompt, in those about a topic, or in this one alone.
    """
    async with open_offline(bench.config) as requesters:
        subject = await make_subject(
            bench.context,
            topic,
            bench.purpose,
            (document,),
            requesters.known,
        )
        trials = await ask_for_parts(prompt, subject, requesters.dry)

    messages: list[RenderedMessage] = []
    for trial, parts in trials:
        for message_index, message in enumerate(trial.messages):
            parts_of_message = [part for part in parts if part.message == message_index]
            messages.append(RenderedMessage(message.role, parts_of_message))
    return RenderedPrompt(messages)


async def answer_documents(
    benches: Benches, *, run: str, name: str, text: str, topic: str, documents: list[str]
) -> AsyncIterator[DraftAnswer | AnswersDone]:
    """Yield the answers of a draft about pinned documents as they come, then their counts.

    When the page goes away, pending requests are cancelled.

    Args:
        benches: Benches.
        run: Name of the run.
        name: Name of the prompt.
        text: Text of the draft.
        topic: Id of the topic.
        documents: Ids of the pinned documents.

    Raises:
        PromptError: The draft is invalid.
        UsageError: Too many documents are pinned, or none.
        EngineError: The server cannot be used.
    """
    if not 1 <= len(documents) <= MAX_PINNED:
        raise UsageError(f"documents: {len(documents)} pinned; pin 1 to {MAX_PINNED}")
    started = time.monotonic()
    lab = benches.lab
    bench = await lab.call_in_thread(benches.get, run)
    draft = _TriedDraft(bench, bench.load(name, text), bench.find_topic(topic), documents)
    qrels = await _log_and_read_judgments(lab, draft)

    answers: list[DraftAnswer] = []
    try:
        async for answer in _answer_each(draft):
            assessed = _add_assessments(answer, draft, qrels)
            answers.append(assessed)
            yield replace(assessed, hidden=lab.is_hidden(run, draft.topic))
        _check_replies(answers)
    except EngineError:
        # Closed, so that the next request connects to the server again, which may be another one.
        await bench.close_model()
        raise
    yield _summarize(answers, time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class _TriedDraft:
    """Draft that is tried on pinned documents of a topic.

    Attributes:
        bench: Bench of the run.
        prompt: The draft.
        topic: Topic of the documents.
        documents: Ids of the documents.
    """

    bench: Bench
    prompt: Prompt
    topic: Topic
    documents: Sequence[str]


async def _log_and_read_judgments(lab: Workplace, draft: _TriedDraft) -> Qrels | None:
    """Return the judgments to show beside the answers of a draft; None without qrels.

    The access to them is logged before they are returned.
    """
    config = draft.bench.config
    qrels = await lab.call_in_thread(lab.read_visible_qrels, draft.bench.run, [draft.topic], config)
    if qrels is not None:
        await asyncio.to_thread(
            record_trial,
            cache=config.cache.file,
            topic=draft.topic,
            documents=draft.documents,
            qrels=qrels,
            prompt=draft.prompt.label,
            warn=lab.warn,
        )
    return qrels


def _check_replies(answers: Sequence[DraftAnswer]) -> None:
    """Raise EngineError if the server replied to none of the requests."""
    failures = [answer.failure for answer in answers if answer.failure is not None]
    without_reply = [failure for failure in failures if failure.kind in _KINDS_WITHOUT_REPLY]
    if without_reply and len(without_reply) == len(answers):
        raise EngineError(f"the server does not answer: {without_reply[0].reason}")


def _summarize(answers: Sequence[DraftAnswer], seconds: float) -> AnswersDone:
    """Return the counts of the answers about pinned documents.

    Args:
        answers: Answers about all of them.
        seconds: Time that the answers took.
    """
    failures = [answer.failure for answer in answers if answer.failure is not None]
    is_replay = any(failure.kind == "replay" for failure in failures)
    return AnswersDone(
        done=True,
        requests=sum(answer.sent for answer in answers),
        seconds=seconds,
        state="replay" if is_replay else "ok",
    )


async def _answer_each(draft: _TriedDraft) -> AsyncIterator[DraftAnswer]:
    """Yield the answer about each pinned document, in the order in which answers arrive.

    Closing the generator cancels the requests that have no answer yet.
    """
    bench = draft.bench
    requester = await bench.open_model()
    subject = await concurrency.run_async(
        make_subject(bench.context, draft.topic, bench.purpose, tuple(draft.documents), requester)
    )

    tasks = [
        asyncio.create_task(_answer_one(draft.prompt, subject, document, requester))
        for document in draft.documents
    ]
    try:
        for task in asyncio.as_completed(tasks):
            yield await task
    finally:
        # Has no effect on tasks that are done.
        for task in tasks:
            task.cancel()


async def _answer_one(
    prompt: Prompt, subject: Subject, document: str, requester: Requester
) -> DraftAnswer:
    """Return the answer about one of several documents.

    Args:
        prompt: Prompt to answer.
        subject: Topic and documents.
        document: Id of the document.
        requester: Requester of the model.
    """
    subject_of_document = replace(subject, ids=(document,))
    try:
        trials = await concurrency.run_async(ask(prompt, subject_of_document, requester))
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
    return DraftAnswer(document=document, cached=False, sent=0, fields={}, failure=failure)


def _describe_trials(document: str, trials: Sequence[Trial]) -> DraftAnswer:
    """Return the answer about a document, combined from the requests of all parts of the prompt.

    Texts of the parts are joined, and tokens are summed. Fields are read only if no part failed.

    Args:
        document: Id of the document.
        trials: Request of each part, with its answer.
    """
    exchanges = [describe_exchange(trial) for trial in trials]
    thoughts = [exchange.thought for exchange in exchanges if exchange.thought]
    results = [trial.result for trial in trials]
    usable_answers = [result.answer for result in results if isinstance(result, AnsweredRequest)]

    failure = _find_failure(trials)
    fields: dict[str, FieldReading] = {}
    if failure is None:
        fields = _read_trials(trials)
    return DraftAnswer(
        document=document,
        cached=all(trial.is_cached for trial in trials),
        sent=sum(not trial.is_cached for trial in trials),
        fields=fields,
        answer="\n".join(exchange.answer for exchange in exchanges),
        thought="\n\n".join(thoughts),
        truncated=_describe_first_cut(trials),
        prompt_tokens=sum(answer.prompt_tokens for answer in usable_answers),
        completion_tokens=sum(answer.completion_tokens for answer in usable_answers),
        failure=failure,
    )


def _describe_first_cut(trials: Iterable[Trial]) -> str:
    """Return a sentence on how much of the document the model saw; empty if all."""
    for trial in trials:
        for cut in trial.cut.values():
            return describe_cut(cut)
    return ""


def _find_failure(trials: Iterable[Trial]) -> FailedAttempt | None:
    """Return the last attempt of the first request that failed; None if all have an answer."""
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


def _add_assessments(answer: DraftAnswer, draft: _TriedDraft, qrels: Qrels | None) -> DraftAnswer:
    """Return an answer with the assessors' judgments and the fields that differ from them."""
    grades: dict[str, float] = {}
    stance = ""
    for name, field_reading in answer.fields.items():
        # Fields with a number are the grades, and the stance is the one with a text that is
        # compared.
        if isinstance(field_reading.value, float | int):
            grades[name] = field_reading.value
        elif name == STANCE:
            stance = field_reading.value

    assessments = get_assessments(qrels, draft.topic.id, answer.document)
    differing_fields = find_differences(grades, stance, assessments, draft.bench.context.task)
    return replace(answer, assessors=assessments, differs=differing_fields or [])
