"""Runs in TREC format: written strictly, read from any tool."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from touche_llm.data.files import open_atomic
from touche_llm.data.lines import (
    ID_FORM,
    MAX_LINE,
    check_line_number,
    is_word,
    parse_json_object,
    read_lines,
    read_table_lines,
)
from touche_llm.data.records import Candidate, RunLine
from touche_llm.errors import BadLine, DataError

# Scores are written with this many decimals; equal ones are parted by one unit of the last.
DECIMALS = 6
# Python would also take other digits and underscores, evaluators do not.
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_LARGEST_SCORE = 1e30
# What stands in the stance column of a run without stances.
NO_STANCE_COLUMN = "Q0"


def make_strictly_decreasing(scores: list[float]) -> list[float]:
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
    with open_atomic(path) as stream:
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
    scores = make_strictly_decreasing([candidate.score for candidate in candidates])
    return [
        RunLine(each.topic_id, NO_STANCE_COLUMN, each.document_id, each.rank, score, tag)
        for each, score in zip(candidates, scores, strict=True)
    ]


class _Row(NamedTuple):
    line: int
    topic: str
    stance: str
    document: str
    rank: int | None
    score: float | None


@dataclass(frozen=True, slots=True)
class ParsedRun:
    """A run as it was read.

    Attributes:
        rankings: by topic, in the order of the file.
        stances: what stands in the stance column, by topic and document, where it is not `Q0`.
    """

    rankings: dict[str, list[Candidate]]
    stances: dict[tuple[str, str], str]


def read_candidates(path: Path, depth: int) -> dict[str, list[Candidate]]:
    """The first `depth` candidates of each topic of a run that any tool wrote; topics in the order of the file.

    Columns are parted by any white space, the second is not looked at, a tag may hold spaces, ranks may begin
    anywhere. The order is that of the rank column, and the ranks that come back count from 1. A file whose name ends
    in `.jsonl` or `.jsonl.gz` is read as TIRA's `rerank.jsonl`; a topic whose lines have no rank and no score keeps
    their order, and its scores fall by one from the number of its lines.

    Raises:
        DataError: a line that is no run line, a document twice in a topic, scores that grow along the ranks (the
            rank column and the scores name two orders then), two documents of equal rank and score (there is no order
            then but that of their names), or a topic of which only some lines have rank and score. Names file and line.
    """
    return {topic: candidates[:depth] for topic, candidates in read_run(path).rankings.items()}


def read_run(path: Path | str, labels: Collection[str] | None = None) -> ParsedRun:
    """A run that any tool wrote, whole, with its stances; read as `read_candidates` reads it.

    Args:
        path: the file; a `rerank.jsonl` has no stances.
        labels: the stances that may stand in the second column, beside `Q0`; None: any word may.

    Raises:
        DataError: as `read_candidates`, and for a stance that is none of the labels.
    """
    path = Path(path)
    rows = _rerank_rows(path) if path.name.endswith((".jsonl", ".jsonl.gz")) else _run_rows(path)
    topics: dict[str, list[_Row]] = {}
    seen: dict[tuple[str, str], int] = {}
    stances: dict[tuple[str, str], str] = {}
    for row in rows:
        key = row.topic, row.document
        if key in seen:
            raise DataError(f"{_where(path, row)}: already in line {seen[key]}")
        seen[key] = row.line
        topics.setdefault(row.topic, []).append(row)
        if row.stance == NO_STANCE_COLUMN:
            continue
        if labels is not None and row.stance not in labels:
            raise DataError(
                f"{_where(path, row)}: stance {row.stance!r:.40} is none of {', '.join(labels)}; correct it, or write "
                f"{NO_STANCE_COLUMN} where there is none"
            )
        stances[key] = row.stance
    if not topics:
        raise DataError(f"{path}: an empty run")
    return ParsedRun({topic: _ordered(path, topic, rows) for topic, rows in topics.items()}, stances)


def _where(path: Path, row: _Row) -> str:
    return f"{path}:{row.line}: topic {row.topic:.80}, document {row.document:.80}"


def _run_rows(path: Path) -> Iterator[_Row]:
    for number, text in read_table_lines(path, "a run"):
        if text.strip():
            yield _columns(path, number, text)


def _rerank_rows(path: Path) -> Iterator[_Row]:
    for line, raw in read_lines(path, MAX_LINE):
        check_line_number(path, line, "a run")
        try:
            record = parse_json_object(raw, path, line)
        except BadLine as error:
            # Lines of a corpus can be left out, those of a run cannot.
            raise DataError(str(error)) from error
        topic, document, rank, score = (record.get(key) for key in ("qid", "docno", "rank", "score"))
        if type(topic) is int:
            topic = str(topic)  # data frames turn digits into numbers
        if not is_word(topic):
            raise DataError(f"{path}:{line}: `qid` must be {ID_FORM}, not {topic!r:.80}")
        if not is_word(document):
            raise DataError(f"{path}:{line}: topic {topic:.80}: `docno` must be {ID_FORM}, not {document!r:.80}")
        where = f"{path}:{line}: topic {topic:.80}, document {document:.80}"
        if rank is not None and type(rank) is not int:
            raise DataError(f"{where}: rank {rank!r:.40} is not an integer")
        if score is not None and (type(score) not in (int, float) or abs(score) > _LARGEST_SCORE):
            raise DataError(f"{where}: score {score!r:.40} is not a finite number")
        if (rank is None) != (score is None):
            raise DataError(f"{where}: has only one of `rank` and `score`")
        yield _Row(line, topic, NO_STANCE_COLUMN, document, rank, None if score is None else float(score))


def parse_rank(text: str) -> int | None:
    """The rank that a run's column holds, or None."""
    return int(text) if _INTEGER.fullmatch(text) else None


def parse_score(text: str) -> float | None:
    """The score that a run's column holds, or None; a number beyond single precision is none to evaluators."""
    score = float(text) if _NUMBER.fullmatch(text) else None
    return score if score is not None and abs(score) <= _LARGEST_SCORE else None


def _columns(path: Path, number: int, text: str) -> _Row:
    columns = text.split()
    if len(columns) < 6:
        raise DataError(f"{path}:{number}: {len(columns)} columns, a run has six: qid Q0 doc rank score tag")
    rank, score = parse_rank(columns[3]), parse_score(columns[4])
    if rank is None:
        raise DataError(f"{path}:{number}: rank {columns[3]!r:.40} is not an integer")
    if score is None:
        raise DataError(f"{path}:{number}: score {columns[4]!r:.40} is not a finite number")
    return _Row(number, columns[0], columns[1], columns[2], rank, score)


def _ordered(path: Path, topic: str, rows: list[_Row]) -> list[Candidate]:
    ranked = [
        (row.rank, row.score, row.document, row.line) for row in rows if row.rank is not None and row.score is not None
    ]
    if not ranked:
        ranked = [(n, float(len(rows) - n), row.document, row.line) for n, row in enumerate(rows)]
    elif len(ranked) < len(rows):
        number = next(row.line for row in rows if row.rank is None)
        raise DataError(
            f"{path}:{number}: topic {topic:.80}: no rank and score, but other lines of the topic have them"
        )
    ranked.sort(key=lambda row: (row[0], -row[1], row[2]))
    for before, after in zip(ranked, ranked[1:], strict=False):
        where = f"{path}:{after[3]}: topic {topic:.80}, document {after[2]:.80}"
        if after[1] > before[1]:
            raise DataError(
                f"{where}: rank {after[0]} scores higher ({after[1]:g}) than rank {before[0]} ({before[1]:g}, line "
                f"{before[3]}); make the ranks and the scores agree"
            )
        if after[:2] == before[:2]:
            raise DataError(
                f"{where}: rank {after[0]} and score {after[1]:g} are those of line {before[3]} too, which gives no "
                "order; give each document a rank of its own"
            )
    return [Candidate(topic, row[2], rank, row[1]) for rank, row in enumerate(ranked, start=1)]
