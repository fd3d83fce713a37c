"""The command that tries a prompt: it sends requests now, and again when the prompt's files are saved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.cells import cell_len

from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.emit import Format, FormatOption, get_width, print_rows, show_lines
from touche_llm.cli.prompts_render import (
    NO_INDEX,
    OF_TRIAL,
    DocumentsOption,
    NameArgument,
    TopicOption,
    complete,
    describe_cut,
    print_messages,
)
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.cli.stages import FAILURES_EXIT, run_requests
from touche_llm.config import Config
from touche_llm.data.records import Reading
from touche_llm.errors import DataError, EngineError, PromptError, ReplayMiss, UsageError
from touche_llm.evaluation.qrels import STANCE, Qrels, read_qrels
from touche_llm.llm.logprobs import get_most_probable
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.pipeline.context import RunContext, check_examples
from touche_llm.pipeline.engines import make_request_builder, open_model
from touche_llm.prompt_lab.holdout import record_trial
from touche_llm.prompt_lab.trial import Subject, Trial, TrialContext, ask, find_best_documents
from touche_llm.prompts.prompt import Prompt, Purpose
from touche_llm.prompts.purposes import LABELS, find_prompt, list_files

_SECONDS = 0.3

# Modification time, size and inode by file; None if the file is missing.
_State = dict[Path, tuple[int, int, int] | None]


def watch_files(template: Path, seconds: float = _SECONDS) -> AsyncIterator[None]:
    """Return an endless iterator that yields after each change to a prompt's files from now on.

    The files are polled because they are few and network file systems do not report changes.
    """
    return _poll(template, _state(template), seconds)


async def _poll(template: Path, before: _State, seconds: float) -> AsyncIterator[None]:
    now = before
    while True:
        last, now = now, _state(template)
        # Some editors truncate a file before they write it.
        if now != before and now == last:
            before = now
            yield
        else:
            await asyncio.sleep(seconds)


def _state(template: Path) -> _State:
    found: _State = {}
    for path in list_files(template):
        try:
            status = path.stat()
        except OSError:
            found[path] = None
        else:
            found[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found


# Width of the bar of probability 1.
_BAR_CELLS = 8
_EIGHTHS = " ▏▎▍▌▋▊▉"
# Only the most probable labels are shown.
_MAX_LABELS = 6
_COLUMNS = (
    *("prompt", "topic", "documents", "field", "value", "people", "probabilities", "outside"),
    *("answer", "thought", "failure", "cached", "prompt_tokens", "completion_tokens"),
)


@s.configured(*OF_TRIAL, complete=complete)
@o.takes_qrels
def try_(
    config: Config,
    qrels_files: o.QrelsFiles,
    name: NameArgument,
    topic: TopicOption,
    documents: DocumentsOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Send again whenever the template, or a file that it includes, is saved.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the messages as well.")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Send the requests of a run for a topic now, and show grades, probabilities and human judgments.

    Answers are read from the cache and stored there, as in a run. Exit code 3 if one is unusable.
    """
    if watch and output is not Format.TABLE:
        raise UsageError("--watch: prints for people only; leave --format out")
    qrels = read_qrels(qrels_files, config.task) if qrels_files else None
    with RunContext(config, CommandProgress()) as run:
        trial = TrialContext(run, name, tuple(documents or ()))
        if watch:
            try:
                asyncio.run(_watch(trial, qrels, verbose, changes(trial)))
            except KeyboardInterrupt:
                print("\nstopped watching")
            return
        purpose, _ = _load_prompt(trial)  # raise errors of the files before the engine starts
        if not documents and purpose.question is not None:
            how = _suggest_documents(run, purpose)
            raise UsageError(f"--doc: missing, since the prompt for {purpose.name} is about documents; {how}")
        tried = run_requests(config, _send_once(trial))
        _record(run, *tried, qrels)
    if output is Format.TABLE:
        _show(*tried, qrels, verbose)
    else:
        print_rows(output, _rows(*tried, qrels), _COLUMNS)
    if not all(isinstance(trial.result, AnsweredRequest) for trial in tried[2]):
        raise typer.Exit(FAILURES_EXIT)


def _suggest_documents(run: RunContext, purpose: Purpose) -> str:
    """Return how to name documents: the best ones of the topic, if the corpus is known."""
    if run.config.index == NO_INDEX:
        return "name one or more (--doc ID), and give --corpus, which also lists the best ones of the topic"
    try:
        ids = asyncio.run(find_best_documents(run))
    except DataError as error:
        return f"name one or more (--doc ID); none can be suggested: {error}"
    what = "documents"
    if run.config.sentences is not None and purpose.name != "sentence":
        what = f"sentences (two make a pair, as --doc {','.join(ids[:2])})"
    return f"name one or more (--doc ID); the topic's best {what} by the first stage: {', '.join(ids)}"


def changes(context: TrialContext) -> AsyncIterator[None]:
    """Return an iterator with a step whenever files of the prompt have been saved."""
    return watch_files(find_prompt(context.run.task, context.name, context.run.config.prompts.folder).path)


def _load_prompt(context: TrialContext) -> tuple[Purpose, Prompt]:
    """Load the prompt; warn if its examples give the answer away."""
    purpose, prompt = context.load()
    check_examples(prompt, context.run.topics, context.run.config.topics, context.run.progress.warn)
    return purpose, prompt


_Tried = tuple[Prompt, Subject, list[Trial]]


async def _send(context: TrialContext, purpose: Purpose, prompt: Prompt, model: ModelClient) -> _Tried:
    config = context.run.config
    builder = make_request_builder(model, config.engine, config.sampling)
    subject = await context.subject(purpose, builder)
    document_tokens = config.ranking.document_tokens
    trials = await ask(prompt, subject, builder, objective=config.objective, document_tokens=document_tokens)
    return prompt, subject, trials


async def _send_once(context: TrialContext) -> _Tried:
    config = context.run.config
    async with open_model(config.engine, config.sampling, config.cache, progress=context.run.progress) as model:
        return await _send(context, *_load_prompt(context), model)


def _record(run: RunContext, prompt: Prompt, subject: Subject, trials: list[Trial], qrels: Qrels | None) -> None:
    """Log the human judgments that are about to be shown as an access to the topic."""
    if qrels is not None:
        # Human judgments are of one document.
        documents = [trial.ids[0] for trial in trials if len(trial.ids) == 1]
        record_trial(run.config.cache.file, subject.topic, documents, qrels, prompt.label, run.progress.warn)


async def _watch(context: TrialContext, qrels: Qrels | None, verbose: bool, saved: AsyncIterator[None]) -> None:
    """Send the requests, now and after each change; errors are printed."""
    config = context.run.config
    before: _Tried | None = None
    async with open_model(config.engine, config.sampling, config.cache, progress=context.run.progress) as model:
        while True:
            try:
                purpose, prompt = _load_prompt(context)
                if before is not None and prompt.hash == before[0].hash:
                    print("saved, with the same text")
                else:
                    tried = await _send(context, purpose, prompt, model)
                    _record(context.run, *tried, qrels)
                    _show(*tried, qrels, verbose)
                    if before is not None:
                        show_lines(_describe_changes(before, tried), indent=4, keeps_indented=False)
                    before = tried
            except (PromptError, UsageError, DataError, ReplayMiss, EngineError) as error:
                show_lines(f"error: {error}".split("\n"))
            print("waiting for the template to be saved; Ctrl-C ends", flush=True)
            try:
                await anext(saved)
            except StopAsyncIteration:
                return
            print()


def _describe_changes(before: _Tried, after: _Tried) -> list[str]:
    """Describe the changes of the answers."""
    lines = [f"changes, {before[0].label} → {after[0].label}:"]
    known = {trial.ids: trial.values for trial in before[2]}
    for trial in after[2]:
        old = known.get(trial.ids, {})
        pairs = {name: (_value(old.get(name)), _value(trial.values.get(name))) for name in (old | trial.values)}
        changed = [f"{name} {one} → {other}" for name, (one, other) in pairs.items() if one != other]
        lines.append(f"  {_about(trial)}: {', '.join(changed) or 'none'}")
    return lines


def _show(prompt: Prompt, subject: Subject, trials: list[Trial], qrels: Qrels | None, verbose: bool) -> None:
    topic = subject.topic
    objects = f" ({topic.objects[0]} or {topic.objects[1]})" if topic.objects else ""
    show_lines([f"{prompt.label}, topic {topic.id}: {topic.title}{objects}"])
    for trial in trials:
        print()
        if verbose:
            print_messages((message.role, message.content) for message in trial.messages)
        lines = (line for text in _describe_trial(trial, topic.id, qrels) for line in text.split("\n"))
        show_lines(lines, indent=4, keeps_indented=False)


def _describe_trial(trial: Trial, topic_id: str, qrels: Qrels | None) -> list[str]:
    """Describe one answer."""
    lines = [_about(trial)]
    lines += [f"  {document_id} is truncated: {describe_cut(cut)}" for document_id, cut in trial.cut.items()]
    if not isinstance(trial.result, AnsweredRequest):
        for attempt in trial.result.attempts:
            lines.append(f"  no usable answer ({attempt.kind}): {attempt.reason}")
            lines += [f"    came back: {attempt.text}"] if attempt.text else []
        return lines
    width = max(len(name) for name in trial.values)
    for name, value in trial.values.items():
        reading = trial.readings.get(name)
        parts = [f"  {name:<{width}}  {_value(value)}"]
        people = _find_human_judgment(trial, topic_id, name, qrels)
        if qrels is not None and (name in qrels.grades or (name == STANCE and qrels.stances)):
            parts.append(f"people: {'not judged' if people is None else _value(people, 0)}")
        bars = [] if reading is None else _format_bars(reading) or ["no probabilities"]
        lines += _join_bars("   ".join(parts), bars, width + 4)
    answer = trial.result.answer
    outside = [reading.off_label_mass for reading in trial.readings.values() if reading.off_label_mass is not None]
    facts = [f"outside of the labels: {max(outside):.2%} at most"] if outside else []
    stance = trial.readings.get(STANCE)
    if stance is not None and get_most_probable(stance) != str(stance.answered):
        facts.append(f"the probabilities decide for {get_most_probable(stance)}, not {stance.answered} as written")
    facts.append(f"tokens: {answer.prompt_tokens:,} + {answer.completion_tokens:,}")
    facts.append("from the cache" if trial.cached else "asked now")
    if trial.result.sample:
        facts.append(f"try {trial.result.sample + 1}: those before gave no usable answer")
    thoughts = [f"  thought: {thought}" for thought in _list_thoughts(trial.result)]
    return [*lines, *thoughts, f"  answer: {answer.text}", f"  {'; '.join(facts)}"]


def _join_bars(start: str, bars: Iterable[str], indent: int) -> list[str]:
    """Return a line with bars after its start; those that the terminal has no room for go to indented lines below."""
    lines, gap, width = [start], "   ", get_width()
    for bar in bars:
        if width is not None and cell_len(lines[-1] + gap + bar) > width:
            lines.append(" " * indent + bar)
        else:
            lines[-1] += gap + bar
        gap = "  "
    return lines


def _format_bars(reading: Reading) -> list[str]:
    """Format each label with its probability as a bar; empty if there are no probabilities."""
    shares = list((reading.probabilities or {}).items())
    if len(shares) > _MAX_LABELS:
        shares = sorted(shares, key=lambda item: -item[1])[:_MAX_LABELS]
    return [f"{label} {_format_bar(share)} {share:.0%}" for label, share in shares]


def _format_bar(share: float) -> str:
    eighths = round(share * _BAR_CELLS * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "") or "▏"


def _find_human_judgment(trial: Trial, topic_id: str, name: str, qrels: Qrels | None) -> float | str | None:
    """Return the human judgment of an answer about one document."""
    if qrels is None or len(trial.ids) != 1:
        return None
    judged: Mapping[str, Mapping[str, Any]] = qrels.stances if name == STANCE else qrels.grades.get(name, {})
    found: float | str | None = judged.get(topic_id, {}).get(trial.ids[0])
    return found


def _rows(prompt: Prompt, subject: Subject, trials: list[Trial], qrels: Qrels | None) -> list[dict[str, Any]]:
    rows = []
    for trial in trials:
        row: dict[str, Any] = dict.fromkeys(_COLUMNS)
        row |= {"prompt": prompt.label, "topic": subject.topic.id, "documents": " ".join(trial.ids) or None}
        row["cached"] = trial.cached
        if not isinstance(trial.result, AnsweredRequest):
            last = trial.result.attempts[-1]
            rows.append(row | {"failure": last.kind, "answer": last.text, "cached": False})
            continue
        answer = trial.result.answer
        row |= {"answer": answer.text, "thought": "\n\n".join(_list_thoughts(trial.result)) or None}
        row |= {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens}
        for name, value in trial.values.items():
            people = _find_human_judgment(trial, subject.topic.id, name, qrels)
            of_field = {"field": name, "value": value, "people": people}
            if (reading := trial.readings.get(name)) is not None:
                shares = reading.probabilities
                of_field["probabilities"] = None if shares is None else orjson.dumps(shares).decode()
                of_field["outside"] = reading.off_label_mass
            rows.append(row | of_field)
    return rows


def _list_thoughts(result: AnsweredRequest[Any]) -> list[str]:
    return [chain.thought for chain in result.chains if chain.thought_key]


def _about(trial: Trial) -> str:
    if len(trial.ids) > 1:
        return ", ".join(f"{label}: {document_id}" for label, document_id in zip(LABELS, trial.ids, strict=False))
    return trial.ids[0] if trial.ids else "the topic"


def _value(value: float | str | None, digits: int = 2) -> str:
    if value is None:
        return "no answer"
    if isinstance(value, str):
        return value
    return f"{value:g}" if not digits else f"{value:.{digits}f}"
