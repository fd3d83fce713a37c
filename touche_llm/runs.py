"""Runs in TREC format: written strictly, read from any tool."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from touche_llm.errors import DataError
from touche_llm.files import bounded_lines, whole_file
from touche_llm.records import Candidate, RunLine

# Scores are written with this many decimals; equal ones are parted by one unit of the last.
DECIMALS = 6
# Bytes of a run line, in any file: six short columns.
MAX_LINE = 10_000
# Python would also take other digits and underscores, evaluators do not.
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_LARGEST_SCORE = 1e30
_NO_STANCE_COLUMN = "Q0"


def strictly_decreasing(scores: list[float]) -> list[float]:
    """Scores in ranking order, rounded to six decimals and lowered where needed so that each is below the one before.

    Evaluators order by score and break ties by document id, whatever the rank column says, and trec_eval holds scores
    in single precision: the scores that come back differ in single precision too.
    """
    result: list[float] = []
    for score in scores:
        value = round(score, DECIMALS)
        if result:
            above = np.float32(result[-1])
            step = max(1.0 / 10**DECIMALS, float(np.spacing(np.abs(above))))
            while np.float32(value) >= above:
                value = round(result[-1] - step, DECIMALS)
                step *= 2
        result.append(value)
    return result


def write_run(path: Path, lines: Iterable[RunLine]) -> None:
    """Write `qid stance doc rank score tag` lines, single spaces, whole or not at all."""
    with whole_file(path) as stream:
        for line in lines:
            columns = (
                line.topic_id,
                line.stance,
                line.document_id,
                str(line.rank),
                f"{line.score:.{DECIMALS}f}",
                line.tag,
            )
            stream.write((" ".join(columns) + "\n").encode())


def write_candidates(path: Path, candidates: Iterable[list[Candidate]], tag: str) -> None:
    """Write a first stage as a run with `Q0` in the second column."""
    write_run(path, (line for topic in candidates for line in _candidate_lines(topic, tag)))


def _candidate_lines(candidates: list[Candidate], tag: str) -> list[RunLine]:
    scores = strictly_decreasing([candidate.score for candidate in candidates])
    return [
        RunLine(each.topic_id, _NO_STANCE_COLUMN, each.document_id, each.rank, score, tag)
        for each, score in zip(candidates, scores, strict=True)
    ]


def read_candidates(path: Path, depth: int) -> dict[str, list[Candidate]]:
    """The first `depth` candidates of each topic of a run that any tool wrote; topics in the order of the file.

    Columns are parted by any white space, the second is not looked at, a tag may hold spaces, ranks may begin
    anywhere. The order is that of the rank column, and the ranks that come back count from 1.

    Raises:
        DataError: a line that is no run line, a document twice in a topic, or scores that grow along the ranks (the
            rank column and the scores name two orders then). Names file and line.
    """
    topics: dict[str, list[tuple[int, float, str, int]]] = {}
    seen: dict[tuple[str, str], int] = {}
    try:
        with path.open("rb") as stream:
            for number, raw in bounded_lines(stream, MAX_LINE):
                if len(raw) > MAX_LINE:
                    raise DataError(f"{path}:{number}: longer than {MAX_LINE:,} bytes; this is no run line")
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}:{number}: not UTF-8: {error.reason}") from error
                if not text.strip():
                    continue
                topic, document, rank, score = _columns(path, number, text)
                if (topic, document) in seen:
                    raise DataError(
                        f"{path}:{number}: topic {topic}, document {document}: already in line {seen[topic, document]}"
                    )
                seen[topic, document] = number
                topics.setdefault(topic, []).append((rank, score, document, number))
    except OSError as error:
        raise DataError(f"{path}: cannot read the run: {error.strerror}") from error
    if not topics:
        raise DataError(f"{path}: an empty run")
    return {topic: _ordered(path, topic, rows)[:depth] for topic, rows in topics.items()}


def parse_rank(text: str) -> int | None:
    """The rank that a run's column holds, or None."""
    return int(text) if _INTEGER.fullmatch(text) else None


def parse_score(text: str) -> float | None:
    """The score that a run's column holds, or None; a number beyond single precision is none to evaluators."""
    score = float(text) if _NUMBER.fullmatch(text) else None
    return score if score is not None and abs(score) <= _LARGEST_SCORE else None


def _columns(path: Path, number: int, text: str) -> tuple[str, str, int, float]:
    columns = text.split()
    if len(columns) < 6:
        raise DataError(f"{path}:{number}: {len(columns)} columns, a run has six: qid Q0 doc rank score tag")
    rank, score = parse_rank(columns[3]), parse_score(columns[4])
    if rank is None:
        raise DataError(f"{path}:{number}: rank {columns[3]!r:.40} is not an integer")
    if score is None:
        raise DataError(f"{path}:{number}: score {columns[4]!r:.40} is not a finite number")
    return columns[0], columns[2], rank, score


def _ordered(path: Path, topic: str, rows: list[tuple[int, float, str, int]]) -> list[Candidate]:
    rows.sort(key=lambda row: (row[0], -row[1], row[2]))
    for before, after in zip(rows, rows[1:], strict=False):
        if after[1] > before[1]:
            raise DataError(
                f"{path}:{after[3]}: topic {topic}, document {after[2]}: rank {after[0]} scores higher ({after[1]:g}) "
                f"than rank {before[0]} ({before[1]:g}, line {before[3]}); make the ranks and the scores agree"
            )
    return [Candidate(topic, row[2], rank, row[1]) for rank, row in enumerate(rows, start=1)]
