"""Commands about prompts: list, show, check, copy, render, try and compare them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli import options as s
from touche_llm.cli.output import Column, Format, FormatOption, emit, print_rows, say, show_lines
from touche_llm.cli.prompts_trial import NameArgument
from touche_llm.data.records import Topic
from touche_llm.data.topics.reading import read_topics
from touche_llm.errors import PromptError, UsageError, to_printable
from touche_llm.interrupts import run_until_interrupted
from touche_llm.kinds.known import get_kind
from touche_llm.llm.answer_schema import get_labels
from touche_llm.prompt_lab.lint import CheckedPrompt, Finding, check
from touche_llm.prompts.leakage import check_examples
from touche_llm.prompts.prompt import Prompt, Purpose, examples_path
from touche_llm.prompts.purposes import CatalogEntry, find_prompt, find_prompts, load_named
from touche_llm.prompts.template_text import read_text
from touche_llm.tasks import DEFAULT_TASK, TASK_HELP, TASKS, get_task

EveryTaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME|FOLDER",
        help=f"{TASK_HELP} (default: all).",
        rich_help_panel="Input",
    ),
]
_NAMES = (
    "task",
    "name",
    "version",
    "hash",
    "answer",
    "fields",
    "purpose",
    "examples",
    "path",
    "error",
)
_PROMPT = Column(
    "prompt",
    is_text=True,
    value=lambda row: row["name"] if row["hash"] is None else f"{row['task']}/{row['path'].stem}",
)
_LIST = (
    _PROMPT,
    Column("version", drop=3),
    Column("hash", drop=4, is_text=True),
    Column("answer", is_text=True),
    Column("fields", drop=1, is_cut=True),
    Column("purpose", drop=5, is_cut=True),
)
_CHECKS = (
    _PROMPT,
    Column("version", drop=3),
    Column("hash", drop=4, is_text=True),
    Column("tokens"),
    Column("errors"),
    Column("warnings"),
)
_TOKENS_LEGEND = (
    "tokens: of the longest topic's prompt without documents, estimated at four characters each"
)


@s.takes_settings("prompts.folder")
def list_(
    given: s.GivenSettings, task: EveryTaskOption = None, output: FormatOption = Format.TABLE
) -> None:
    """List the prompts of the tasks: the project's own, or those of a folder that replace them.

    Exit code 1 if one does not load.
    """
    tasks = TASKS.values() if task is None else [get_task(task)]
    entries = find_prompts(tasks, given.get("prompts.folder"))
    emit(output, [_make_row(entry) for entry in entries], _LIST, _NAMES)

    errors = [entry.error for entry in entries if entry.error is not None]
    for error in errors:
        say(output, f"error: {error}")
    if errors:
        raise typer.Exit(1)


@s.takes_settings("task", "prompts.folder")
def show_(given: s.GivenSettings, name: NameArgument, output: FormatOption = Format.TABLE) -> None:
    """Print a prompt's template and the files that it includes."""
    task = get_task(given.get("task", DEFAULT_TASK))
    purpose, prompt = load_named(task, name, given.get("prompts.folder"))
    texts = {prompt.path: read_text(prompt.path)}
    for included, text in prompt.files.texts.items():
        texts[prompt.path.parent / included] = text

    if output is Format.TABLE:
        _print_prompt(purpose, prompt, texts)
        return
    rows: list[dict[str, Any]] = []
    for path, text in texts.items():
        row = {
            "prompt": prompt.label,
            "answer": purpose.name,
            "file": path,
            "text": text,
            "examples": len(prompt.examples),
        }
        rows.append(row)
    print_rows(output, rows)


def _print_prompt(purpose: Purpose, prompt: Prompt, texts: Mapping[Path, str]) -> None:
    """Print what a prompt is for, and the texts of its files, for people."""
    header = prompt.header
    lines = [
        f"{prompt.name}, version {header.version}, hash {prompt.hash}: {header.purpose}",
        f"answer: {purpose.name}: {_describe_fields(purpose, prompt)}",
    ]
    if prompt.examples:
        lines.append(f"{len(prompt.examples)} examples: {examples_path(prompt.path)}")
    for path, text in texts.items():
        lines.append(f"\n── {path} ──\n{text.strip().expandtabs()}")

    for line in lines:
        print(to_printable(line))


NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME|FILE", help="Prompts: names or .jinja files (default: all)."),
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help=f"{TASK_HELP} (default: all; {DEFAULT_TASK} with names or topics).",
        rich_help_panel="Input",
    ),
]


@s.takes_settings("prompts.folder", "topics")
def check_(
    given: s.GivenSettings,
    names: NamesArgument = None,
    task: TaskOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Check prompts without a model: whether they load, name all labels and share what they can with other requests.

    Documents are invented, and topics unless some are given. Exit code 1 if there are errors;
    warnings leave it at 0.
    """
    folder = given.get("prompts.folder")
    topics_file = given.get("topics")
    if task or names or topics_file:
        tasks = [get_task(task or DEFAULT_TASK)]
    else:
        tasks = [*TASKS.values()]
    for checked_task in tasks:
        get_kind(checked_task)  # raises errors of the definition
    if names:
        entries = [find_prompt(tasks[0], name, folder) for name in names]
    else:
        entries = find_prompts(tasks, folder)

    topics = [] if topics_file is None else read_topics(topics_file)
    checked = [_CheckedEntry(entry, _check_entry(entry, topics, topics_file)) for entry in entries]
    emit(output, [_make_check_row(item) for item in checked], _CHECKS)
    if output is Format.TABLE:
        show_lines([_TOKENS_LEGEND, *_list_findings(checked)])
    if any(item.prompt.of("error") for item in checked):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _CheckedEntry:
    """A template of the catalogue, and what its checks found."""

    entry: CatalogEntry
    prompt: CheckedPrompt


def _list_findings(checked: Iterable[_CheckedEntry]) -> Iterator[str]:
    """Yield a line for each finding, with task and name of the prompt."""
    for item in checked:
        for finding in item.prompt.findings:
            yield f"{finding.level}: {item.entry.task.name} {item.entry.name}: {finding.message}"


def _check_entry(entry: CatalogEntry, topics: list[Topic], file: Path | None) -> CheckedPrompt:
    """Check a prompt and its examples; one that cannot be loaded has that error as finding.

    Args:
        entry: Template of the catalogue.
        topics: Topics that no example may be about.
        file: File of the topics, for messages.
    """
    if isinstance(entry.result, PromptError):
        return CheckedPrompt([Finding("error", str(entry.result))])

    purpose, prompt = entry.result
    checked = run_until_interrupted(check(entry.task, purpose, prompt, topics))
    try:
        check_examples(prompt, topics, file, lambda _: None)
    except UsageError as error:
        checked.findings.append(Finding("error", str(error)))
    return checked


def _make_check_row(checked: _CheckedEntry) -> dict[str, Any]:
    """Return the row of a checked prompt."""
    entry_row = _make_row(checked.entry)
    findings = checked.prompt.findings
    problems = "; ".join(f"{finding.level}: {finding.message}" for finding in findings)
    return {
        **{name: entry_row[name] for name in ("task", "name", "version", "hash", "path")},
        "tokens": checked.prompt.tokens,
        "errors": len(checked.prompt.of("error")),
        "warnings": len(checked.prompt.of("warning")),
        "problems": problems or None,
    }


def _make_row(entry: CatalogEntry) -> dict[str, Any]:
    """Return the row of a template, with the names of `_NAMES`; None for what is unknown."""
    row: dict[str, Any] = dict.fromkeys(_NAMES)
    row["task"] = entry.task.name
    row["name"] = entry.name
    row["path"] = entry.path
    row["error"] = entry.error
    if entry.loaded is not None:
        purpose, prompt = entry.loaded
        row["version"] = prompt.header.version
        row["hash"] = prompt.hash
        row["purpose"] = prompt.header.purpose
        row["answer"] = purpose.name
        row["fields"] = _describe_fields(purpose, prompt)
        row["examples"] = len(prompt.examples)
    return row


def _describe_fields(purpose: Purpose, prompt: Prompt) -> str:
    """Return the fields of the answer to a prompt with their labels, as `relevance (0 to 3)`."""
    if purpose.depends_on == "documents":
        return (
            "a label of the documents" if purpose.name == "best" else "all labels of the documents"
        )
    if purpose.depends_on == "topic":
        return "first, second (words of the title)"

    fields: list[str] = []
    for name, labels in get_labels(prompt.answer_for(Topic("", ""), document_count=1)).items():
        if isinstance(labels[0], int):
            fields.append(f"{name} ({labels[0]} to {labels[-1]})")
        else:
            fields.append(f"{name} ({' '.join(map(str, labels))})")
    return ", ".join(fields)
