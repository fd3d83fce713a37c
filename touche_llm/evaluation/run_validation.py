"""Validation of run files by the rules of the organisers and evaluators: every problem, with its line."""

from __future__ import annotations

import re
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
# First bytes of files that are not UTF-8 text.
_FOREIGN = {b"\x1f\x8b": "compressed with gzip", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"PK": "a zip archive"}


@dataclass(frozen=True, order=True, slots=True)
class RunProblem:
    """A problem in a line; line 0 stands for the whole file."""

    line: int
    message: str


@dataclass(slots=True)
class _Seen:
    """Contents of the lines read so far."""

    documents: dict[tuple[str, str], int] = field(default_factory=dict)
    rankings: dict[str, list[RunRow]] = field(default_factory=lambda: defaultdict(list))
    sizes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    tags: dict[str, int] = field(default_factory=dict)


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
            if what := _FOREIGN.get(stream.read(2)):
                return [RunProblem(1, f"the file is {what}, not UTF-8 text")]
            stream.seek(0)
            for number, raw in read_bounded_lines(stream, MAX_TABLE_LINE):
                if number > MAX_TABLE_LINES or len(problems) > MAX_PROBLEMS:
                    problems.append(
                        RunProblem(number, "too many lines or problems; the rest of the file is not checked")
                    )
                    break
                problems += [RunProblem(number, message) for message in _check_line(raw, number, seen, task)]
    except OSError as error:
        raise DataError(f"{path}: cannot read the run: {error.strerror}") from error
    if not seen.sizes and not problems:
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


def _check_line(raw: bytes, number: int, seen: _Seen, task: Task) -> Iterator[str]:
    if len(raw) > MAX_TABLE_LINE:
        yield f"longer than {MAX_TABLE_LINE:,} bytes; a run line has six short columns"
        return
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        yield f"not UTF-8: {error.reason} at byte {error.start}"
        return
    if number == 1 and text.startswith("\ufeff"):
        yield "begins with a byte order mark; write UTF-8 without one"
        text = text.removeprefix("\ufeff")
    if not text.endswith("\n"):
        yield "the last line does not end with a line feed"
    text = text.removesuffix("\n")
    if text.endswith("\r"):
        yield "ends with a carriage return; write line feeds alone"
        text = text.removesuffix("\r")
    if not text.strip():
        yield "an empty line"
        return
    yield from _check_spacing(text)
    row, found = parse_row(text, number)
    yield from found
    seen.rankings[row.topic].append(row)
    if row.tag:
        yield from _check_values(row, seen, task)


def _check_spacing(text: str) -> Iterator[str]:
    if "\t" in text:
        yield "a tab between columns; use single spaces"
    if text != text.strip():
        yield "white space at the beginning or the end of the line"
    if re.search(r"\S {2,}\S", text):
        yield "more than one space between columns"
    if not text.isprintable() and "\t" not in text:
        yield "a character that cannot be printed"


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
    seen.sizes[topic] += 1
    if seen.sizes[topic] == task.documents_per_topic.max + 1:
        yield f"topic {topic}: more than {task.documents_per_topic.max} lines; this is the first too many"
    if row.tag not in seen.tags:
        if seen.tags:
            other, line = next(iter(seen.tags.items()))
            yield f"tag {row.tag!r} differs from {other!r} in line {line}; a run has one tag"
        seen.tags[row.tag] = row.line


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
