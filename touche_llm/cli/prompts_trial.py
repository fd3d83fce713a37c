"""The commands that copy a prompt, render it, and try it: send its requests now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from touche_llm.api.opening import open_client
from touche_llm.cli import options as s
from touche_llm.cli import shared_options as o
from touche_llm.cli.failures import FAILURES_EXIT
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import Column, Format, FormatOption, emit, print_rows, say, show_lines
from touche_llm.cli.requests import run_requests
from touche_llm.config.origins import LoadedConfig
from touche_llm.data.records import Cut, Topic
from touche_llm.errors import UsageError, to_printable
from touche_llm.evaluation.qrels import STANCE, Qrels, read_qrels
from touche_llm.interrupts import run_until_interrupted
from touche_llm.judging.requests import Requester, make_requester
from touche_llm.llm.answer_schema import AnswerModel
from touche_llm.llm.model import AnsweredRequest
from touche_llm.llm.protocol import EngineInfo
from touche_llm.prompt_lab.holdout import record_trial
from touche_llm.prompt_lab.trial import Subject, Trial, ask, make_subject, open_offline
from touche_llm.prompts.leakage import check_examples
from touche_llm.prompts.prompt import Prompt, Purpose, copy_prompt
from touche_llm.prompts.purposes import LABELS, load_named
from touche_llm.runs.context import RunContext
from touche_llm.tasks import DEFAULT_TASK, get_task

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help="A prompt's name, or a .jinja file.")
]
TopicOption = Annotated[
    str, typer.Option("--topic", metavar="ID", help="Topic.", rich_help_panel="Input")
]
DocumentsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--doc",
        metavar="ID",
        rich_help_panel="Input",
        help="Document; repeatable; prompts about a topic alone take none.",
    ),
]
_MESSAGES = ("prompt", "topic", "documents", "message", "role", "text")
# Settings of commands that render or send one prompt.
_OF_TRIAL = (
    *s.INPUTS,
    *("skip_bad_lines", "prompts.folder", "prompts.objects", "judge_per"),
    *("objective", "engine", "sampling", "cache"),
)
# Path of an index that is never opened, for prompts without documents.
_NO_INDEX = Path(".touche-llm/index/none")


def _load(
    given: s.GivenSettings,
    topic: str,
    documents: list[str] | None,
    file: Path | None,
    assigned: list[str] | None,
) -> LoadedConfig:
    """Load the configuration of a command about a topic.

    Args:
        given: Settings of the command line, which are changed.
        topic: Id of the topic.
        documents: Ids of the documents; without any no corpus is needed.
        file: Configuration file, which may name a corpus.
        assigned: Values of `--set`.
    """
    given["topic"] = (topic,)
    names_corpus = file is not None or "corpus" in given or "index" in given
    if not documents and not names_corpus:
        given["index"] = _NO_INDEX
    return s.load_settings("prompts", given, file, assigned)


@s.takes_settings(
    *_OF_TRIAL, without=(*s.DELIVERY, "sampling", "cache.mode", "cache.retry_failures")
)
def render(
    given: s.GivenSettings,
    name: NameArgument,
    topic: TopicOption,
    documents: DocumentsOption = None,
    config_file: s.ConfigOption = None,
    assigned: s.SetOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Print the messages that would be sent about a topic and documents. Nothing is sent.

    Documents are truncated if the context is known, from --context or the cache: as the engine
    measured them if the cache holds the counts, otherwise by an estimate.
    """
    loaded = _load(given, topic, documents, config_file, assigned)
    config = loaded.config
    with loaded.origins.locate_errors(), RunContext(config, CommandProgress()) as run:
        purpose, prompt = load_named(run.task, name, config.prompts.folder, config.judge_per)
        rendered = run_until_interrupted(_render(run, purpose, prompt, documents))
        trials = rendered.trials

        is_context_known = rendered.engine_info.engine or config.engine.context
        if documents and not is_context_known:
            run.progress.warn(
                "the context is unknown (`engine.context`, or a cache with answers): nothing is truncated"
            )
        for trial in trials:
            for document_id, cut in trial.cut.items():
                run.progress.warn(f"document {_describe_cut(document_id, cut)}")

    if output is Format.TABLE:
        _show_messages(prompt, topic, trials)
    else:
        print_rows(output, _make_message_rows(prompt, topic, trials), _MESSAGES)


def _show_messages(prompt: Prompt, topic: str, trials: list[Trial]) -> None:
    """Print the messages of requests for people."""
    for trial in trials:
        heading = f"{prompt.label}, topic {topic}"
        if trial.ids:
            heading += f", {' '.join(trial.ids)}"
        print(to_printable(f"{heading}\n"))
        for message in trial.messages:
            print(to_printable(f"── {message.role} ──\n{message.content.expandtabs()}\n"))


def _make_message_rows(prompt: Prompt, topic: str, trials: list[Trial]) -> list[dict[str, Any]]:
    """Return a row for each message of requests, for other programs."""
    rows: list[dict[str, Any]] = []
    for trial in trials:
        for number, message in enumerate(trial.messages):
            row = {
                "prompt": prompt.label,
                "topic": topic,
                "documents": " ".join(trial.ids) or None,
                "message": number,
                "role": message.role,
                "text": message.content,
            }
            rows.append(row)
    return rows


@dataclass(frozen=True, slots=True)
class _RenderedPrompt:
    """Requests of a prompt that were not sent, and the description of the engine they are for."""

    trials: list[Trial]
    engine_info: EngineInfo


async def _render(
    run: RunContext, purpose: Purpose, prompt: Prompt, documents: list[str] | None
) -> _RenderedPrompt:
    """Make the requests of a prompt about the topic and the documents; nothing is sent."""
    async with open_offline(run.config) as builders:
        subject = await _make_subject(run, purpose, documents, builders.known)
        trials = await ask(prompt, subject, builders.dry)
        return _RenderedPrompt(trials=trials, engine_info=builders.dry.client.engine_info)


async def _make_subject(
    run: RunContext, purpose: Purpose, documents: list[str] | None, requester: Requester
) -> Subject:
    """Return the topic and the documents that a prompt is about.

    Args:
        run: Run with the topic alone.
        purpose: Purpose of the prompt.
        documents: Ids of the documents.
        requester: Finds the objects of the topic if it names none and the prompt needs them.
    """
    (topic,) = run.topics
    return await make_subject(run, topic, purpose, tuple(documents or ()), requester)


def _describe_cut(document_id: str, cut: Cut) -> str:
    """Describe how much of a document the model sees."""
    pieces = f" in {len(cut.parts)} pieces" if cut.parts else ""
    return f"{document_id} is truncated: {cut.kept_chars:,} of {cut.of_chars:,} characters{pieces}"


@s.takes_settings("task", "prompts.folder")
def copy(
    given: s.GivenSettings,
    name: NameArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The template to write (default: NAME.jinja, here)."),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write a prompt as a file of your own to change, with the files that it includes and its examples.

    No file is overwritten; the same command completes a copy that was interrupted.
    """
    task = get_task(given.get("task", DEFAULT_TASK))
    _, prompt = load_named(task, name, given.get("prompts.folder"))
    copy_file = file or Path(prompt.path.name)
    if copy_file.suffix != ".jinja":
        raise UsageError(f"{copy_file}: not the name of a template; end it in .jinja")

    written = copy_prompt(prompt, copy_file)
    if output is Format.TABLE:
        show_lines(f"wrote {path}" for path in written)
    else:
        print_rows(output, [{"prompt": prompt.label, "file": path} for path in written])
    version = prompt.header.version
    say(
        output,
        f"next: change a sentence of {copy_file} and raise its version, {version} to {version + 1}; then",
    )
    say(output, f"    touche-llm prompts check {copy_file} --task {task.reference}")


_ANSWERS = (
    *("prompt", "topic", "documents", "field", "value", "people", "probabilities", "outside"),
    *("answer", "thought", "failure", "cached", "prompt_tokens", "completion_tokens"),
)
_SHOWN = (
    Column("documents", is_text=True),
    Column("field", is_text=True),
    Column("value", digits=2),
    Column("people", drop=1, digits=0),
    Column("cached", drop=3, is_text=True),
    Column("probabilities", drop=2, is_text=True, value=lambda row: _format_shares(row)),
)


@s.takes_settings(*_OF_TRIAL)
@o.takes_qrels
def try_(
    given: s.GivenSettings,
    qrels_files: o.QrelsFiles,
    name: NameArgument,
    topic: TopicOption,
    documents: DocumentsOption = None,
    config_file: s.ConfigOption = None,
    assigned: s.SetOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Send the requests of a run for a topic now, and show grades, probabilities and human judgments.

    Answers are read from the cache and stored there, as in a run. Exit code 3 if one is unusable.
    """
    loaded = _load(given, topic, documents, config_file, assigned)
    config = loaded.config
    qrels = read_qrels(qrels_files, config.task) if qrels_files else None
    with loaded.origins.locate_errors(), RunContext(config, CommandProgress()) as run:
        # Errors of the files are raised before the engine starts.
        purpose, prompt = load_named(run.task, name, config.prompts.folder, config.judge_per)
        check_examples(prompt, run.topics, config.topics, run.progress.warn)
        if not documents and purpose.question is not None:
            raise UsageError(
                f"--doc: missing, since the prompt for {purpose.name} is about documents"
            )
        subject, trials = run_requests(config, _send(run, purpose, prompt, documents))
        if qrels is not None:
            # Human judgments are about to be shown, which counts as an access to the topic.
            record_trial(
                config.cache.file,
                subject.topic,
                _list_single_documents(trials),
                qrels,
                prompt.label,
                run.progress.warn,
            )

    emit(
        output,
        rows=_make_rows(prompt, subject, trials, qrels),
        columns=_SHOWN,
        names=_ANSWERS,
        title=_make_title(prompt, subject.topic),
    )
    if output is Format.TABLE:
        for trial in trials:
            show_lines(_list_lines(trial))
    if not all(isinstance(trial.result, AnsweredRequest) for trial in trials):
        raise typer.Exit(FAILURES_EXIT)


def _list_single_documents(trials: list[Trial]) -> list[str]:
    """Return the documents that a request is about alone, each once."""
    ids = [trial.ids[0] for trial in trials if len(trial.ids) == 1]
    return list(dict.fromkeys(ids))


def _make_title(prompt: Prompt, topic: Topic) -> str:
    """Return the title of the table of a prompt's answers about a topic."""
    title = f"{prompt.label}, topic {topic.id}: {topic.title}"
    if topic.objects:
        title += f" ({' or '.join(topic.objects)})"
    return title


async def _send(
    run: RunContext, purpose: Purpose, prompt: Prompt, documents: list[str] | None
) -> tuple[Subject, list[Trial]]:
    """Send the requests of a prompt, and return what it is about, and the answers."""
    config = run.config
    opening = open_client(config.engine, config.sampling, config.cache, progress=run.progress)
    async with opening as model:
        requester = make_requester(model)
        subject = await _make_subject(run, purpose, documents, requester)
        return subject, await ask(prompt, subject, requester)


def _list_lines(trial: Trial) -> Iterator[str]:
    """Yield what the table has no room for: truncation, thoughts, and answers as they were written."""
    yield f"{_name_documents(trial)}:"
    for document_id, cut in trial.cut.items():
        yield f"  {_describe_cut(document_id, cut)}"

    if isinstance(trial.result, AnsweredRequest):
        yield from _list_answer_lines(trial, trial.result)
    else:
        yield from _list_failure_lines(trial)


def _name_documents(trial: Trial) -> str:
    """Name the documents of a request, with their labels if there are several."""
    if not trial.ids:
        return "the topic"
    if len(trial.ids) == 1:
        return trial.ids[0]

    # There are more labels than documents.
    pairs = zip(LABELS, trial.ids, strict=False)
    return ", ".join(f"{label}: {document_id}" for label, document_id in pairs)


def _list_answer_lines(trial: Trial, result: AnsweredRequest[AnswerModel]) -> Iterator[str]:
    """Yield the thought and the answer, and the stance if it is not the one that was written."""
    if result.thought_key:
        yield f"  thought: {result.thought}"
    yield f"  answer: {result.answer.text}"

    stance = trial.readings.get(STANCE)
    if stance is not None and trial.values[STANCE] != stance.answered:
        reason = f"by the probabilities of all labels, not {stance.answered} as written"
        yield f"  stance: {trial.values[STANCE]} {reason}: docs/explanation/stance.md"


def _list_failure_lines(trial: Trial) -> Iterator[str]:
    """Yield why each attempt has no usable answer, and the text that came back."""
    for attempt in trial.attempts:
        yield f"  no usable answer ({attempt.kind}): {attempt.reason}"
        if attempt.text:
            yield f"    came back: {attempt.text}"


def _format_shares(row: Mapping[str, Any]) -> str:
    """Format the probabilities of the labels, highest first; empty without any."""
    shares: dict[str, float] = orjson.loads(row["probabilities"] or "{}")
    by_share = sorted(shares.items(), key=lambda item: item[1], reverse=True)
    return "  ".join(f"{label} {share:.2f}" for label, share in by_share)


def _find_human_judgment(
    trial: Trial, topic_id: str, field: str, qrels: Qrels | None
) -> float | str | None:
    """Return the human judgment of a field of one document; None if there is none."""
    if qrels is None or len(trial.ids) != 1:
        return None

    judged: Mapping[str, Mapping[str, float | str]]
    if field == STANCE:
        judged = qrels.stances
    else:
        judged = qrels.grades.get(field, {})
    return judged.get(topic_id, {}).get(trial.ids[0])


def _make_rows(
    prompt: Prompt, subject: Subject, trials: list[Trial], qrels: Qrels | None
) -> list[dict[str, Any]]:
    """Return a row for each field of an answer, and one for each failed request."""
    rows: list[dict[str, Any]] = []
    for trial in trials:
        row: dict[str, Any] = dict.fromkeys(_ANSWERS)
        row["prompt"] = prompt.label
        row["topic"] = subject.topic.id
        row["documents"] = " ".join(trial.ids) or None
        row["cached"] = trial.is_cached

        if isinstance(trial.result, AnsweredRequest):
            rows += _make_field_rows(row, trial, trial.result, subject.topic.id, qrels)
        else:
            last_attempt = trial.attempts[-1]
            row["failure"] = last_attempt.kind
            row["answer"] = last_attempt.text
            rows.append(row)
    return rows


def _make_field_rows(
    row: Mapping[str, Any],
    trial: Trial,
    result: AnsweredRequest[AnswerModel],
    topic_id: str,
    qrels: Qrels | None,
) -> list[dict[str, Any]]:
    """Return a row for each field of an answer.

    Args:
        row: What the rows of the request share.
        trial: Request with its values and readings.
        result: Its answer.
        topic_id: Topic of the request.
        qrels: Human judgments, if given.
    """
    rows: list[dict[str, Any]] = []
    for field, value in trial.values.items():
        field_row = {
            **row,
            "answer": result.answer.text,
            "thought": result.thought or None,
            "prompt_tokens": result.answer.prompt_tokens,
            "completion_tokens": result.answer.completion_tokens,
            "field": field,
            "value": value,
            "people": _find_human_judgment(trial, topic_id, field, qrels),
        }
        reading = trial.readings.get(field)
        if reading is not None:
            field_row["outside"] = reading.off_label_mass
            if reading.probabilities is not None:
                field_row["probabilities"] = orjson.dumps(reading.probabilities).decode()
        rows.append(field_row)
    return rows
