"""The command that validates run files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

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
from touche_llm.evaluation.validation import RunProblem, validate_run
from touche_llm.runs.overview import find_run_directory, find_run_file, find_task
from touche_llm.tasks import get_task
from touche_llm.tasks.task import Task


def find_run_task(name: str | None, runs: Sequence[Path]) -> Task | None:
    """Return the task of this name, or without a name that of the first folder of a run.

    None if there is neither.

    Raises:
        UsageError: A folder is of another task.
    """
    known = None if name is None else get_task(name)
    for path, task in _read_tasks(runs):
        if known is None:
            known = task
        if task.name != known.name:
            raise UsageError(
                f"{path}: a run of {task.name}, not of {known.name}; fuse runs of one task"
            )
    return known


def _read_tasks(runs: Iterable[Path]) -> list[tuple[Path, Task]]:
    """Return the tasks of the runs that are folders of this program, with their paths."""
    tasks: list[tuple[Path, Task]] = []
    for path in runs:
        directory = find_run_directory(path)
        if directory is not None:
            tasks.append((path, directory.read_task()))
    return tasks


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
    known_task = find_task(task, [run], given.get("dataset"))
    file = find_run_file(run)
    topic_ids = _read_topic_ids(given, known_task)
    problems = _find_problems(file, known_task, topic_ids, given)

    # Line 0 is the file as a whole.
    findings = [_Finding("error", item.message, item.line or None) for item in problems]
    if not problems:
        remarks = _list_remarks(file, known_task, topic_ids)
        findings = [_Finding("warning", remark) for remark in remarks]
    _print_findings(output, file, findings)

    if problems:
        noun = "problem" if len(problems) == 1 else "problems"
        say(output, f"{len(problems):,} {noun}: not a valid {known_task.name} run")
        raise typer.Exit(1)
    checked: list[str] = []
    if topic_ids:
        checked.append("topics")
    if any(given.get(name) for name in ("dataset", "corpus", "index")):
        checked.append("documents")
    suffix = f", {' and '.join(checked)} checked" if checked else ""
    say(output, f"{file}: a valid {known_task.name} run{suffix}")


def _read_topic_ids(given: s.GivenSettings, task: Task) -> set[str] | None:
    """Return the ids of the topics that the lines of a run may have; None for any."""
    topics_file = given.get("topics")
    topics = None if topics_file is None else read_topics(topics_file)
    if given.get("dataset") is not None:
        topics = Dataset(given["dataset"], task.reference).topics
    return None if topics is None else {topic.id for topic in topics}


def _find_problems(
    run: Path, task: Task, topic_ids: set[str] | None, given: s.GivenSettings
) -> list[RunProblem]:
    """Return the problems of a run file; its documents are checked if a corpus is given."""
    corpus = given.get("dataset") or given.get("corpus")
    index = given.get("index")
    if corpus is None and index is None:
        return validate_run(run, task, topic_ids=topic_ids)

    with open_local_corpus(
        corpus=corpus,
        index=index,
        task=task,
        skip_bad_lines=given.get("skip_bad_lines", False),
        warn=CommandProgress().warn,
    ) as opened:
        return validate_run(
            run,
            task,
            topic_ids=topic_ids,
            unknown_documents=opened.documents.find_unknown,
        )


@dataclass(frozen=True, slots=True)
class _Finding:
    """A problem of a run file, or a remark on it; without a line it is about the whole file."""

    level: Literal["error", "warning"]
    message: str
    line: int | None = None


def _print_findings(output: Format, run: Path, findings: Sequence[_Finding]) -> None:
    """Print findings about a run file: the first ones for people, all for programs."""
    if output is not Format.TABLE:
        rows: list[dict[str, Any]] = []
        for finding in findings:
            row = {
                "file": run,
                "line": finding.line,
                "level": finding.level,
                "message": finding.message,
            }
            rows.append(row)
        print_rows(output, rows, ("file", "line", "level", "message"))
        return

    for finding in findings[:_MANY]:
        place = run if finding.line is None else f"{run}:{finding.line}"
        say(output, f"{place}: {finding.level}: {finding.message}")
    if len(findings) > _MANY:
        say(output, f"… and {len(findings) - _MANY:,} more; --format tsv prints them all")


def _list_remarks(run: Path, task: Task, topic_ids: Collection[str] | None) -> list[str]:
    """Return what organisers may not like about a valid run: topics with few lines or none."""
    rankings = read_candidates(run, task.documents_per_topic.max)
    remarks: list[str] = []
    if topic_ids is not None and len(topic_ids) > len(rankings):
        missing_count = len(topic_ids) - len(rankings)
        remarks.append(f"{missing_count} of {len(topic_ids)} topics have no line")

    min_lines = task.documents_per_topic.min
    for topic_id, lines in rankings.items():
        if len(lines) < min_lines:
            remarks.append(
                f"topic {topic_id} has {len(lines)} lines, the organisers want at least {min_lines}"
            )
    return remarks
