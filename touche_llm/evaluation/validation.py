"""Validation of run files by the rules of the organisers and evaluators: every problem, with its line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from touche_llm.data.files import (
    MAX_TABLE_LINE,
    open_regular,
    read_bounded_lines,
    report_unreadable,
)
from touche_llm.data.runs.reading import RunRow, parse_row
from touche_llm.errors import to_printable
from touche_llm.kinds.known import get_kind
from touche_llm.tasks.task import Task

# Reading stops after this many problems.
_MAX_PROBLEMS = 10_000


@dataclass(frozen=True, order=True, slots=True)
class RunProblem:
    """A problem in a line; line 0 stands for the whole file."""

    line: int
    message: str


def validate_run(
    path: Path,
    task: Task,
    *,
    topic_ids: Collection[str] | None = None,
    unknown_documents: Callable[[Iterable[str]], list[str]] | None = None,
) -> list[RunProblem]:
    """Return all problems of a run file, in line order; a file without problems can be submitted.

    Args:
        path: File of the run.
        task: Task of the run.
        topic_ids: Ids of the known topics; None to accept all topics.
        unknown_documents: Returns those of the given document ids that the corpus lacks; None to
            accept all documents.
    """
    rows, problems = _read_rows(path)
    if not rows and not problems:
        return [RunProblem(0, "the file is empty")]

    problems += _check_orders(rows)
    complete_rows = [row for row in rows if row.tag]
    problems += _check_values(complete_rows, task)
    problems += _check_repetitions(complete_rows)
    problems += _check_lengths(complete_rows, task.documents_per_topic.max)
    problems += _check_tags(complete_rows)
    if topic_ids is not None:
        problems += _check_topics(complete_rows, topic_ids)
    if unknown_documents is not None:
        problems += _check_documents(complete_rows, unknown_documents)
    return sorted(RunProblem(problem.line, to_printable(problem.message)) for problem in problems)


def _read_rows(path: Path) -> tuple[list[RunRow], list[RunProblem]]:
    """Read the rows of a file, incomplete ones too, and the problems of their form."""
    rows: list[RunRow] = []
    problems: list[RunProblem] = []
    with report_unreadable(path), open_regular(path) as stream:
        for number, raw in read_bounded_lines(stream, MAX_TABLE_LINE):
            if len(problems) > _MAX_PROBLEMS:
                problems.append(RunProblem(number, "too many problems; the rest is not checked"))
                break
            row, messages = _parse_line(raw, number)
            problems += [RunProblem(number, message) for message in messages]
            if row is not None:
                rows.append(row)
    return rows, problems


def _parse_line(raw: bytes, number: int) -> tuple[RunRow | None, list[str]]:
    """Parse a line, however malformed, and find the problems of its form.

    Args:
        raw: The line.
        number: Number of the line.

    Returns:
        Row, which is None for a line without columns; and the problems.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None, ["not UTF-8"]
    if len(raw) > MAX_TABLE_LINE:
        return None, [f"longer than {MAX_TABLE_LINE:,} bytes"]

    problems: list[str] = []
    if not text.endswith("\n"):
        problems.append("the last line does not end with a line feed")
    text = text.removesuffix("\n")
    columns = text.split()
    if not columns:
        return None, [*problems, "an empty line"]

    joined = " ".join(columns)
    if text != joined or not text.isprintable():
        problems.append(
            "not six columns with single spaces between them: a tab, carriage return, byte order mark or the like"
        )
    row, row_problems = parse_row(joined.removeprefix("\ufeff"), number)
    return row, problems + row_problems


def _check_values(rows: Iterable[RunRow], task: Task) -> Iterator[RunProblem]:
    """Yield the problems of tags, labels and document ids, each row for itself."""
    kind = get_kind(task)
    known_labels = ", ".join(task.run_labels)
    for row in rows:
        if " " in row.tag:
            columns = 5 + len(row.tag.split())
            problem = f"{columns} columns, not six: a tag must not hold white space ({row.tag!r})"
            yield RunProblem(row.line, problem)

        if row.stance not in task.run_labels:
            yield RunProblem(row.line, f"stance {row.stance!r} is none of {known_labels}")

        id_problem = kind.find_id_problem(row.document)
        if id_problem is not None:
            yield RunProblem(row.line, f"document {row.document!r}: {id_problem}")


def _check_repetitions(rows: Iterable[RunRow]) -> Iterator[RunProblem]:
    """Yield the rows with a document that its topic has in a line above."""
    first_lines: dict[tuple[str, str], int] = {}
    for row in rows:
        first_line = first_lines.setdefault((row.topic, row.document), row.line)
        if first_line != row.line:
            problem = f"document {row.document} is already in line {first_line}"
            yield RunProblem(row.line, f"topic {row.topic}: {problem}")


def _check_lengths(rows: Iterable[RunRow], max_lines: int) -> Iterator[RunProblem]:
    """Yield the first row of each topic that is one too many."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.topic] += 1
        if counts[row.topic] == max_lines + 1:
            problem = f"more than {max_lines} lines; this is the first too many"
            yield RunProblem(row.line, f"topic {row.topic}: {problem}")


def _check_tags(rows: Sequence[RunRow]) -> Iterator[RunProblem]:
    """Yield the rows with another tag than the first one."""
    if not rows:
        return
    first = rows[0]
    for row in rows:
        if row.tag != first.tag:
            yield RunProblem(
                row.line,
                f"tag {row.tag!r} differs from {first.tag!r} in line {first.line}; a run has one tag",
            )


def _check_topics(rows: Iterable[RunRow], topic_ids: Collection[str]) -> Iterator[RunProblem]:
    """Yield the first line of each topic that is not a known one."""
    first_lines: dict[str, int] = {}
    for row in rows:
        first_lines.setdefault(row.topic, row.line)
    for topic, line in first_lines.items():
        if topic not in topic_ids:
            yield RunProblem(line, f"topic {topic} is not in the topics file")


def _check_documents(
    rows: Sequence[RunRow], unknown_documents: Callable[[Iterable[str]], list[str]]
) -> Iterator[RunProblem]:
    """Yield the rows with a document that the corpus lacks."""
    documents = dict.fromkeys(row.document for row in rows)
    unknown = set(unknown_documents(documents))
    for row in rows:
        if row.document in unknown:
            yield RunProblem(row.line, f"document {row.document} is not in the corpus")


def _check_orders(rows: Iterable[RunRow]) -> Iterator[RunProblem]:
    """Yield the problems of ranks and scores, topic by topic."""
    rankings: dict[str, list[RunRow]] = {}
    for row in rows:
        rankings.setdefault(row.topic, []).append(row)
    for ranking in rankings.values():
        yield from _check_ranks(ranking)
        yield from _check_scores(ranking)


def _check_ranks(ranking: Iterable[RunRow]) -> Iterator[RunProblem]:
    """Yield the rows of a topic whose ranks do not count up from 1 without gaps.

    A jump is reported once, not in every line after it.
    """
    expected = 1
    for position, row in enumerate(ranking, start=1):
        rank = expected if row.rank is None else row.rank
        if rank != expected:
            problem = f"rank {rank}, expected {expected}"
            if position == 1:
                problem = f"ranks begin at {rank}, not at 1"
            yield RunProblem(row.line, f"topic {row.topic}: {problem}")
        expected = rank + 1


def _check_scores(ranking: Iterable[RunRow]) -> Iterator[RunProblem]:
    """Yield the rows of a topic whose score is not below that of the row above."""
    scored = [(row, row.score) for row in ranking if row.score is not None]
    for (above, score_above), (row, score) in pairwise(scored):
        problem = _compare_scores(score, score_above, above.line)
        if problem is not None:
            yield RunProblem(row.line, f"topic {row.topic}: {problem}")


def _compare_scores(score: float, score_above: float, line_above: int) -> str | None:
    """Return the problem of a score that is not below the one above it; None if it is."""
    if score > score_above:
        return f"score {score:.9g} is above that of line {line_above} ({score_above:.9g})"

    ties = f"score {score:.9g} ties with line {line_above}; evaluators break ties by id"
    if score == score_above:
        return ties
    if np.float32(score) == np.float32(score_above):
        return f"{ties} and hold scores in single precision"
    return None
