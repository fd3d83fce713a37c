"""The command that validates run files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer

from touche_llm.api.corpora import open_local_corpus
from touche_llm.api.dataset import Dataset
from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as s
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import Format, FormatOption, print_rows, say
from touche_llm.data.runs.reading import read_candidates
from touche_llm.data.topics.reading import read_topics
from touche_llm.errors import UsageError
from touche_llm.evaluation.validation import validate_run
from touche_llm.runs.overview import find_run_directory, find_run_file, find_task
from touche_llm.tasks import get_task
from touche_llm.tasks.task import Task


def find_run_task(name: str | None, runs: Sequence[Path]) -> Task | None:
    """Return the task of this name, or without a name that of the folders among the runs.

    None if there are none.
    """
    tasks = [
        (path, directory.read_task())
        for path in runs
        if (directory := find_run_directory(path)) is not None
    ]
    known = get_task(name) if name is not None else (tasks[0][1] if tasks else None)
    for path, task in tasks:
        if known is not None and task.name != known.name:
            raise UsageError(
                f"{path}: a run of {task.name}, not of {known.name}; fuse runs of one task"
            )
    return known


# Number of problems and notes in a table.
_MANY = 20


@s.takes_settings("dataset", "topics", "corpus", "index", "skip_bad_lines")
def validate(
    given: s.GivenSettings,
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run file of this or any other program, or the folder of a run."
        ),
    ],
    task: m.TaskOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Check a run file.

    Checks columns, labels, ranks, scores, ties, duplicates, limits, topics, documents and tag.

    Prints the problems with their lines. Exit code 0 for a valid file, 1 for any other.
    """
    s.check_inputs(given)
    dataset, topics, index = given.get("dataset"), given.get("topics"), given.get("index")
    documents = dataset or given.get("corpus")
    known, run = find_task(task, [run], dataset), find_run_file(run)
    read = None if topics is None else read_topics(topics)
    if dataset is not None:
        read = Dataset(dataset, known.reference).topics
    topic_ids = None if read is None else {topic.id for topic in read}
    if documents is None and index is None:
        problems = validate_run(run, known, topic_ids=topic_ids)
    else:
        skip, warn = given.get("skip_bad_lines", False), CommandProgress().warn
        with open_local_corpus(documents, index, known, skip_bad_lines=skip, warn=warn) as opened:
            unknown = opened.documents.find_unknown
            problems = validate_run(run, known, topic_ids=topic_ids, unknown_documents=unknown)
    # Line 0 is the file as a whole.
    found = [("error", each.line or None, each.message) for each in problems]
    found += [
        ("warning", None, remark)
        for remark in ([] if problems else _remarks(run, known, topic_ids))
    ]
    rows = [
        {"file": run, "line": line, "level": level, "message": message}
        for level, line, message in found
    ]
    if output is not Format.TABLE:
        print_rows(output, rows, ("file", "line", "level", "message"))
    elif rows:
        for row in rows[:_MANY]:
            place = run if row["line"] is None else f"{run}:{row['line']}"
            say(output, f"{place}: {row['level']}: {row['message']}")
        if len(rows) > _MANY:
            say(output, f"… and {len(rows) - _MANY:,} more; --format tsv prints them all")
    if problems:
        say(
            output,
            f"{len(problems):,} problem{'s' if len(problems) > 1 else ''}: not a valid {known.name} run",
        )
        raise typer.Exit(1)
    checked = [
        name for name, given in (("topics", topic_ids), ("documents", documents or index)) if given
    ]
    say(
        output,
        f"{run}: a valid {known.name} run"
        + (f", {' and '.join(checked)} checked" if checked else ""),
    )


def _remarks(run: Path, task: Task, topic_ids: Collection[str] | None) -> list[str]:
    rankings = read_candidates(run, task.documents_per_topic.max)
    warnings = []
    if topic_ids is not None and len(topic_ids) > len(rankings):
        warnings.append(f"{len(topic_ids) - len(rankings)} of {len(topic_ids)} topics have no line")
    least = task.documents_per_topic.min
    return warnings + [
        f"topic {topic} has {len(lines)} lines, the organisers want at least {least}"
        for topic, lines in rankings.items()
        if len(lines) < least
    ]
