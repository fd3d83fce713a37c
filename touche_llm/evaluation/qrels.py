"""Qrels, the topics that runs are measured on, and notes on what readers should know about measured values."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from touche_llm.data.io import ID_FORM, is_word, read_table_lines
from touche_llm.data.topics import require_kind
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import DataError, UsageError, shorten, suggest
from touche_llm.evaluation.significance import Bounds
from touche_llm.tasks import get_task
from touche_llm.tasks.definition import Scale
from touche_llm.tasks.task import Task

# The grade -2 marks texts that are no argument.
LOWEST_GRADE = -2
# The aspect whose qrels hold labels rather than grades.
STANCE = "stance"
# Means over several assessors have decimals; evaluators take integers, so the number of decimals is limited.
GRADE_DECIMALS = 3
_GRADE = re.compile(rf"[+-]?[0-9]{{1,2}}(?:\.[0-9]{{0,{GRADE_DECIMALS}}}0{{0,20}})?")

ValueT = TypeVar("ValueT", str, float)
# {topic id: {document id: grade}}
Grades = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Qrels:
    """The judgments of a task, all aspects together.

    Attributes:
        grades: Grades of each graded aspect, by topic and document, in the order of the files; from -2 to the
            highest of the scale.
        stances: True labels by topic and document; empty if none were given.
        labels: Stances of the task, in its order.
        scales: Scale of each aspect of the task in human judgments.
        notes: Notes on the files: repeated lines, and topics or documents that some of them lack.
        judged_topics: All topics that the file of each aspect judges, including those that `restrict_to` left out.
    """

    grades: dict[str, Grades]
    stances: dict[str, dict[str, str]]
    labels: tuple[str, ...]
    scales: Mapping[str, Scale]
    notes: Sequence[str] = ()
    judged_topics: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.judged_topics:
            self.judged_topics.update({aspect: frozenset(judged) for aspect, judged in self.grades.items()})
            self.judged_topics.update({STANCE: frozenset(self.stances)} if self.stances else {})

    def restrict_to(self, topics: Collection[str]) -> Qrels:
        """Return the judgments of these topics alone; an aspect without any of them stays, without topics."""
        return replace(
            self,
            grades={aspect: _select(judged, topics) for aspect, judged in self.grades.items()},
            stances=_select(self.stances, topics),
        )


def _select(judged: dict[str, dict[str, ValueT]], topics: Collection[str]) -> dict[str, dict[str, ValueT]]:
    return {topic: documents for topic, documents in judged.items() if topic in topics}


def qrels_file(aspect: str) -> str:
    """Return the name of the file with the judgments of an aspect, where this program writes one."""
    return f"qrels-{aspect}.txt"


def find_qrels(folder: Path, task: Task) -> dict[str, Path]:
    """Return the files of a folder that are named by `qrels_file`, by aspect; empty if there are none."""
    files = {aspect: folder / qrels_file(aspect) for aspect in task.judged_aspects}
    return {aspect: file for aspect, file in files.items() if file.is_file()}


def read_qrels(files: Mapping[str, Path | str], task: Task | str) -> Qrels:
    """Read the judgments of several files, in their order.

    A line is `qid 0 doc GRADE`, a number from -2 to the aspect's highest grade with at most three decimals, or
    `qid 0 doc LABEL` for stances, separated by any white space; the second column and empty lines are ignored, and
    lines may repeat others. BEIR's tables have no second column and begin with a line of names, `score` the last. A
    file may be gzipped.

    Args:
        files: The file of each aspect: grades, named as in the task's judge prompt, and `stance`.
        task: Task with the aspects and labels, or its name.

    Raises:
        UsageError: No file is given, the task lacks an aspect, or a file is named after another aspect.
        DataError: A file cannot be read or is empty, or a line is too long, is not UTF-8, or has the wrong number of
            columns, an unprintable id, no grade or label of the task, or a second one for a document. Names file and
            line.
    """
    if isinstance(task, str):
        task = get_task(task)
    aspects = task.judged_aspects
    if not files:
        raise UsageError(f"no qrels given; give those of at least one of {', '.join(aspects)}")
    if unknown := [aspect for aspect in files if aspect not in aspects]:
        raise UsageError(
            f"qrels of {unknown[0]}: {task.name} has no such aspect{suggest(unknown[0], aspects)}; "
            f"give those of {', '.join(aspects)}"
        )
    notes: list[str] = []
    judged: dict[str, dict[str, dict[str, Any]]] = {}
    for aspect in aspects:
        if aspect in files:
            parse: Callable[[str], Any] = partial(_parse_label, task=task)
            if aspect != STANCE:
                parse = partial(_parse_grade, scale=task.qrels_scales[aspect])
            judged[aspect], again = _read(Path(files[aspect]), "label" if aspect == STANCE else "grade", parse)
            name = Path(files[aspect]).name
            if aspect not in name and (others := [other for other in aspects if other in name]):
                raise UsageError(
                    f"{aspect} qrels: {files[aspect]}: by its name it holds those of {others[0]}; give another file, "
                    "or rename it"
                )
            if again:
                notes.append(f"{aspect} qrels: {again} lines repeat others")
    notes += _describe_gaps(judged)
    stances = judged.pop(STANCE, {})
    return Qrels(judged, stances, task.stances, task.qrels_scales, notes)


def _parse_label(text: str, task: Task) -> str:
    if text not in task.stances:
        raise ValueError(
            f"{text!r:.40} is no stance of {task.name} ({', '.join(task.stances)}); give the stance qrels of this task"
        )
    return text


def _parse_grade(text: str, scale: Scale) -> float:
    grade = float(text) if _GRADE.fullmatch(text) else None
    if grade is None or not LOWEST_GRADE <= grade <= scale.highest:
        raise ValueError(
            f"{text!r:.40} is no grade: a number from {LOWEST_GRADE} to {scale.highest} with at most "
            f"{GRADE_DECIMALS} decimals; correct it, or give the graded qrels"
        )
    return grade


def _read(path: Path, column: str, parse: Callable[[str], Any]) -> tuple[dict[str, dict[str, Any]], int]:
    """Read the values of a file and count the lines that repeat others; `parse` raises ValueError."""
    found: dict[str, dict[str, Any]] = {}
    lines: dict[tuple[str, str], int] = {}
    repeated = 0
    is_beir = False
    require_kind(path, "qrels")
    for number, row in read_table_lines(path, "a file of qrels"):
        columns = row.split()
        if number == 1 and len(columns) == 3 and columns[2] == "score":
            is_beir = True
            continue
        if is_beir and len(columns) == 3:
            columns.insert(1, "0")
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
        raise DataError(f"{path}: no {column} in this file; give a file with lines `qid 0 doc {column}`")
    return found, repeated


def _describe_gaps(pools: Mapping[str, Mapping[str, Collection[str]]]) -> Iterator[str]:
    """Yield notes on topics and documents that the qrels of one aspect lack and those of another have."""
    # Dictionaries keep the order of the files.
    everything: dict[str, dict[str, None]] = {}
    for pool in pools.values():
        for topic, judged in pool.items():
            everything.setdefault(topic, {}).update(dict.fromkeys(sorted(judged)))
    for aspect, pool in pools.items():
        if topics := [topic for topic in everything if topic not in pool]:
            yield f"{aspect} qrels: lack topics that other qrels have: {shorten(topics)}"
        missing = ((topic, document) for topic in pool for document in everything[topic] if document not in pool[topic])
        if pairs := [f"topic {topic} document {document}" for topic, document in missing]:
            yield f"{aspect} qrels: lack documents that other qrels have: {shorten(pairs)}"


def select_topics(qrels: Qrels, runs: Iterable[ParsedRun], *, shared: bool = False) -> Qrels:
    """Return the judgments of the topics that runs are measured on together; every figure of a run is over these.

    All judged topics count, or those that were chosen for each run with chosen topics: a run that lacks one of them
    lost it, and it counts 0. Only if `shared`, topics that a run lacks are left out.
    """
    for run in runs:
        if run.chosen_topics is not None:
            qrels = qrels.restrict_to(frozenset(run.chosen_topics))
        if shared:
            qrels = qrels.restrict_to(run.rankings)
    return qrels


def check_judged(qrels: Qrels, run: ParsedRun, *first_stages: ParsedRun) -> None:
    """Raise DataError if no document of a run and of its first stages is judged: the qrels are of another corpus.

    Lost topics have no documents and count 0; so does a run without the judged documents of its first stage.
    """
    judged: dict[str, Mapping[str, Collection[str]]] = {**qrels.grades, STANCE: qrels.stances}
    for aspect, by_topic in judged.items():
        documents = [
            (topic, candidate.document_id)
            for each in (run, *first_stages)
            for topic in by_topic.keys() & each.rankings.keys()
            for candidate in each.rankings[topic]
        ]
        if documents and not any(document in by_topic[topic] for topic, document in documents):
            topic, document = min(documents)
            whose = "the run and its first stage" if first_stages else "the run"
            raise DataError(
                f"no document of {whose} is in the {aspect} qrels (topic {topic}: {document}; judged are "
                f"{shorten(by_topic[topic], 3)}); give the qrels of the run's corpus, or none of this aspect"
            )


@dataclass(frozen=True, slots=True)
class Coverage:
    """The judged topics behind the measures of one aspect.

    Attributes:
        topics: Topics that the run is measured on.
        missing: Those of them that the run lacks.
        left_out: Judged topics that the run is not measured on.
        graded: Whether a missing topic counts 0; stances are measured over documents that the run has.
    """

    topics: tuple[str, ...]
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    graded: bool

    @classmethod
    def of(cls, run: ParsedRun, qrels: Qrels, aspect: str) -> Coverage:
        """Return the coverage of a run by the qrels of `select_topics`."""
        graded = aspect != STANCE
        topics = tuple(qrels.grades[aspect] if graded else qrels.stances)
        missing = tuple(topic for topic in topics if topic not in run.rankings)
        return cls(topics, missing, tuple(sorted(qrels.judged_topics[aspect].difference(topics))), graded)

    @property
    def judged(self) -> int:
        """Number of topics that the qrels file judges."""
        return len(self.topics) + len(self.left_out)

    def __str__(self) -> str:
        text = f"{len(self.topics)} of {self.judged} judged topics"
        if self.missing:
            text += f"; {len(self.missing)} not in the run" + (", which count 0" if self.graded else "")
        return text

    def describe(self) -> str:
        """Return the number of topics, with the ids of those left out, or of those that count if these are fewer."""
        text = f"{len(self.topics)} of {self.judged} judged topics"
        if not self.left_out:
            return text
        is_short = len(self.topics) < len(self.left_out)
        return text + (f" (only {shorten(self.topics)})" if is_short else f" (without {shorten(self.left_out)})")

    def describe_missing(self) -> str:
        """Return the ids of the topics that the run lacks, with what that means; empty if it has all."""
        effect = "they count 0" if self.graded else "their documents do not count"
        return f"not in the run, so {effect}: {shorten(self.missing)}" if self.missing else ""


@dataclass(frozen=True, slots=True)
class Note:
    """A note on the values of one aspect, such as relevance."""

    aspect: str
    text: str


def _describe_topics(run: ParsedRun, qrels: Qrels, aspect: str) -> list[Note]:
    """Name the judged topics that the run lacks, and the topics that do not count."""
    covered = Coverage.of(run, qrels, aspect)
    missing = [Note(aspect, f"topics judged, but {covered.describe_missing()}")] if covered.missing else []
    topics = {
        "judged, but left out of this evaluation": covered.left_out,
        "in the run, but not judged, so they do not count": [
            topic for topic in run.rankings if topic not in qrels.judged_topics[aspect]
        ],
    }
    return missing + [Note(aspect, f"topics {problem}: {shorten(names)}") for problem, names in topics.items() if names]


def describe_grades(
    run: ParsedRun, qrels: Qrels, aspect: str, condensed: Sequence[str], cutoff: int, bounds: Bounds
) -> list[Note]:
    """Describe topics that count in an unexpected way, and what unjudged documents could change.

    The organisers' script includes the topics `condensed`; the bounds are those of `significance.compute_bounds`.
    """
    grades = qrels.grades[aspect]
    topics = {
        "without a grade above 0, so they count 0": [
            topic for topic, judged in grades.items() if max(judged.values()) <= 0.0
        ],
        f"with fewer than {cutoff} documents in the run; the remaining places count as unjudged": [
            topic for topic in grades if 0 < len(run.rankings.get(topic, ())) < cutoff
        ],
        f"left out of touche_nDCG@{cutoff}, which needs a judged document among the first {cutoff} and a grade "
        "of 1 or more": [topic for topic in grades if topic not in condensed],
    }
    notes = _describe_topics(run, qrels, aspect)
    notes += [Note(aspect, f"topics {problem}: {shorten(names)}") for problem, names in topics.items() if names]
    if bounds.unjudged:
        notes.append(
            Note(
                f"{aspect} nDCG@{cutoff}",
                f"unjudged documents among the first {cutoff}, which count 0: {bounds.unjudged} in "
                f"{bounds.topics} topic{'s' if bounds.topics > 1 else ''}; judged, they could make it "
                f"{bounds.lowest:.4f} to {bounds.highest:.4f}",
            )
        )
    return notes


def describe_stances(run: ParsedRun, qrels: Qrels) -> list[Note]:
    """Describe the topics that do not count, and the judged documents of the run that have no label in it."""
    notes = _describe_topics(run, qrels, STANCE)
    if not run.stances:
        return [*notes, Note(STANCE, "the run has no stances, only Q0 in its second column")]
    without = [
        f"topic {topic} document {candidate.document_id}"
        for topic, truth in qrels.stances.items()
        for candidate in run.rankings.get(topic, [])
        if candidate.document_id in truth and (topic, candidate.document_id) not in run.stances
    ]
    text = "judged documents without a label in the run, so they do not count"
    return [*notes, Note(STANCE, f"{text}: {shorten(without, 3)}")] if without else notes


def format_notes(notes: Mapping[str, Sequence[Note]]) -> list[str]:
    """Format the notes of several runs, given by name, as lines.

    A note on several aspects of the same runs, or on all runs, is written once.
    """
    runs: dict[Note, list[str]] = {}
    for name, of_run in notes.items():
        for note in of_run:
            runs.setdefault(note, []).append(name)
    aspects: dict[tuple[str, str], list[str]] = {}
    for note, names in runs.items():
        where = "" if len(names) == len(notes) else f"{', '.join(names)}: "
        aspects.setdefault((where, note.text), []).append(note.aspect)
    return [f"{where}{', '.join(names)}: {text}" for (where, text), names in aspects.items()]


def describe_fitted(name: str, run: ParsedRun, fitted_on: Collection[str], qrels: Qrels) -> list[str]:
    """Return a note on a run that is measured on topics that its stance thresholds were fitted on, else nothing."""
    both = [topic for topic in qrels.stances if topic in fitted_on and topic in run.rankings]
    if not both:
        return []
    return [
        f"{name}: stance: the thresholds were fitted on {len(both)} of these topics, so its values say nothing about "
        f"other topics; `touche-llm calibrate` prints held-out values: {shorten(both)}"
    ]
