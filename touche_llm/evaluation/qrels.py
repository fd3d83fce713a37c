"""Judgments of people: files that say what is right."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from touche_llm.data.lines import ID_FORM, is_word, read_table_lines
from touche_llm.data.records import HIGHEST_GRADE
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task

# What is no argument at all has the grade -2.
LOWEST_GRADE = -2
# The aspect whose qrels hold words.
STANCE = "stance"
# Means of several judges have decimals; evaluators take integers, so that the number of decimals is bounded.
GRADE_DECIMALS = 3
_GRADE = re.compile(rf"[+-]?[0-9]{{1,2}}(?:\.[0-9]{{0,{GRADE_DECIMALS}}}0{{0,20}})?")

ValueT = TypeVar("ValueT", str, float)
# {topic id: {document id: grade}}
Grades = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Gap:
    """What one aspect's qrels lack and another's have.

    Attributes:
        aspect: whose qrels lack something.
        topics: that they do not have at all.
        documents: `(topic id, document id)` that they do not have, of topics that they have.
    """

    aspect: str
    topics: list[str]
    documents: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Qrels:
    """The judgments of a task, all aspects together.

    Attributes:
        grades: of each aspect that is graded, by topic and document, in the order of the files; -2 to 3.
        stances: the true labels, by topic and document; empty where none were given.
        labels: the task's stances, in its order.
        repeated: for each aspect with such lines, how many say again what an earlier one says.
        gaps: for each aspect that lacks something that another has, what; in the order of the aspects.
        judged_topics: All topics that the file of each aspect judges, also where `only` left some out.
    """

    grades: dict[str, Grades]
    stances: dict[str, dict[str, str]]
    labels: tuple[str, ...]
    repeated: dict[str, int]
    gaps: list[Gap]
    judged_topics: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.judged_topics:
            self.judged_topics.update({aspect: frozenset(judged) for aspect, judged in self.grades.items()})
            self.judged_topics.update({STANCE: frozenset(self.stances)} if self.stances else {})

    def restrict_to(self, topics: Collection[str]) -> Qrels:
        """The judgments of these topics alone; aspects that have none of them stay, without a topic."""
        return replace(
            self,
            grades={aspect: _chosen(judged, topics) for aspect, judged in self.grades.items()},
            stances=_chosen(self.stances, topics),
        )

    def notes(self) -> list[str]:
        """What people should know of the files: repeated lines, and topics or documents that not all of them have."""
        said = [f"{aspect} qrels: {lines} lines say again what others say" for aspect, lines in self.repeated.items()]
        for gap in self.gaps:
            if gap.topics:
                said.append(f"{gap.aspect} qrels: lack topics that other qrels have: {shorten(gap.topics)}")
            if gap.documents:
                pairs = [f"topic {topic} document {document}" for topic, document in gap.documents]
                said.append(f"{gap.aspect} qrels: lack documents that other qrels have: {shorten(pairs)}")
        return said


def _chosen(judged: dict[str, dict[str, ValueT]], topics: Collection[str]) -> dict[str, dict[str, ValueT]]:
    return {topic: documents for topic, documents in judged.items() if topic in topics}


def read_qrels(files: Mapping[str, Path | str], task: Task | str) -> Qrels:
    """The judgments of several files, joined.

    Args:
        files: the file of each aspect: of grades, named as the task's judge prompt names them, and of `stance`.
        task: has the aspects and the labels; also its name.

    Raises:
        UsageError: no file, or an aspect that the task does not have.
        DataError: as `read_grades` and `read_stances`.
    """
    if isinstance(task, str):
        task = get_task(task)
    paths = {aspect: Path(file) for aspect, file in files.items()}
    aspects = (*task.question.grades, STANCE)
    if not files:
        raise UsageError(f"no qrels are given; give those of {', '.join(aspects)}, one of them at least")
    if unknown := [aspect for aspect in files if aspect not in aspects]:
        raise UsageError(f"{task.name} has no judgments of {', '.join(unknown)}, but of {', '.join(aspects)}")
    repeated: dict[str, int] = {}
    grades: dict[str, Grades] = {}
    stances: dict[str, dict[str, str]] = {}
    for aspect in aspects:
        if aspect not in files:
            continue
        if aspect == STANCE:
            stances, again = _read(paths[aspect], "stance", "label", partial(_label, task=task))
        else:
            grades[aspect], again = _read(paths[aspect], "grade", "grade", _grade)
        if again:
            repeated[aspect] = again
    pools = {aspect: {topic: set(judged) for topic, judged in each.items()} for aspect, each in grades.items()}
    if stances:
        pools[STANCE] = {topic: set(judged) for topic, judged in stances.items()}
    return Qrels(grades, stances, task.stances, repeated, _gaps(pools))


def read_grades(path: Path) -> Grades:
    """Graded judgments: {topic id: {document id: grade}}, both in the order of the file.

    A line is `qid 0 doc grade`, read as `read_stances` reads it; a grade is a number from -2 to 3 with three decimals
    at most.

    Raises:
        DataError: as `read_stances`, with grades for labels.
    """
    return _read(path, "grade", "grade", _grade)[0]


def read_stances(path: Path, task: Task) -> dict[str, dict[str, str]]:
    """The true stances: {topic id: {document id: label}}, both in the order of the file.

    A line is `qid 0 doc LABEL`, parted by any white space; the second column is not looked at, empty lines are passed
    over, and a line that says again what another says is taken. The file may be gzipped.

    Raises:
        DataError: the file cannot be read or holds no line, or a line that is too long, not UTF-8, has another number
            of columns, an id that cannot be printed, a label that the task does not have, or one for a document that
            has another label already. Names file and line.
    """
    return _read(path, "stance", "label", partial(_label, task=task))[0]


def _label(text: str, task: Task) -> str:
    if text not in task.stances:
        raise ValueError(
            f"{text!r:.40} is no stance of {task.name} ({', '.join(task.stances)}); give the stance qrels of this task"
        )
    return text


def _grade(text: str) -> float:
    grade = float(text) if _GRADE.fullmatch(text) else None
    if grade is None or not LOWEST_GRADE <= grade <= HIGHEST_GRADE:
        raise ValueError(
            f"{text!r:.40} is no grade: a number from {LOWEST_GRADE} to {HIGHEST_GRADE} with at most "
            f"{GRADE_DECIMALS} decimals; correct it, or give the graded qrels"
        )
    return grade


def _read(
    path: Path, what: str, column: str, parse: Callable[[str], ValueT]
) -> tuple[dict[str, dict[str, ValueT]], int]:
    """The values of a file, and how many of its lines say again what others say; `parse` raises ValueError."""
    found: dict[str, dict[str, ValueT]] = {}
    lines: dict[tuple[str, str], int] = {}
    repeated = 0
    for number, row in read_table_lines(path, "a file of qrels"):
        columns = row.split()
        if not columns:
            continue
        if len(columns) != 4:
            raise DataError(f"{path}:{number}: {len(columns)} columns, qrels have four: qid 0 doc {column}")
        topic, _, document, text = columns
        for name, identifier in (("topic", topic), ("document", document)):
            if not is_word(identifier):
                raise DataError(f"{path}:{number}: {name} {identifier!r:.80}: an id must be {ID_FORM}; correct it")
        where = f"{path}:{number}: topic {topic}, document {document}"
        try:
            value = parse(text)
        except ValueError as error:
            raise DataError(f"{where}: {error}") from error
        line = lines.setdefault((topic, document), number)
        before = found.setdefault(topic, {}).setdefault(document, value)
        if before != value:
            raise DataError(f"{where}: {value}, but {before} in line {line}; leave one of them out")
        repeated += line != number
    if not found:
        raise DataError(f"{path}: no {what} in this file")
    return found, repeated


def _gaps(pools: Mapping[str, Mapping[str, set[str]]]) -> list[Gap]:
    # Dictionaries keep the order of the files.
    everything: dict[str, dict[str, None]] = {}
    for pool in pools.values():
        for topic, judged in pool.items():
            everything.setdefault(topic, {}).update(dict.fromkeys(sorted(judged)))
    gaps = []
    for aspect, pool in pools.items():
        topics = [topic for topic in everything if topic not in pool]
        documents = [
            (topic, document) for topic in pool for document in everything[topic] if document not in pool[topic]
        ]
        if topics or documents:
            gaps.append(Gap(aspect, topics, documents))
    return gaps
