"""Commands that list and show tasks, and create a new one."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli.demo import SAMPLES
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import Column, Format, FormatOption, emit, print_rows, say, show_lines
from touche_llm.cli.show import show_facts
from touche_llm.data.files import replace_folder
from touche_llm.errors import UsageError
from touche_llm.kinds.known import get_kind
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.parts import TASK_FILE
from touche_llm.tasks.published import check_file, read_published, read_tables
from touche_llm.tasks.task import Task

_FILE_COLUMNS = ("role", "name", "bytes", "records", "licence", "md5", "url")
_FILES = (
    Column("task", is_text=True),
    Column("role", is_text=True),
    Column("bytes", drop=2),
    Column("records", drop=3),
    Column("licence", drop=4, is_text=True),
    Column("md5", drop=5, is_text=True),
)
_CHECKED = (
    Column("file", is_text=True),
    Column("kind", is_text=True),
    Column("roles", drop=2, is_text=True),
    Column("tasks", drop=1, is_text=True),
    Column("published", drop=3, is_text=True),
    Column("first", drop=4, is_cut=True),
)
# Max characters of the name of a new task.
_MAX_NAME = 31


FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE", help="Downloaded files to check, packed or not."),
]
TaskOption = Annotated[
    str | None, typer.Option("--task", metavar="NAME", help="List only the files of this task.")
]


def data(
    files: FilesArgument = None,
    task: TaskOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List the published files of the tasks, or check downloaded files.

    Each file is compared with the published ones by size and checksum. Its kind is recognized by
    its first record, published or not. Nothing is downloaded.

    Exit code 1 if a file cannot be read, is of no known kind, or differs from the published one of
    its name.
    """
    if not files:
        names = [*TASKS] if task is None else [get_task(task).name]
        _print_published(output, names)
        return

    if task is not None:
        raise UsageError(
            "--task: is for the list; leave it out, since a check is against the files of all tasks"
        )
    rows: list[dict[str, Any]] = []
    with CommandProgress().stage("checking files", len(files)) as step:
        for file in files:
            rows.append(check_file(file)._asdict())
            step()
    emit(output, rows, _CHECKED)
    problems = [f"{row['file']}: {row['problem']}" for row in rows if row["problem"]]
    if output is Format.TABLE:
        show_lines(problems)
    if problems:
        raise typer.Exit(1)


def _print_published(output: Format, tasks: list[str]) -> None:
    """Print the published files of tasks, and below the table their addresses."""
    rows: list[dict[str, Any]] = []
    for task in tasks:
        for file in read_published():
            if task in file.tasks:
                values = {column: getattr(file, column) for column in _FILE_COLUMNS}
                rows.append({"task": task, **values})

    emit(output, rows, _FILES)
    if output is Format.TABLE:
        distinct_urls = dict.fromkeys(row["url"] for row in rows)
        show_lines(f"    {url}" for url in distinct_urls)


EXAMPLE = SAMPLES / "example"
EXAMPLE_FILES = (
    "judge.jinja",
    "topics.xml",
    "opinions.jsonl",
    "answers.jsonl",
    "qrels-relevance.txt",
    TASK_FILE,
)
_COLUMNS = (
    Column("task", is_text=True),
    Column("aspects", drop=1, is_text=True),
    Column("stances", drop=2, is_text=True),
    Column("reader", drop=3, is_text=True),
    Column("title", is_cut=True),
)


def list_(output: FormatOption = Format.TABLE) -> None:
    """List the project's own tasks."""
    emit(output, [_make_row(task) for task in TASKS.values()], _COLUMNS)


def show_(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME|FOLDER", help="A task of the project, or a folder of a task."),
    ],
    output: FormatOption = Format.TABLE,
) -> None:
    """Show a task: what it grades and labels, its limits, weights, measures and published results."""
    row = _make_row(get_task(name))
    if output is Format.TABLE:
        show_facts(row)
    else:
        print_rows(output, [row])


def new(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Folder of the new task; it must not exist or be empty."
        ),
    ],
    output: FormatOption = Format.TABLE,
) -> None:
    """Write an example of a task to change: its definition, a template, topics, documents and recorded answers.

    The run of the example, which is printed, needs no model.
    """
    name = _choose_name(folder)
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: exists and is not an empty folder; give another FOLDER")
    if folder.absolute().resolve() == Path.cwd():
        raise UsageError(f"{folder}: the current folder would be replaced; give another FOLDER")

    # A killed command leaves the complete folder or none.
    with replace_folder(folder, own=()) as building:
        for file in EXAMPLE_FILES:
            (building / file).write_bytes(_read_example(file, name))
    if output is not Format.TABLE:
        print_rows(output, [{"task": name, "file": folder / file} for file in EXAMPLE_FILES])
    for line in _describe_next_steps(folder, name):
        say(output, line)


def _read_example(file: str, name: str) -> bytes:
    """Return a file of the example, whose task is named `name`."""
    text = (EXAMPLE / file).read_text(encoding="utf-8")
    if file == TASK_FILE:
        text = text.replace(f"\nname: {EXAMPLE.name}\n", f"\nname: {name}\n")
    return text.encode()


def _describe_next_steps(folder: Path, name: str) -> list[str]:
    """Return the lines about a new task: its files, and the commands to run it and to change it."""
    topics = shlex.quote(str(folder / "topics.xml"))
    corpus = shlex.quote(str(folder / "opinions.jsonl"))
    answers = shlex.quote(str(folder / "answers.jsonl"))
    qrels = shlex.quote(str(folder / "qrels-relevance.txt"))
    # Without `./` the path would be read as a task of the project or an option.
    is_misread = str(folder) in TASKS or str(folder).startswith("-")
    place = shlex.quote(f"./{folder}" if is_misread else str(folder))
    return [
        f"{folder}: the task {name}, with {', '.join(EXAMPLE_FILES)}",
        "Its answers were invented; run it with them, then measure it with the example's judgments:",
        f"    touche-llm run --task {place} --topics {topics} --corpus {corpus} --cache {answers} --cache-mode replay "
        f"--out runs/{name}",
        f"    touche-llm evaluate runs/{name} --relevance {qrels}",
        f"Then change {TASK_FILE} and judge.jinja there, and check them:",
        f"    touche-llm tasks show {place}",
        f"    touche-llm prompts check --task {place}",
    ]


def _choose_name(folder: Path) -> str:
    """Return a valid name for a new task that resembles the name of its folder."""
    name = re.sub(r"[^a-z0-9_]+", "_", folder.absolute().name.lower()).strip("_")[:_MAX_NAME]
    begins_with_letter = name[:1].isalpha()
    if not begins_with_letter:
        name = f"task_{name}"[:_MAX_NAME]
    if name in TASKS:
        name = f"my_{name}"[:_MAX_NAME]
    return name


def _make_row(task: Task) -> dict[str, Any]:
    """Return what `show` prints of a task, by name; None for what it does not have."""
    kind = get_kind(task)
    weights: list[str] = []
    for objective, weights_of_objective in task.objectives.items():
        # An objective can be for an aspect that the task does not have.
        if objective in task.weights or objective in task.aspects:
            weights.append(f"{objective}: {_join(weights_of_objective, '{} {:g}')}")
    published_runs = {table.measure: len(table.runs) for table in read_tables(task)}
    return {
        "task": task.name,
        "title": task.title,
        "folder": task.folder,
        "other_templates": " ".join(map(str, task.shared_folders)) or None,
        "kind": kind.name,
        "ranks": kind.help,
        "reference": kind.reference,
        "features": " ".join(task.features) or None,
        "aspects": _join(task.aspects),
        "qrels_scales": _join(task.qrels_scales),
        "stances": " ".join(task.stances) or None,
        "no_side": " ".join(task.no_stances) or None,
        "swapped": None if task.stance is None else _join(task.stance.swapped),
        "unanswered": task.unknown_stance,
        "min_per_topic": task.documents_per_topic.min,
        "max_per_topic": task.documents_per_topic.max,
        "weights": "; ".join(weights),
        "measures": _join(task.measures),
        "published_runs": _join(published_runs),
        "reader": task.corpus.reader,
        "files": " ".join(task.corpus.files) or None,
        "datasets": " ".join(task.corpus.datasets) or None,
    }


def _join(values: Mapping[str, Any], form: str = "{} {}") -> str | None:
    return ", ".join(form.format(name, value) for name, value in values.items()) or None
