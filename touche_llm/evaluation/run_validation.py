"""Validation of run files by the rules of the organisers and evaluators: every problem, with its line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from touche_llm.data.io import MAX_TABLE_LINE, read_bounded_lines, report_unreadable
from touche_llm.data.trec_runs import RunRow, parse_row
from touche_llm.errors import to_printable
from touche_llm.judging.sentence_pairs import describe_pair_problem
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

    Topics are checked if the known ones are given, and documents if `unknown_documents` is, which
    returns those of the given ids that the corpus lacks.
    """
    rows: list[RunRow] = []
    problems: list[tuple[int, str]] = []
    with report_unreadable(path), path.open("rb") as stream:
        for number, raw in read_bounded_lines(stream, MAX_TABLE_LINE):
            if len(problems) > _MAX_PROBLEMS:
                problems.append((number, "too many problems; the rest is not checked"))
                break
            problems += [(number, message) for message in _check_line(raw, number, rows)]
    if not rows and not problems:
        return [RunProblem(0, "the file is empty")]
    complete = [row for row in rows if row.tag]
    problems += [*_check_values(complete, task), *_check_orders(rows)]
    if topic_ids is not None:
        first_lines = {row.topic: row.line for row in reversed(complete)}
        problems += [
            (line, f"topic {topic} is not in the topics file")
            for topic, line in first_lines.items()
            if topic not in topic_ids
        ]
    if unknown_documents is not None:
        missing = set(unknown_documents(dict.fromkeys(row.document for row in complete)))
        problems += [
            (row.line, f"document {row.document} is not in the corpus")
            for row in complete
            if row.document in missing
        ]
    return sorted(RunProblem(line, to_printable(message)) for line, message in problems)


def _check_line(raw: bytes, number: int, rows: list[RunRow]) -> Iterator[str]:
    """Yield the problems of a line's form, and add its row."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        yield "not UTF-8"
        return
    if len(raw) > MAX_TABLE_LINE:
        yield f"longer than {MAX_TABLE_LINE:,} bytes"
        return
    if not text.endswith("\n"):
        yield "the last line does not end with a line feed"
    text = text.removesuffix("\n")
    columns = text.split()
    if not columns:
        yield "an empty line"
        return
    if text != " ".join(columns) or not text.isprintable():
        yield "not six columns with single spaces between them: a tab, carriage return, byte order mark or the like"
    row, found = parse_row(" ".join(columns).removeprefix("\ufeff"), number)
    rows.append(row)
    yield from found


def _check_values(rows: Iterable[RunRow], task: Task) -> Iterator[tuple[int, str]]:
    """Yield problems of labels, documents, limits and tags in rows of six columns."""
    first_lines: dict[tuple[str, str], int] = {}
    lines: dict[str, int] = {}
    tag, most = None, task.documents_per_topic.max
    for row in rows:
        if " " in row.tag:
            yield (
                row.line,
                f"{5 + len(row.tag.split())} columns, not six: a tag must not hold white space ({row.tag!r})",
            )
        if row.stance not in task.run_labels:
            yield row.line, f"stance {row.stance!r} is none of {', '.join(task.run_labels)}"
        if task.sentence_question is not None and (problem := describe_pair_problem(row.document)):
            yield row.line, f"document {row.document!r}: {problem}"
        first = first_lines.setdefault((row.topic, row.document), row.line)
        if first != row.line:
            yield row.line, f"topic {row.topic}: document {row.document} is already in line {first}"
        lines[row.topic] = lines.get(row.topic, 0) + 1
        if lines[row.topic] == most + 1:
            yield row.line, f"topic {row.topic}: more than {most} lines; this is the first too many"
        tag = tag or row
        if row.tag != tag.tag:
            yield (
                row.line,
                f"tag {row.tag!r} differs from {tag.tag!r} in line {tag.line}; a run has one tag",
            )


def _check_orders(rows: Iterable[RunRow]) -> Iterator[tuple[int, str]]:
    """Yield problems of ranks that do not count 1, 2, 3, … and of scores that do not decrease."""
    rankings: dict[str, list[RunRow]] = {}
    for row in rows:
        rankings.setdefault(row.topic, []).append(row)
    for topic, ranking in rankings.items():
        shift = 0
        for position, row in enumerate(ranking, start=1):
            if row.rank is None or row.rank == position + shift:
                continue
            expected = (
                "ranks begin at {}, not at 1"
                if position == 1
                else f"rank {{}}, expected {position + shift}"
            )
            yield row.line, f"topic {topic}: {expected.format(row.rank)}"
            # Report a jump once, not in every line after it.
            shift = row.rank - position
        scored = [(row.line, row.score) for row in ranking if row.score is not None]
        for (above, higher), (number, score) in pairwise(scored):
            if score > higher:
                yield (
                    number,
                    f"topic {topic}: score {score:.9g} is above that of line {above} ({higher:.9g})",
                )
            elif np.float32(score) == np.float32(higher):
                ties = f"topic {topic}: score {score:.9g} ties with line {above}; evaluators break ties by id"
                yield (
                    number,
                    ties + ("" if score == higher else " and hold scores in single precision"),
                )
