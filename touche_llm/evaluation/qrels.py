"""Qrels, the topics that runs are measured on, and notes on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

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
        """Return the judgments of these topics alone; an aspect that judges none of them stays, empty."""
        grades = {aspect: _select(judged, topics) for aspect, judged in self.grades.items()}
        stances = _select(self.stances, topics)
        return replace(self, grades=grades, stances=stances)


def _select(
    judged: dict[str, dict[str, ValueT]], topics: Collection[str]
) -> dict[str, dict[str, ValueT]]:
    return {topic: documents for topic, documents in judged.items() if topic in topics}


def qrels_file(aspect: str) -> str:
    """Return the name of the file with the judgments of an aspect, where this program writes one."""
    return f"qrels-{aspect}.txt"


def find_qrels(folder: Path, task: Task) -> dict[str, Path]:
    """Return the qrels files in a folder, by the aspect in their names, such as `qrels-quality.txt`."""
    files: dict[str, Path] = {}
    for aspect in task.judged_aspects:
        file = folder / qrels_file(aspect)
        if file.is_file():
            files[aspect] = file
    return files


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
    _check_aspects(list(files), task)

    grades: dict[str, Grades] = {}
    for aspect in task.aspects:
        if aspect in files:
            parse_grade = partial(_parse_grade, task.qrels_scales[aspect])
            grades[aspect] = _read_judgments(Path(files[aspect]), "grade", parse_grade)

    stances: dict[str, dict[str, str]] = {}
    if STANCE in files:
        parse_label = partial(_parse_label, task)
        stances = _read_judgments(Path(files[STANCE]), "label", parse_label)

    for aspect, file in files.items():
        _check_file_name(Path(file), aspect, task.judged_aspects)

    return Qrels(
        grades=grades,
        stances=stances,
        labels=task.stances,
        scales=task.qrels_scales,
    )


def _check_aspects(given: Sequence[str], task: Task) -> None:
    """Raise UsageError if no aspect is given, or one that qrels of the task cannot judge."""
    known = ", ".join(task.judged_aspects)
    if not given:
        raise UsageError(f"no qrels given; give those of at least one of {known}")
    for aspect in given:
        if aspect not in task.judged_aspects:
            raise UsageError(
                f"qrels of {aspect}: {task.name} has no such aspect; give those of {known}"
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
    path: Path, kind: str, parse: Callable[[QrelsRow], ValueT]
) -> dict[str, dict[str, ValueT]]:
    """Read the grades or labels of a file, by topic and document.

    Args:
        path: File of qrels, or a table of BEIR.
        kind: What the last column holds, for messages.
        parse: Returns the grade or label of a row; raises DataError if it has none.

    Raises:
        DataError: A row is malformed, a document has two values, or the file has no rows.
    """
    require_kind(path, "qrels")
    judged: dict[str, dict[str, ValueT]] = {}
    for row in read_rows(path, kind):
        value = parse(row)
        judged_of_topic = judged.setdefault(row.topic_id, {})
        first_value = judged_of_topic.setdefault(row.document_id, value)
        if value != first_value:
            raise DataError(
                f"{row.place}: {value}, but {first_value} in a line above; leave one of them out"
            )

    if not judged:
        raise DataError(
            f"{path}: no {kind} in this file; give a file with lines `qid 0 doc {kind}`"
        )
    return judged


class QrelsRow(NamedTuple):
    """Row of a file of qrels.

    Attributes:
        path: The file.
        number: Number of the line.
        topic_id: Id of the topic.
        document_id: Id of the document.
        value: Text of the last column, a grade or a label.
    """

    path: Path
    number: int
    topic_id: str
    document_id: str
    value: str

    @property
    def place(self) -> str:
        """Where the row is, for errors."""
        return f"{self.path}:{self.number}: topic {self.topic_id}, document {self.document_id}"


def read_rows(path: Path, kind: str) -> Iterator[QrelsRow]:
    """Yield the rows of a file of qrels.

    Args:
        path: File of qrels, or a table of BEIR.
        kind: What the last column holds, for messages.

    Raises:
        DataError: A line has another number of columns, or an id is no word.
    """
    is_beir = False
    for number, line in read_table_lines(path, "a file of qrels"):
        columns = line.split()
        if number == 1 and is_beir_header(columns):
            is_beir = True
            continue
        if not columns:
            continue

        if is_beir and len(columns) == 3:
            # BEIR leaves out the second column, which is ignored.
            columns.insert(1, "0")
        yield _make_row(path, number, columns, kind)


def _make_row(path: Path, number: int, columns: Sequence[str], kind: str) -> QrelsRow:
    """Return the row of a line with these columns; raise DataError if it is malformed."""
    if len(columns) != 4:
        raise DataError(
            f"{path}:{number}: {len(columns)} columns, qrels have four: qid 0 doc {kind}"
        )

    topic_id, _, document_id, value = columns
    row = QrelsRow(path, number, topic_id, document_id, value)
    if not (is_word(topic_id) and is_word(document_id)):
        raise DataError(f"{to_printable(row.place):.200}: an id must be {ID_FORM}; correct it")
    return row


def _parse_label(task: Task, row: QrelsRow) -> str:
    """Return the stance in a row; raise DataError if the task has no such stance."""
    if row.value not in task.stances:
        known = f"{task.name} ({', '.join(task.stances)})"
        raise DataError(
            f"{row.place}: {row.value!r:.40} is no stance of {known}; give the stance qrels of this task"
        )
    return row.value


def _parse_grade(scale: Scale, row: QrelsRow) -> float:
    """Return the grade in a row; raise DataError if it is no number, or outside the scale."""
    grade = parse_grade_text(row.value)
    if grade is None or not LOWEST_GRADE <= grade <= scale.highest:
        raise DataError(
            f"{row.place}: {row.value!r:.40} is no grade: a number from {LOWEST_GRADE} to {scale.highest} with at most "
            f"{GRADE_DECIMALS} decimals; correct it, or give the graded qrels"
        )
    return grade


# A file has few distinct grades, and a look-up takes a tenth of the time.
@lru_cache(maxsize=256)
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
    """Check that qrels judge a document of a run.

    If they judge none, they are those of other topics or another corpus.

    Raises:
        DataError: No document of the run is judged.
    """
    judged = qrels.judgments_of(aspect)
    candidates = [candidate for topic_id in judged for candidate in run.rankings.get(topic_id, [])]
    if any(candidate.document_id in judged[candidate.topic_id] for candidate in candidates):
        return

    was_made_for_topics = run.chosen_topics is not None
    if judged and was_made_for_topics and not candidates:
        # It lost all of these topics, and counts 0.
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
        """Return the coverage of a run by qrels that are restricted to the topics to measure."""
        topics = tuple(qrels.judgments_of(aspect))
        missing = tuple(topic for topic in topics if topic not in run.rankings)
        left_out = qrels.judged_topics[aspect].difference(topics)
        return cls(topics=topics, missing=missing, left_out=tuple(sorted(left_out)))

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
    """Return a note for each group of topics that count in an unexpected way, or not at all."""
    coverage = Coverage.of(run, qrels, aspect)
    unjudged = [topic for topic in run.rankings if topic not in qrels.judged_topics[aspect]]
    effect_of_missing = "their documents do not count" if aspect == STANCE else "they count 0"
    topics_by_problem = {
        f"judged, but not in the run, so {effect_of_missing}": coverage.missing,
        "judged, but left out of this evaluation": coverage.left_out,
        "in the run, but not judged, so they do not count": unjudged,
        "without a grade above 0, so they count 0": _list_without_gain(qrels, aspect),
    }

    notes: list[str] = []
    for problem, topics in topics_by_problem.items():
        if topics:
            notes.append(f"topics {problem}: {shorten(topics)}")
    return notes


def _list_without_gain(qrels: Qrels, aspect: str) -> list[str]:
    """Return the topics without a grade above 0, of which every ranking has the value 0."""
    if aspect == STANCE:
        return []
    grades_by_topic = qrels.grades[aspect].items()
    return [topic for topic, grades in grades_by_topic if max(grades.values()) <= 0.0]


def describe_labels(run: ParsedRun, qrels: Qrels) -> list[str]:
    """Return a note on the documents with a true stance that have none in the run, if there are any."""
    if not run.stances:
        return ["the run has no stances, only Q0 in its second column"]

    unlabelled: list[str] = []
    for topic_id, true_stances in qrels.stances.items():
        for candidate in run.rankings.get(topic_id, []):
            document_id = candidate.document_id
            has_stance = (topic_id, document_id) in run.stances
            if document_id in true_stances and not has_stance:
                unlabelled.append(f"topic {topic_id} document {document_id}")
    if not unlabelled:
        return []

    problem = "judged documents without a label in the run, so they do not count"
    return [f"{problem}: {shorten(unlabelled, 3)}"]


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
        is_of_all_runs = len(names) == len(notes)
        if is_of_all_runs:
            lines.append(note)
        else:
            lines.append(f"{', '.join(names)}: {note}")
    return lines


def describe_fitted(
    name: str, run: ParsedRun, fitted_on: Collection[str], qrels: Qrels
) -> list[str]:
    """Return a note if a run is measured on topics that its stance thresholds were fitted on.

    Args:
        name: Name of the run.
        run: Run that is measured.
        fitted_on: Topics that its thresholds were fitted on.
        qrels: Judgments to measure by.
    """
    measured = [topic for topic in qrels.stances if topic in run.rankings]
    fitted = [topic for topic in measured if topic in fitted_on]
    if not fitted:
        return []
    return [
        f"{name}: stance: its thresholds were fitted on {len(fitted)} of these topics, so its values say nothing "
        f"about other topics; `touche-llm calibrate` prints held-out values: {shorten(fitted)}"
    ]
