"""The command that lists the published files of the tasks, and checks downloaded ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli.output import Format, FormatOption, print_rows
from touche_llm.cli.progress import CommandProgress
from touche_llm.cli.tables import show_lines
from touche_llm.errors import UsageError
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.downloads import FileCheck, check_file
from touche_llm.tasks.published import read_published

_COLUMNS = ("task", "role", "name", "bytes", "records", "licence", "md5", "url")


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

    Each file is compared with the published ones by its checksum, else by its content: task and edition, first record,
    number of records. Nothing is downloaded.

    Exit code 1 if a file is damaged, incomplete or none of these.
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
        print_rows(output, map(_row, checks))
    if any(check.problem for check in checks):
        raise typer.Exit(1)


def _list_files(tasks: list[str], output: Format) -> None:
    published = read_published()
    if output is not Format.TABLE:
        rows = [
            {"task": task} | {name: getattr(file, name) for name in _COLUMNS[1:]}
            for task in tasks
            for file in published.files
            if task in file.tasks
        ]
        print_rows(output, rows, _COLUMNS)
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
    counted = f", {check.records:,} records" if check.records else ""
    how = ", as published (md5)" if check.is_published else ""
    yield f"{check.path}: {' or '.join(check.roles) or check.kind}{counted}{how}"
    for task in check.tasks:
        yield f"    {task}: {get_task(task).title}"
    if check.first:
        yield f"    first: {check.first}"
    if check.problem:
        yield f"    problem: {check.problem}"


def _row(check: FileCheck) -> dict[str, Any]:
    return {
        "file": check.path,
        "kind": check.kind,
        "tasks": " ".join(check.tasks) or None,
        "roles": " ".join(check.roles) or None,
        "published": check.is_published,
        "bytes": check.bytes,
        "records": check.records,
        "expected": check.expected,
        "first": check.first or None,
        "problem": check.problem or None,
    }
