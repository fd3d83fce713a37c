"""Validation of run files by the rules of the organisers and evaluators: every problem, with its line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from touche_llm.data.io import MAX_TABLE_LINE, MAX_TABLE_LINES, read_bounded_lines
from touche_llm.data.trec_runs import RunRow, parse_row
from touche_llm.errors import DataError, to_printable
from touche_llm.judging.sentence_pairs import describe_pair_problem
from touche_llm.tasks.task import Task

# Reading stops after this many problems.
MAX_PROBLEMS = 10_000


@dataclass(frozen=True, order=True, slots=True)
class RunProblem:
    """A problem in a line; line 0 stands for the whole file."""

    line: int
    message: str


@dataclass(slots=True)
class _Seen:
    """Contents of the lines read so far; `documents` has the first line of each topic and document."""

    documents: dict[tuple[str, str], int] = field(default_factory=dict)
    rankings: dict[str, list[RunRow]] = field(default_factory=lambda: defaultdict(list))
    tag: RunRow | None = None


def validate_run(
    path: Path,
    task: Task,
    *,
    topic_ids: Collection[str] | None = None,
    unknown_documents: Callable[[Iterable[str]], list[str]] | None = None,
) -> list[RunProblem]:
    """Return all problems of a run file, in line order; a file without problems can be submitted.

    Args:
        path: Path of the run file.
        task: Task with the labels and limits.
        topic_ids: Known topics; None to skip checking topics.
        unknown_documents: Returns the given ids that the corpus lacks; None to skip checking documents.

    Raises:
        DataError: The file cannot be read.
    """
    seen = _Seen()
    problems: list[RunProblem] = []
    try:
        with path.open("rb") as stream:
            for number, raw in read_bounded_lines(stream, MAX_TABLE_LINE):
                if number > MAX_TABLE_LINES or len(problems) > MAX_PROBLEMS:
                    problems.append(RunProblem(number, "too many lines or problems; the rest is not checked"))
                    break
                if len(raw) > MAX_TABLE_LINE:
                    problems.append(RunProblem(number, f"longer than {MAX_TABLE_LINE:,} bytes"))
                    continue
                try:
                    text = raw.decode("utf-8")
                except UnicodeDecodeError:
                    problems.append(RunProblem(number, "not UTF-8; the rest of the file is not checked"))
                    break
                problems += [RunProblem(number, message) for message in _check_line(text, number, seen, task)]
    except OSError as error:
        raise DataError(f"{path}: cannot read the run: {error.strerror}") from error
    if not seen.documents and not problems:
        return [RunProblem(0, "the file is empty")]
    problems += _check_orders(seen)
    if topic_ids is not None:
        first_lines = {topic: line for (topic, _), line in reversed(seen.documents.items())}
        problems += [
            RunProblem(line, f"topic {topic} is not in the topics file")
            for topic, line in first_lines.items()
            if topic not in topic_ids
        ]
    if unknown_documents is not None:
        missing = set(unknown_documents(document for _, document in seen.documents))
        problems += [
            RunProblem(line, f"document {document} is not in the corpus")
            for (_, document), line in seen.documents.items()
            if document in missing
        ]
    return sorted(RunProblem(problem.line, to_printable(problem.message)) for problem in problems)


def _check_line(text: str, number: int, seen: _Seen, task: Task) -> Iterator[str]:
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
    yield from found
    seen.rankings[row.topic].append(row)
    if row.tag:
        yield from _check_values(row, seen, task)


def _check_values(row: RunRow, seen: _Seen, task: Task) -> Iterator[str]:
    topic, document = row.topic, row.document
    if " " in row.tag:
        yield f"{5 + len(row.tag.split())} columns, not six: a tag must not hold white space ({row.tag!r})"
    if row.stance not in task.run_labels:
        yield f"stance {row.stance!r} is none of {', '.join(task.run_labels)}"
    if task.sentence_question is not None and (problem := describe_pair_problem(document)):
        yield f"document {document!r}: {problem}"
    first = seen.documents.setdefault((topic, document), row.line)
    if first != row.line:
        yield f"topic {topic}: document {document} is already in line {first}"
    if len(seen.rankings[topic]) == task.documents_per_topic.max + 1:
        yield f"topic {topic}: more than {task.documents_per_topic.max} lines; this is the first too many"
    seen.tag = seen.tag or row
    if row.tag != seen.tag.tag:
        yield f"tag {row.tag!r} differs from {seen.tag.tag!r} in line {seen.tag.line}; a run has one tag"


def _check_orders(seen: _Seen) -> Iterator[RunProblem]:
    """Yield problems of ranks that do not count 1, 2, 3, … and of scores that do not decrease."""
    for topic, rows in seen.rankings.items():
        shift = 0
        for position, row in enumerate(rows, start=1):
            if row.rank is None or row.rank == position + shift:
                continue
            expected = "ranks begin at {}, not at 1" if position == 1 else f"rank {{}}, expected {position + shift}"
            yield RunProblem(row.line, f"topic {topic}: {expected.format(row.rank)}")
            # Report a jump once, not in every line after it.
            shift = row.rank - position
        scored = [(row.line, row.score) for row in rows if row.score is not None]
        for (above, higher), (number, score) in zip(scored, scored[1:], strict=False):
            if score > higher:
                yield RunProblem(
                    number, f"topic {topic}: score {score:.9g} is above that of line {above} ({higher:.9g})"
                )
            elif np.float32(score) == np.float32(higher):
                ties = f"topic {topic}: score {score:.9g} ties with line {above}; evaluators break ties by id"
                yield RunProblem(number, ties + ("" if score == higher else " and hold scores in single precision"))
