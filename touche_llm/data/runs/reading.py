"""Run files, read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from touche_llm.data.files import (
    ID_FORM,
    MAX_LINE,
    is_word,
    parse_record,
    read_lines,
    read_table_lines,
)
from touche_llm.data.recognize import require_kind
from touche_llm.data.records import Candidate, JsonStruct
from touche_llm.data.runs.writing import NO_STANCE_COLUMN
from touche_llm.errors import DataError

# Python also accepts underscores and non-ASCII digits, evaluators do not.
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_MAX_SCORE = 1e30


class RunRow(NamedTuple):
    """Row of a run file; rank and score are None if they are missing or invalid."""

    line: int
    topic: str
    stance: str
    document: str
    rank: int | None
    score: float | None
    tag: str = ""


@dataclass(frozen=True, slots=True)
class ParsedRun:
    """Content of a run file.

    Attributes:
        stances: By topic and document; `Q0` is left out.
        chosen_topics: Ids of the topics that were chosen for the run, with those that it lost; None
            if none were chosen or nothing is known of it, as of a file alone.
    """

    rankings: dict[str, list[Candidate]]
    stances: dict[tuple[str, str], str]
    chosen_topics: Collection[str] | None = field(default=None, kw_only=True)


def read_candidates(path: Path, depth: int | None = None) -> dict[str, list[Candidate]]:
    """Read the first `depth` candidates of each topic, or all, from the run of any tool.

    See `read_run`.
    """
    return {topic: candidates[:depth] for topic, candidates in read_run(path).rankings.items()}


def read_run(path: Path | str, labels: Collection[str] | None = None) -> ParsedRun:
    """Read the run of any tool: candidates by topic, in the order of the file, sorted by rank, with ranks from 1.

    Columns are separated by any white space, a tag may contain spaces, and ranks may begin with any
    number. A `.jsonl` or `.jsonl.gz` file is read as TIRA's `rerank.jsonl`, which has no stances;
    in a topic without ranks and scores, documents keep their order, and scores fall by one from the
    number of documents. `labels` are the valid stances beside `Q0`; None accepts any word.
    """
    path = Path(path)
    require_kind(path, "run", "rerank")
    rows = (
        _read_rerank_rows(path)
        if path.name.endswith((".jsonl", ".jsonl.gz"))
        else _read_run_rows(path)
    )
    topics: dict[str, list[RunRow]] = {}
    seen: dict[tuple[str, str], int] = {}
    stances: dict[tuple[str, str], str] = {}
    for row in rows:
        key = row.topic, row.document
        if key in seen:
            raise DataError(f"{_locate(path, row)}: already in line {seen[key]}")
        seen[key] = row.line
        topics.setdefault(row.topic, []).append(row)
        if row.stance == NO_STANCE_COLUMN:
            continue
        if labels is not None and row.stance not in labels:
            expected = ", ".join((*labels, NO_STANCE_COLUMN))
            raise DataError(
                f"{_locate(path, row)}: stance {row.stance!r:.40}; expected one of {expected} (no stance)"
            )
        stances[key] = row.stance
    if not topics:
        raise DataError(f"{path}: an empty run")
    return ParsedRun({topic: _rank_rows(path, rows) for topic, rows in topics.items()}, stances)


def _locate(path: Path, row: RunRow) -> str:
    return f"{path}:{row.line}: topic {row.topic:.80}, document {row.document:.80}"


def _read_run_rows(path: Path) -> Iterator[RunRow]:
    for number, text in read_table_lines(path, "a run"):
        if text.strip():
            row, problems = parse_row(text, number)
            if problems:
                raise DataError(f"{path}:{number}: {problems[0]}")
            yield row


def parse_row(text: str, line: int) -> tuple[RunRow, list[str]]:
    """Parse a line of a run with any white space between its columns.

    Return its row and all problems.
    """
    columns = text.split()
    topic, stance, document, *numbers = columns[:5] + [""] * (5 - len(columns))
    rank = int(numbers[0]) if _INTEGER.fullmatch(numbers[0]) else None
    score = float(numbers[1]) if _NUMBER.fullmatch(numbers[1]) else None
    score = score if score is not None and abs(score) <= _MAX_SCORE else None
    row = RunRow(line, topic, stance, document, rank, score, " ".join(columns[5:]))
    if len(columns) < 6:
        return row, [f"{len(columns)} columns, not six: qid stance doc rank score tag"]
    problems = [] if rank is not None else [f"rank {numbers[0]!r:.40} is not an integer"]
    return row, problems if score is not None else [
        *problems,
        f"score {numbers[1]!r:.40} is not a finite number",
    ]


class _RerankLine(JsonStruct, frozen=True, forbid_unknown_fields=False):
    qid: str | int  # data frames turn digits into numbers
    docno: str
    rank: int | None = None
    score: Annotated[float, msgspec.Meta(ge=-_MAX_SCORE, le=_MAX_SCORE)] | None = None


def _read_rerank_rows(path: Path) -> Iterator[RunRow]:
    for number, raw in read_lines(path, MAX_LINE):
        line = parse_record(raw, _RerankLine, f"{path}:{number}", f"a line of {path.name}")
        row = RunRow(number, str(line.qid), NO_STANCE_COLUMN, line.docno, line.rank, line.score)
        if not (is_word(row.topic) and is_word(row.document)):
            raise DataError(f"{_locate(path, row)}: `qid` and `docno` must each be {ID_FORM}")
        yield row


def _rank_rows(path: Path, rows: list[RunRow]) -> list[Candidate]:
    if all(row.rank is None and row.score is None for row in rows):
        return [
            Candidate(row.topic, row.document, n, len(rows) - n + 1.0)
            for n, row in enumerate(rows, start=1)
        ]
    ranked: list[tuple[int, float, RunRow]] = []
    for row in rows:
        if row.rank is None or row.score is None:
            raise DataError(
                f"{_locate(path, row)}: no rank or score, but the lines of the topic have them"
            )
        ranked.append((row.rank, -row.score, row))
    ranked.sort()
    for before, after in pairwise(ranked):
        if after[1] < before[1] or after[:2] == before[:2]:
            raise DataError(
                f"{_locate(path, after[2])}: rank {after[0]} and score {-after[1]:g} follow rank {before[0]} and score "
                f"{-before[1]:g} (line {before[2].line}); make ranks and scores agree, and each rank unique"
            )
    return [
        Candidate(row.topic, row.document, n, -score)
        for n, (_, score, row) in enumerate(ranked, start=1)
    ]
