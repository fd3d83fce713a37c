"""Judgments of people: files that say what is right."""

from __future__ import annotations

from pathlib import Path

from touche_llm.corpus.passages import corpus_lines
from touche_llm.errors import DataError
from touche_llm.tasks.base import Task

# Bytes of a line: four short columns.
MAX_LINE = 10_000


def read_stances(path: Path, task: Task) -> dict[str, dict[str, str]]:
    """The true stances: {topic id: {document id: label}}, both in the order of the file.

    A line is `qid 0 doc LABEL`, parted by any white space; the second column is not looked at, empty lines are passed
    over, and a line that says again what another says is taken. The file may be gzipped.

    Raises:
        DataError: the file cannot be read or holds no line, or a line that is too long, not UTF-8, has another number
            of columns, a label that the task does not have, or one for a document that has another label already.
            Names file and line.
    """
    found: dict[str, dict[str, str]] = {}
    lines: dict[tuple[str, str], int] = {}
    for number, raw in corpus_lines(path, MAX_LINE):
        if len(raw) > MAX_LINE:
            raise DataError(f"{path}:{number}: longer than {MAX_LINE:,} bytes; this is no line of qrels")
        try:
            columns = raw.decode("utf-8-sig" if number == 1 else "utf-8").split()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: not UTF-8: {error.reason}") from error
        if not columns:
            continue
        if len(columns) != 4:
            raise DataError(f"{path}:{number}: {len(columns)} columns, qrels have four: qid 0 doc label")
        topic, _, document, label = columns
        if label not in task.stances:
            raise DataError(
                f"{path}:{number}: topic {topic}, document {document}: {label!r:.40} is no stance of {task.name} "
                f"({', '.join(task.stances)}); give the stance qrels of this task"
            )
        before = found.setdefault(topic, {}).setdefault(document, label)
        line = lines.setdefault((topic, document), number)
        if before != label:
            raise DataError(
                f"{path}:{number}: topic {topic}, document {document}: {label}, but {before} in line {line}; "
                "leave one of them out"
            )
    if not found:
        raise DataError(f"{path}: no stance in this file")
    return found
