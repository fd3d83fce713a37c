"""Commands about prompts: list, show, check, copy, render, try and compare them."""

from __future__ import annotations

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


@s.takes_settings("prompts.folder")
def list_(
    given: s.GivenSettings, task: EveryTaskOption = None, output: FormatOption = Format.TABLE
) -> None:
    """List the prompts of the tasks: the project's own, or those of a folder that replace them.

    Exit code 1 if one does not load.
    """
    found = find_prompts(
        TASKS.values() if task is None else [get_task(task)], given.get("prompts.folder")
    )
    emit(output, [_make_row(entry) for entry in found], _LIST, _NAMES)
    errors = [entry.error for entry in found if entry.error is not None]
    for error in errors:
        say(output, f"error: {error}")
    if errors:
        raise typer.Exit(1)


@s.takes_settings("task", "prompts.folder")
def show_(given: s.GivenSettings, name: NameArgument, output: FormatOption = Format.TABLE) -> None:
    """Print a prompt's template and the files that it includes."""
    purpose, prompt = load_named(
        get_task(given.get("task", DEFAULT_TASK)), name, given.get("prompts.folder")
    )
    texts = {prompt.path: read_text(prompt.path)}
    texts |= {prompt.path.parent / part: text for part, text in prompt.files.texts.items()}
    if output is not Format.TABLE:
        rows = [
            {"prompt": prompt.label, "answer": purpose.name, "file": path, "text": texts[path]}
            for path in texts
        ]
        print_rows(output, [row | {"examples": len(prompt.examples)} for row in rows])
        return
    header = prompt.header
    print(
        to_printable(
            f"{prompt.name}, version {header.version}, hash {prompt.hash}: {header.purpose}"
        )
    )
    print(to_printable(f"answer: {purpose.name}: {_describe_fields(purpose, prompt)}"))
    if prompt.examples:
        print(to_printable(f"{len(prompt.examples)} examples: {examples_path(prompt.path)}"))
    for path, text in texts.items():
        print(to_printable(f"\n── {path} ──\n{text.strip().expandtabs()}"))


@s.takes_settings("prompts.folder", "topics")
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
    output: FormatOption = Format.TABLE,
) -> None:
    """Check prompts without a model: whether they load, name all labels and share what they can with other requests.

    Documents are invented, and topics unless some are given. Exit code 1 if there are errors;
    warnings leave it at 0.
    """
    folder, file = given.get("prompts.folder"), given.get("topics")
    tasks = [*TASKS.values()] if not (task or names or file) else [get_task(task or DEFAULT_TASK)]
    for checked_task in tasks:
        get_kind(checked_task)  # raises errors of the definition
    found = (
        [find_prompt(tasks[0], name, folder) for name in names]
        if names
        else find_prompts(tasks, folder)
    )
    topics = [] if file is None else read_topics(file)
    rows = [(entry, _check_entry(entry, topics, file)) for entry in found]
    emit(output, [_make_check_row(entry, checked) for entry, checked in rows], _CHECKS)
    if output is Format.TABLE:
        show_lines(
            [
                "tokens: of the longest topic's prompt without documents, estimated at four characters each"
            ]
        )
        show_lines(
            f"{finding.level}: {entry.task.name} {entry.name}: {finding.message}"
            for entry, checked in rows
            for finding in checked.findings
        )
    if any(checked.of("error") for _, checked in rows):
        raise typer.Exit(1)


def _check_entry(found: CatalogEntry, topics: list[Topic], file: Path | None) -> CheckedPrompt:
    """Check a prompt and its examples; one that cannot be loaded has that error as finding."""
    if isinstance(found.result, PromptError):
        return CheckedPrompt([Finding("error", str(found.result))])

    purpose, prompt = found.result
    checked = run_until_interrupted(check(found.task, purpose, prompt, topics))
    try:
        check_examples(prompt, topics, file, lambda _: None)
    except UsageError as error:
        checked.findings.append(Finding("error", str(error)))
    return checked


def _make_check_row(found: CatalogEntry, checked: CheckedPrompt) -> dict[str, Any]:
    row = _make_row(found)
    row = {name: row[name] for name in ("task", "name", "version", "hash", "path")}
    problems = "; ".join(f"{finding.level}: {finding.message}" for finding in checked.findings)
    counts = {"errors": len(checked.of("error")), "warnings": len(checked.of("warning"))}
    return row | {"tokens": checked.tokens, **counts, "problems": problems or None}


def _make_row(found: CatalogEntry) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(_NAMES)
    row |= {
        "task": found.task.name,
        "name": found.name,
        "path": found.path,
        "error": found.error,
    }
    if found.loaded is not None:
        purpose, prompt = found.loaded
        row |= {
            "version": prompt.header.version,
            "hash": prompt.hash,
            "purpose": prompt.header.purpose,
        }
        row |= {
            "answer": purpose.name,
            "fields": _describe_fields(purpose, prompt),
            "examples": len(prompt.examples),
        }
    return row


def _describe_fields(purpose: Purpose, prompt: Prompt) -> str:
    if purpose.depends_on == "documents":
        return (
            "a label of the documents" if purpose.name == "best" else "all labels of the documents"
        )
    if purpose.depends_on == "topic":
        return "first, second (words of the title)"
    labels = get_labels(prompt.answer_for(Topic("", ""), 1))
    return ", ".join(
        f"{name} ({f'{of[0]} to {of[-1]}' if isinstance(of[0], int) else ' '.join(map(str, of))})"
        for name, of in labels.items()
    )
