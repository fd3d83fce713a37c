"""Commands about prompts: list, show, check, copy, render, try and compare them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli import prompts_compare, prompts_trial
from touche_llm.cli import setting_options as s
from touche_llm.cli.emit import (
    TEXT_WIDTH,
    Column,
    Format,
    FormatOption,
    emit,
    print_rows,
    require_cache,
    say,
    show_lines,
)
from touche_llm.cli.prompts_trial import NameArgument, TokenizerOption
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.corpus.ir_dataset import topics_file
from touche_llm.data.records import Topic
from touche_llm.data.topics import read_topics
from touche_llm.errors import UsageError, to_printable
from touche_llm.llm.answers import get_labels
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.settings import CacheConfig, SamplingConfig
from touche_llm.llm.tokenizers import ChatTokenizer
from touche_llm.pipeline.context import Dataset, check_examples
from touche_llm.prompt_lab.lint import CheckedPrompt, Finding, check, detect_changed_text
from touche_llm.prompt_lab.trial import Count, estimate
from touche_llm.prompts.prompt import Prompt, Purpose, examples_path
from touche_llm.prompts.purposes import CatalogEntry, find_prompt, find_prompts, load_named
from touche_llm.prompts.templates import read_text
from touche_llm.tasks import DEFAULT_TASK, TASK_HELP, TASKS, find_dataset_task, get_task

EveryTaskOption = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME|FOLDER", help=f"{TASK_HELP} (default: all).", rich_help_panel="Input"),
]
_NAMES = ("task", "name", "version", "hash", "answer", "fields", "purpose", "examples", "path", "error")
_LIST = (
    Column("prompt", is_text=True),
    Column("version", drop=1),
    Column("hash", drop=2, is_text=True),
    Column("answer", cut=TEXT_WIDTH, value=lambda row: _describe_answer(row)),
    Column("purpose", drop=3, cut=TEXT_WIDTH, value=lambda row: _describe_purpose(row)),
    Column("folder", drop=4, is_text=True),
)
_DEFAULT_CACHE = CacheConfig().file

prompts_app = typer.Typer(no_args_is_help=True, help="See, check, render and try prompts, and compare them.")


@prompts_app.command("list")
@s.takes_settings("prompts.folder")
def list_(
    given: s.GivenSettings,
    task: EveryTaskOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List the prompts of the tasks: the project's own, or those of a folder that replace them.

    Exit code 1 if one does not load.
    """
    folder = given.get("prompts.folder")
    tasks = TASKS.values() if task is None else [get_task(task)]
    found = [entry for task_ in tasks for entry in find_prompts(task_, folder)]
    _check_folder(folder, found)
    emit(output, [_make_row(entry) for entry in found], _LIST, _NAMES)
    invalid = [entry for entry in found if entry.error]
    for entry in invalid:
        say(output, f"error: {entry.error}")
    if invalid:
        raise typer.Exit(1)


@prompts_app.command("show")
@s.takes_settings("task", "prompts.folder")
def show_(given: s.GivenSettings, name: NameArgument, output: FormatOption = Format.TABLE) -> None:
    """Print a prompt's template and the files that it includes."""
    purpose, prompt = load_named(get_task(given.get("task", DEFAULT_TASK)), name, given.get("prompts.folder"))
    texts = {prompt.path: read_text(prompt.path)}
    texts |= {prompt.path.parent / part: text for part, text in prompt.files.texts.items()}
    if output is not Format.TABLE:
        rows = [{"prompt": prompt.label, "answer": purpose.name, "file": path, "text": texts[path]} for path in texts]
        print_rows(output, [row | {"examples": len(prompt.examples)} for row in rows])
        return
    header = prompt.header
    print(to_printable(f"{prompt.name}, version {header.version}, hash {prompt.hash}: {header.purpose}"))
    print(to_printable(f"answer: {purpose.name}: {describe_fields(purpose, prompt)}"))
    if prompt.examples:
        print(to_printable(f"{len(prompt.examples)} examples: {examples_path(prompt.path)}"))
    for path, text in texts.items():
        print(to_printable(f"\n── {path} ──\n{text.strip().expandtabs()}"))


@prompts_app.command("check")
@s.takes_settings("prompts.folder", "dataset", "topics")
def check_(
    given: s.GivenSettings,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME|FILE", help="Prompts: names or .jinja files (default: all)."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME",
            help=f"{TASK_HELP} (default: all; {DEFAULT_TASK} with names or topics).",
            rich_help_panel="Input",
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache",
            metavar="FILE",
            help=f"Answer cache to compare versions with (default: {_DEFAULT_CACHE} if it exists).",
            rich_help_panel="Model",
        ),
    ] = None,
    tokenizer: TokenizerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Check prompts without a model: whether they load, name all labels and share what they can with other requests.

    Documents are invented, and topics unless some are given. Exit code 1 if there are errors; warnings leave it at 0.
    """
    s.check_inputs(given)
    folder, dataset, topics = (given.get(name) for name in ("prompts.folder", "dataset", "topics"))
    if task is None and not (names or topics or dataset):
        tasks = list(TASKS.values())
    else:
        tasks = [get_task(task or (find_dataset_task(dataset) if dataset else DEFAULT_TASK))]
    if cache is not None:
        require_cache(cache)
    count = _make_counter(tokenizer)
    read = [] if topics is None else read_topics(topics)
    if dataset is not None:
        read, topics = Dataset(dataset, tasks[0].reference).topics, topics_file(dataset)
    warn = CommandProgress().warn
    if names:
        found = [find_prompt(tasks[0], name, folder) for name in names]
    else:
        found = [entry for task_ in tasks for entry in find_prompts(task_, folder)]
        _check_folder(folder, found)
    with ExitStack() as stack:
        answers = None
        if cache is not None or _DEFAULT_CACHE.is_file():
            answers = stack.enter_context(Cache(cache or _DEFAULT_CACHE, CacheMode.REPLAY))
        rows = [(entry, _check_entry(entry, read, topics, count, answers, warn)) for entry in found]
    _print_checks(output, rows, tokenizer)
    if any(checked.of("error") for _, checked in rows):
        raise typer.Exit(1)


def _check_folder(folder: Path | None, found: Sequence[CatalogEntry]) -> None:
    """Raise UsageError if a folder of templates has none of the prompts."""
    if folder is not None and not any(each.path.is_relative_to(folder) for each in found):
        raise UsageError(
            f"{folder}: no template found; put them in folders named like the tasks, as {DEFAULT_TASK}/judge.jinja"
        )


def _check_entry(
    found: CatalogEntry,
    topics: Sequence[Topic],
    file: Path | None,
    count: Count,
    answers: Cache | None,
    warn: Callable[[str], None],
) -> CheckedPrompt:
    if found.loaded is None:
        return CheckedPrompt([Finding("error", found.error)])
    purpose, prompt = found.loaded
    checked = asyncio.run(check(found.task, purpose, prompt, topics, count))
    if file is not None:
        try:
            check_examples(prompt, list(topics), file, warn)
        except UsageError as error:
            checked.findings.append(Finding("error", str(error)))
    if answers is not None:
        checked.findings += detect_changed_text(prompt, answers)
    return checked


def _make_counter(tokenizer: Path | None) -> Count:
    if tokenizer is None:
        return estimate
    return ChatTokenizer(tokenizer, SamplingConfig().chat_template_kwargs).count


def _print_checks(output: Format, found: Sequence[tuple[CatalogEntry, CheckedPrompt]], tokenizer: Path | None) -> None:
    columns = [
        Column("prompt", is_text=True, value=_name_checked),
        Column("version and hash", drop=3, is_text=True, value=_describe_version),
        Column("tokens" if tokenizer else "about tokens", value="tokens"),
        Column("two topics share", drop=1, value=lambda row: _describe_share(row, "topics")),
        Column("two documents share", drop=2, value=lambda row: _describe_share(row, "documents")),
        Column("result", is_text=True, value=_describe_result),
    ]
    emit(output, [_make_check_row(entry, checked, tokenizer) for entry, checked in found], columns)
    if output is not Format.TABLE:
        return
    counted = (
        "" if tokenizer else "; estimated at four characters each, the chat template left out (--tokenizer counts)"
    )
    show_lines([f"tokens: of the longest topic's prompt, documents left out{counted}"])
    show_lines(
        f"{finding.level}: {entry.task.name} {entry.name}: {finding.message}"
        for entry, checked in found
        for finding in checked.findings
    )


def _make_check_row(found: CatalogEntry, checked: CheckedPrompt, tokenizer: Path | None) -> dict[str, Any]:
    prompt = found.loaded[1] if found.loaded else None
    shares = {"topics": checked.between_topics, "documents": checked.between_documents}
    return {
        "task": found.task.name,
        "name": found.name,
        "version": prompt and prompt.header.version,
        "hash": prompt and prompt.hash,
        "path": found.path,
        "longest_topic": checked.longest_topic,
        "tokens": checked.tokens,
        "estimated": tokenizer is None,
        **{
            f"{between}_share_{name}": share and getattr(share, field)
            for between, share in shares.items()
            for name, field in _SHARES.items()
        },
        "errors": len(checked.of("error")),
        "warnings": len(checked.of("warning")),
        "problems": "; ".join(f"{finding.level}: {finding.message}" for finding in checked.findings) or None,
    }


# Columns of what two requests share, by the field of `Share`.
_SHARES = {"characters": "chars", "of_characters": "of_chars", "tokens": "tokens", "of_tokens": "of_tokens"}


def _name_checked(row: Mapping[str, Any]) -> str:
    return row["name"] if row["hash"] is None else f"{row['task']}/{row['path'].stem}"


def _describe_version(row: Mapping[str, Any]) -> str:
    return "" if row["hash"] is None else f"{row['version']} {row['hash']}"


def _describe_share(row: Mapping[str, Any], between: str) -> str:
    if (chars := row[f"{between}_share_characters"]) is None:
        return ""
    of_chars, tokens = row[f"{between}_share_of_characters"], row[f"{between}_share_tokens"]
    return f"{100 * chars / max(of_chars, 1):.0f} %, {tokens:,} tokens"


def _describe_result(row: Mapping[str, Any]) -> str:
    counts = ((row["errors"], "error"), (row["warnings"], "warning"))
    return ", ".join(f"{count} {kind}{'s' * (count > 1)}" for count, kind in counts if count) or "good"


def _make_row(found: CatalogEntry) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(_NAMES)
    row |= {"task": found.task.name, "name": found.name, "path": found.path, "error": found.error or None}
    # For people.
    row["prompt"] = found.name if found.name.endswith(".jinja") else f"{found.task.name}/{found.name}"
    row["folder"] = "the project" if found.is_builtin else found.path.parent
    if found.loaded is not None:
        purpose, prompt = found.loaded
        row |= {"version": prompt.header.version, "hash": prompt.hash, "purpose": prompt.header.purpose}
        row |= {"answer": purpose.name, "fields": describe_fields(purpose, prompt), "examples": len(prompt.examples)}
    return row


def _describe_answer(row: Mapping[str, Any]) -> str:
    return "does not load, see below" if row["error"] else f"{row['answer']}: {row['fields']}"


def _describe_purpose(row: Mapping[str, Any]) -> str:
    examples = f" ({row['examples']} examples)" if row["examples"] else ""
    return f"{row['purpose'] or ''}{examples}"


def describe_fields(purpose: Purpose, prompt: Prompt) -> str:
    """Describe the fields of the answer and their labels."""
    if purpose.depends_on == "documents":
        what = "a label" if purpose.name == "best" else "all labels"
        return f"{what} of the documents"
    if purpose.depends_on == "topic":
        return "first, second (words of the title)"
    model = prompt.answer_for(Topic("", ""), 1)
    labels = get_labels(model)
    return ", ".join(
        f"{name} ({_format_labels(labels[name])})" if name in labels else name for name in model.model_fields
    )


def _format_labels(labels: Sequence[int | str]) -> str:
    if all(isinstance(label, int) for label in labels):
        return f"{labels[0]} to {labels[-1]}"
    return " ".join(map(str, labels))


for _name, _command in (
    ("copy", prompts_trial.copy),
    ("render", prompts_trial.render),
    ("try", prompts_trial.try_),
    ("compare", prompts_compare.compare),
):
    prompts_app.command(_name)(_command)
