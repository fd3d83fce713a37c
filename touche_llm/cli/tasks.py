"""Commands that list and show tasks, and create a new one."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli.demo import SAMPLES
from touche_llm.cli.emit import Column, Format, FormatOption, format_program, print_rows, say, show_lines, show_table
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.data.io import open_atomic
from touche_llm.errors import UsageError, to_printable
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.definition import TASK_FILE
from touche_llm.tasks.published import FileCheck, check_file, read_published, read_tables
from touche_llm.tasks.task import Task

_FILE_COLUMNS = ("task", "role", "name", "bytes", "records", "licence", "md5", "url")


def data(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Downloaded files to check, packed or not.")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="List only the files of this task.")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List the published files of the tasks, or check downloaded files.

    Each file is compared with the published ones by its checksum, else by its first record. Nothing is downloaded.

    Exit code 1 if a file cannot be read, or is none of these.
    """
    if files and task is not None:
        raise UsageError("--task: is for the list; leave it out, since a check finds the task")
    if not files:
        _list_files([*TASKS] if task is None else [get_task(task).name], output)
        return
    checks = []
    with CommandProgress().stage("checking files", len(files)) as step:
        for file in files:
            checks.append(check_file(file))
            step()
    if output is Format.TABLE:
        for check in checks:
            show_lines(_describe(check), indent=2, keeps_indented=False)
    else:
        print_rows(output, map(_file_row, checks))
    if any(check.problem for check in checks):
        raise typer.Exit(1)


def _list_files(tasks: list[str], output: Format) -> None:
    published = read_published()
    if output is not Format.TABLE:
        rows = [
            {"task": task} | {name: getattr(file, name) for name in _FILE_COLUMNS[1:]}
            for task in tasks
            for file in published.files
            if task in file.tasks
        ]
        print_rows(output, rows, _FILE_COLUMNS)
        return
    for task in tasks:
        print(f"{task}: {get_task(task).title}")
        for file in published.files:
            if task in file.tasks:
                counts = ((file.bytes, "bytes"), (file.records, "records"))
                facts = [f"{count:,} {unit}" for count, unit in counts if count is not None]
                facts += [*([file.licence] if file.licence else []), *([f"md5 {file.md5}"] if file.md5 else [])]
                show_lines((f"  {file.role}: {', '.join(facts)}", f"    {file.url}"))
        for corpus in published.restricted:
            if task in corpus.tasks:
                show_lines((f"  corpus: {corpus.name}, given out under an agreement", f"    {corpus.url}"))
        print()


def _describe(check: FileCheck) -> Iterator[str]:
    how = ", as published (md5)" if check.is_published else ""
    yield f"{check.path}: {' or '.join(check.roles) or check.kind}{how}"
    for task in check.tasks:
        yield f"    {task}: {get_task(task).title}"
    if check.first:
        yield f"    first: {check.first}"
    if check.problem:
        yield f"    problem: {check.problem}"


def _file_row(check: FileCheck) -> dict[str, Any]:
    return {
        "file": check.path,
        "kind": check.kind,
        "tasks": " ".join(check.tasks) or None,
        "roles": " ".join(check.roles) or None,
        "published": check.is_published,
        "bytes": check.bytes,
        "first": check.first or None,
        "problem": check.problem or None,
    }


EXAMPLE = SAMPLES / "example"
# The definition comes last, so that a folder that has it is complete.
EXAMPLE_FILES = ("judge.jinja", "topics.xml", "opinions.jsonl", "answers.jsonl", "qrels-relevance.txt", TASK_FILE)
_COLUMNS = (
    Column("task", is_text=True),
    Column("aspects", is_text=True, drop=1),
    Column("stances", is_text=True, drop=2),
    Column("reader", is_text=True, drop=3),
    Column("title", cut=40),
)

tasks_app = typer.Typer(no_args_is_help=True, help="List and show tasks, and create a new one.")


@tasks_app.command("list")
def list_(output: FormatOption = Format.TABLE) -> None:
    """List the project's own tasks."""
    if output is not Format.TABLE:
        print_rows(output, [_row(task) for task in TASKS.values()])
        return
    rows = []
    for task in TASKS.values():
        aspects = ", ".join(f"{name} {scale}" for name, scale in task.aspects.items())
        rows.append((task.name, aspects, " ".join(task.stances), task.corpus.reader, task.title))
    show_table(_COLUMNS, rows)


@tasks_app.command("show")
def show_(
    name: Annotated[str, typer.Argument(metavar="NAME|FOLDER", help="A task of the project, or a folder of a task.")],
    output: FormatOption = Format.TABLE,
) -> None:
    """Show a task: what it grades and labels, its limits, weights, measures and published results."""
    task = get_task(name)
    if output is not Format.TABLE:
        print_rows(output, [_row(task)])
        return
    print(to_printable(f"{task.name}: {task.title}"))
    facts = list(_list_facts(task))
    width = max(len(fact) for fact, _ in facts)
    show_lines((f"{fact.ljust(width)}  {value}" for fact, value in facts), indent=width + 2)
    for table in read_tables(task):
        show_lines((f"published runs by {table.measure}: {len(table.runs)}", f"    {table.url}"))


@tasks_app.command("new")
def new(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the new task; it must not exist or be empty.")
    ],
    output: FormatOption = Format.TABLE,
) -> None:
    """Write an example of a task to change: its definition, a template, topics, documents and recorded answers.

    The run of the example, which is printed, needs no model.
    """
    name = _choose_name(folder)
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: exists and is not an empty folder; give another FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    for file in EXAMPLE_FILES:
        text = (EXAMPLE / file).read_text(encoding="utf-8")
        if file == TASK_FILE:
            text = text.replace(f"\nname: {EXAMPLE.name}\n", f"\nname: {name}\n")
        with open_atomic(folder / file) as stream:
            stream.write(text.encode())
    if output is not Format.TABLE:
        print_rows(output, [{"task": name, "file": folder / file} for file in EXAMPLE_FILES])
    command = format_program()
    place = {file: shlex.quote(str(folder / file)) for file in EXAMPLE_FILES}
    # Without `./` the path would be read as a task of the project or an option.
    is_misread = str(folder) in TASKS or str(folder).startswith("-")
    place[""] = shlex.quote(f"./{folder}" if is_misread else str(folder))
    for line in (
        f"{folder}: the task {name}, with {', '.join(EXAMPLE_FILES)}",
        "Its answers were invented; run it with them, then measure it with the example's judgments:",
        f"    {command} run --task {place['']} --topics {place['topics.xml']} \\",
        f"        --corpus {place['opinions.jsonl']} --cache {place['answers.jsonl']} \\",
        f"        --cache-mode replay --out runs/{name}",
        f"    {command} evaluate runs/{name} --relevance {place['qrels-relevance.txt']}",
        f"Then change {place[TASK_FILE]} and {place['judge.jinja']}, and check them with",
        f"    {command} tasks show {place['']}",
        f"    {command} prompts check --task {place['']}",
    ):
        say(output, line)


def _choose_name(folder: Path) -> str:
    """Return a name for the task of a folder, like that of the folder."""
    name = re.sub(r"[^a-z0-9_]+", "_", folder.absolute().name.lower()).strip("_")[:31]
    if not name[:1].isalpha():
        name = f"task_{name}"[:31]
    return f"my_{name}"[:31] if name in TASKS else name


def _list_facts(task: Task) -> Iterator[tuple[str, str]]:
    stance = task.stance
    yield "folder", str(task.folder)
    if task.shared_folders:
        yield "other templates", ", ".join(map(str, task.shared_folders))
    yield "features", ", ".join(task.features) or "none"
    yield "aspects", ", ".join(f"{name} {scale}" for name, scale in task.aspects.items())
    if task.qrels:
        yield "scales of qrels", ", ".join(f"{name} {scale}" for name, scale in task.qrels_scales.items())
    yield "stances", ", ".join(task.stances) or "none; runs have Q0 in their place"
    if stance is not None:
        yield "take no side", ", ".join(task.no_stances) or "none"
        if stance.swapped:
            yield (
                "swapped with the objects",
                ", ".join(f"{label} and {stance.swapped[label]}" for label in stance.swapped),
            )
        yield "without an answer", stance.unanswered
    yield "documents per topic", f"{task.documents_per_topic.min} to {task.documents_per_topic.max:,}"
    for objective, weights in task.objectives.items():
        if objective not in (*task.weights, *task.aspects):
            continue  # an aspect that the task does not have
        yield f"weights for {objective}", ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    yield "official measures", ", ".join(f"{name} {measure}" for name, measure in task.measures.items()) or "none"
    yield "corpus", f"{task.corpus.reader}: {', '.join(task.corpus.files) or 'any file'}"
    yield "datasets of ir_datasets", ", ".join(task.corpus.datasets) or "none"


def _row(task: Task) -> dict[str, Any]:
    return {
        "task": task.name,
        "title": task.title,
        "folder": task.folder,
        "features": " ".join(task.features) or None,
        "aspects": " ".join(f"{name}:{scale}" for name, scale in task.aspects.items()),
        "stances": " ".join(task.stances) or None,
        "no_side": " ".join(task.no_stances) or None,
        "unanswered": task.unknown_stance,
        "min_per_topic": task.documents_per_topic.min,
        "max_per_topic": task.documents_per_topic.max,
        "reader": task.corpus.reader,
        "files": " ".join(task.corpus.files) or None,
        "datasets": " ".join(task.corpus.datasets) or None,
    }
