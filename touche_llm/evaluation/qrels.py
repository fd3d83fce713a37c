"""Qrels, the topics that runs are measured on, and notes on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from touche_llm.data.files import ID_FORM, is_word, read_table_lines
from touche_llm.data.recognize import is_beir_header, require_kind
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import DataError, UsageError, shorten, to_printable
from touche_llm.tasks import get_task
from touche_llm.tasks.parts import Scale
from touche_llm.tasks.task import Task

# The grade -2 marks texts that are no argument.
LOWEST_GRADE = -2
# The aspect whose qrels hold labels rather than grades.
STANCE = "stance"
# Means over several assessors have decimals; evaluators take integers, so the number of decimals is
# limited.
GRADE_DECIMALS = 3
_GRADE = re.compile(rf"[+-]?[0-9]{{1,2}}(?:\.[0-9]{{0,{GRADE_DECIMALS}}}0{{0,20}})?")

ValueT = TypeVar("ValueT", str, float)
# {topic id: {document id: grade}}
Grades = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Qrels:
    """The judgments of a task, all aspects together.

    Attributes:
        grades: Grades of each graded aspect, by topic and document, in the order of the files; from
            -2 to the highest of the scale.
        stances: True labels by topic and document; empty if none were given.
        labels: Stances of the task, in its order.
        scales: Scale of each aspect of the task in human judgments.
        judged_topics: All topics that the file of each aspect judges, including those that
            `restrict_to` left out.
    """

    grades: dict[str, Grades]
    stances: dict[str, dict[str, str]]
    labels: tuple[str, ...]
    scales: Mapping[str, Scale]
    judged_topics: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.judged_topics:
            return
        for aspect in self.aspects:
            self.judged_topics[aspect] = frozenset(self.judgments_of(aspect))

    @property
    def aspects(self) -> tuple[str, ...]:
        """Judged aspects: the graded ones, then the stance."""
        return (*self.grades, STANCE) if self.stances else tuple(self.grades)

    def judgments_of(self, aspect: str) -> Mapping[str, Mapping[str, float | str]]:
        """Return the grades or true labels of an aspect, by topic and document."""
        return self.stances if aspect == STANCE else self.grades[aspect]

    def restrict_to(self, topics: Collection[str]) -> Qrels:
        """Return the judgments of these topics alone.

        An aspect without any of them stays, without topics.
        """
        grades = {aspect: _select(judged, topics) for aspect, judged in self.grades.items()}
        return replace(self, grades=grades, stances=_select(self.stances, topics))


def _select(
    judged: dict[str, dict[str, ValueT]], topics: Collection[str]
) -> dict[str, dict[str, ValueT]]:
    return {topic: documents for topic, documents in judged.items() if topic in topics}


def qrels_file(aspect: str) -> str:
    """Return the name of the file with the judgments of an aspect, where this program writes one."""
    return f"qrels-{aspect}.txt"


def find_qrels(folder: Path, task: Task) -> dict[str, Path]:
    """Return the files of a folder that are named by `qrels_file`, by aspect.

    Empty if there are none.
    """
    files = {aspect: folder / qrels_file(aspect) for aspect in task.judged_aspects}
    return {aspect: file for aspect, file in files.items() if file.is_file()}


def read_qrels(files: Mapping[str, Path | str], task: Task | str) -> Qrels:
    """Read the judgments of several files, in their order.

    A line is `qid 0 doc GRADE`, a number from -2 to the aspect's highest grade with at most three
    decimals, or `qid 0 doc LABEL` for stances, separated by any white space; the second column and
    empty lines are ignored, and lines may repeat others. BEIR's tables have no second column and
    begin with a line of names, `score` the last. A file may be gzipped.

    Args:
        files: The file of each aspect: grades, named as in the task's judge prompt, and `stance`.
        task: Task with the aspects and labels, or its name.

    Raises:
        UsageError: No file is given, the task lacks an aspect, or a file is named after another
            aspect.
        DataError: A file cannot be read or is empty, or a line is not as described, or gives a
            document a second grade or label. Names file and line.
    """
    if isinstance(task, str):
        task = get_task(task)
    aspects = task.judged_aspects
    if not files:
        raise UsageError(f"no qrels given; give those of at least one of {', '.join(aspects)}")
    unknown = [aspect for aspect in files if aspect not in aspects]
    if unknown:
        raise UsageError(
            f"qrels of {unknown[0]}: {task.name} has no such aspect; give those of {', '.join(aspects)}"
        )

    grades: dict[str, Grades] = {}
    stances: dict[str, dict[str, str]] = {}
    for aspect in aspects:
        if aspect not in files:
            continue

        path = Path(files[aspect])
        if aspect == STANCE:
            stances = _read_judgments(path, "label", partial(_parse_label, task))
        else:
            parse = partial(_parse_grade, task.qrels_scales[aspect])
            grades[aspect] = _read_judgments(path, "grade", parse)

    for aspect, file in files.items():
        _check_file_name(Path(file), aspect, aspects)

    return Qrels(
        grades=grades,
        stances=stances,
        labels=task.stances,
        scales=task.qrels_scales,
    )


def _check_file_name(file: Path, aspect: str, aspects: Iterable[str]) -> None:
    """Raise UsageError if a file is named after another aspect than its own.

    Swapped files would be measured without an error.
    """
    if aspect in file.name:
        return
    for other in aspects:
        if other in file.name:
            raise UsageError(
                f"{aspect} qrels: {file}: by its name it holds those of {other}; rename it"
            )


def _read_judgments(
    path: Path, kind: str, parse: Callable[[str, str], ValueT]
) -> dict[str, dict[str, ValueT]]:
    """Read the grades or labels of a file, by topic and document.

    Args:
        path: File of qrels, or a table of BEIR.
        kind: What the last column holds, for messages.
        parse: Returns the value of a text; raises DataError for other text, at the place given.
    """
    require_kind(path, "qrels")
    judged: dict[str, dict[str, ValueT]] = {}
    for place, topic, document, text in read_rows(path, kind):
        value = parse(text, place)
        before = judged.setdefault(topic, {}).setdefault(document, value)
        if before != value:
            raise DataError(
                f"{place}: {value}, but {before} in a line above; leave one of them out"
            )
    if not judged:
        raise DataError(
            f"{path}: no {kind} in this file; give a file with lines `qid 0 doc {kind}`"
        )
    return judged


def read_rows(path: Path, kind: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield place, topic, document and value of each line of qrels.

    Args:
        path: File of qrels, or a table of BEIR.
        kind: What the last column holds, for messages.

    Raises:
        DataError: A line has another number of columns, or an id is no word.
    """
    is_beir = False
    for number, row in read_table_lines(path, "a file of qrels"):
        columns = row.split()
        if number == 1 and is_beir_header(columns):
            is_beir = True
            continue
        if is_beir and len(columns) == 3:
            columns.insert(1, "0")
        if not columns:
            continue
        if len(columns) != 4:
            raise DataError(
                f"{path}:{number}: {len(columns)} columns, qrels have four: qid 0 doc {kind}"
            )

        topic, _, document, text = columns
        place = f"{path}:{number}: topic {topic}, document {document}"
        if not (is_word(topic) and is_word(document)):
            raise DataError(f"{to_printable(place):.200}: an id must be {ID_FORM}; correct it")
        yield place, topic, document, text


def _parse_label(task: Task, text: str, place: str) -> str:
    """Return a stance of the task; raise DataError for other text, at `place`."""
    if text not in task.stances:
        known = f"{task.name} ({', '.join(task.stances)})"
        raise DataError(
            f"{place}: {text!r:.40} is no stance of {known}; give the stance qrels of this task"
        )
    return text


def _parse_grade(scale: Scale, text: str, place: str) -> float:
    """Return a grade of human judgments; raise DataError for other text, at `place`."""
    grade = parse_grade_text(text)
    if grade is None or not LOWEST_GRADE <= grade <= scale.highest:
        raise DataError(
            f"{place}: {text!r:.40} is no grade: a number from {LOWEST_GRADE} to {scale.highest} with at most "
            f"{GRADE_DECIMALS} decimals; correct it, or give the graded qrels"
        )
    return grade


def parse_grade_text(text: str) -> float | None:
    """Return the number that a text spells, with at most `GRADE_DECIMALS` decimals; None for other text."""
    return float(text) if _GRADE.fullmatch(text) else None


def select_topics(qrels: Qrels, runs: Iterable[ParsedRun]) -> Qrels:
    """Return the judgments of the topics that runs are measured on together.

    Every figure of a run is over these.

    All judged topics count, or those that were chosen for each run with chosen topics: a run that
    lacks one of them lost it, and it counts 0.
    """
    for run in runs:
        if run.chosen_topics is not None:
            qrels = qrels.restrict_to(frozenset(run.chosen_topics))
    return qrels


def check_judged(run: ParsedRun, qrels: Qrels, aspect: str) -> None:
    """Raise DataError if no document of the run is judged: the qrels are those of other topics or another corpus.

    A run that lost all judged topics that were chosen for it has no documents of these and counts
    0.
    """
    judged = qrels.judgments_of(aspect)
    ranked = [candidate for topic in judged for candidate in run.rankings.get(topic, [])]
    has_lost_all = not ranked and run.chosen_topics is not None
    if judged and has_lost_all:
        return
    if any(candidate.document_id in judged[candidate.topic_id] for candidate in ranked):
        return
    raise DataError(
        f"no document of the run is in the {aspect} qrels (the run's first: {_describe_first(run)}; judged "
        f"topics to measure: {shorten(judged, 3) or 'none'}); give the qrels of the run's topics and "
        "corpus, or none of this aspect"
    )


def _describe_first(run: ParsedRun) -> str:
    """Return topic and document of the first line of a run; `none` if it has no lines."""
    for ranking in run.rankings.values():
        if ranking:
            return f"topic {ranking[0].topic_id}, document {ranking[0].document_id}"
    return "none"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The judged topics behind the measures of one aspect.

    Attributes:
        topics: Topics that the run is measured on.
        missing: Those of them that the run lacks.
        left_out: Judged topics that the run is not measured on.
    """

    topics: tuple[str, ...]
    missing: tuple[str, ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, run: ParsedRun, qrels: Qrels, aspect: str) -> Coverage:
        """Return the coverage of a run by the qrels of `select_topics`."""
        topics = tuple(qrels.judgments_of(aspect))
        missing = tuple(topic for topic in topics if topic not in run.rankings)
        left_out = tuple(sorted(qrels.judged_topics[aspect].difference(topics)))
        return cls(topics, missing, left_out)

    @property
    def judged(self) -> int:
        """Number of topics that the qrels file judges."""
        return len(self.topics) + len(self.left_out)

    def __str__(self) -> str:
        text = f"{len(self.topics)} of {self.judged} judged topics"
        if self.missing:
            text += f"; not in the run: {shorten(self.missing)}"
        return text


def describe_topics(run: ParsedRun, qrels: Qrels, aspect: str) -> list[str]:
    """Describe the topics that count in an unexpected way, or not at all."""
    covered = Coverage.of(run, qrels, aspect)
    unjudged = [topic for topic in run.rankings if topic not in qrels.judged_topics[aspect]]
    without_gain: list[str] = []
    if aspect != STANCE:
        for topic, grades in qrels.grades[aspect].items():
            if max(grades.values()) <= 0.0:
                without_gain.append(topic)

    effect = "their documents do not count" if aspect == STANCE else "they count 0"
    topics_by_problem = {
        f"judged, but not in the run, so {effect}": covered.missing,
        "judged, but left out of this evaluation": covered.left_out,
        "in the run, but not judged, so they do not count": unjudged,
        "without a grade above 0, so they count 0": without_gain,
    }
    return [
        f"topics {problem}: {shorten(topics)}"
        for problem, topics in topics_by_problem.items()
        if topics
    ]


def describe_labels(run: ParsedRun, qrels: Qrels) -> list[str]:
    """Describe the judged documents of the run that have no label in it."""
    if not run.stances:
        return ["the run has no stances, only Q0 in its second column"]
    unlabelled: list[str] = []
    for topic, truth in qrels.stances.items():
        for candidate in run.rankings.get(topic, []):
            is_judged = candidate.document_id in truth
            if is_judged and (topic, candidate.document_id) not in run.stances:
                unlabelled.append(f"topic {topic} document {candidate.document_id}")
    if not unlabelled:
        return []
    text = "judged documents without a label in the run, so they do not count"
    return [f"{text}: {shorten(unlabelled, 3)}"]


def format_notes(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Format the notes of several runs, given by name, as lines.

    A note on all runs is written once.
    """
    names_by_note: dict[str, list[str]] = {}
    for name, notes_of_run in notes.items():
        for note in notes_of_run:
            names_by_note.setdefault(note, []).append(name)

    lines: list[str] = []
    for note, names in names_by_note.items():
        is_of_all = len(names) == len(notes)
        lines.append(note if is_of_all else f"{', '.join(names)}: {note}")
    return lines


def describe_fitted(
    name: str, run: ParsedRun, fitted_on: Collection[str], qrels: Qrels
) -> list[str]:
    """Return a note on a run that is measured on topics that its stance thresholds were fitted on, else nothing."""
    measured = [topic for topic in qrels.stances if topic in fitted_on and topic in run.rankings]
    if not measured:
        return []
    return [
        f"{name}: stance: its thresholds were fitted on {len(measured)} of these topics, so its values say nothing "
        f"about other topics; `touche-llm calibrate` prints held-out values: {shorten(measured)}"
    ]
