"""Labels that people or a judge give to documents, from qrels, judgments and files of other tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from touche_llm.data.recognize import require_kind
from touche_llm.data.records import Judgment
from touche_llm.errors import DataError
from touche_llm.evaluation.agreement import round_grade
from touche_llm.evaluation.qrels import STANCE, Qrels, QrelsRow, parse_grade_text, read_rows
from touche_llm.tasks.parts import Scale
from touche_llm.tasks.task import Task

# Topic id and document id.
DocumentKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class LabelSet:
    """Labels of documents in one aspect, by people or by one judge.

    Attributes:
        name: Name of the judge.
        aspect: Graded aspect, or `stance`.
        categories: All possible labels; grades in ascending order.
        scale: Scale of the grades; None for the stance.
        labels: Label of each document, as its index in `categories`, by topic and document: the most
            probable one where a judge has probabilities.
        grades: Expected grade of each document, likewise; empty for the stance.
        probabilities: Probabilities of the categories; only of the documents that have them.
        left_out: Number of labels outside the scale that were left out.
        is_people: Whether people gave the labels.
    """

    name: str
    aspect: str
    categories: tuple[str, ...]
    scale: Scale | None
    labels: dict[str, dict[str, int]] = field(default_factory=dict)
    grades: dict[str, dict[str, float]] = field(default_factory=dict)
    probabilities: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)
    left_out: int = 0
    is_people: bool = False

    def __contains__(self, key: DocumentKey) -> bool:
        """Return whether a document of a topic has a label."""
        topic_id, document_id = key
        return document_id in self.labels.get(topic_id, ())

    def add_label(self, topic_id: str, document_id: str, category: int) -> None:
        """Add the label of a document, given as its index in `categories`."""
        self.labels.setdefault(topic_id, {})[document_id] = category

    def add_grade(self, topic_id: str, document_id: str, grade: float) -> None:
        """Add the expected grade of a document."""
        self.grades.setdefault(topic_id, {})[document_id] = grade

    def add_probabilities(
        self, topic_id: str, document_id: str, probabilities: Iterable[float]
    ) -> None:
        """Add the probabilities of a document, one for each of `categories`."""
        self.probabilities.setdefault(topic_id, {})[document_id] = tuple(probabilities)


def _create_graded_set(
    name: str, aspect: str, scale: Scale, *, is_people: bool = False
) -> LabelSet:
    """Create an empty set of labels, which are the grades of a scale."""
    categories = tuple(str(grade) for grade in scale.grades)
    return LabelSet(
        name=name,
        aspect=aspect,
        categories=categories,
        scale=scale,
        is_people=is_people,
    )


def take_people_labels(qrels: Qrels, aspect: str, name: str = "people") -> LabelSet:
    """Return the labels of qrels: grades as whole numbers, those below the scale as its lowest."""
    if aspect == STANCE:
        return _take_people_stances(qrels, name)

    scale = qrels.scales[aspect]
    people = _create_graded_set(name, aspect, scale, is_people=True)
    for topic_id, judged in qrels.grades[aspect].items():
        grades = {document_id: max(grade, scale.lowest) for document_id, grade in judged.items()}
        categories = {
            document_id: round_grade(grade) - scale.lowest for document_id, grade in grades.items()
        }
        people.grades[topic_id] = grades
        people.labels[topic_id] = categories
    return people


def _take_people_stances(qrels: Qrels, name: str) -> LabelSet:
    """Return the stances of qrels."""
    people = LabelSet(
        name=name,
        aspect=STANCE,
        categories=qrels.labels,
        scale=None,
        is_people=True,
    )
    category_of_label = {label: index for index, label in enumerate(qrels.labels)}
    for topic_id, judged in qrels.stances.items():
        people.labels[topic_id] = {
            document_id: category_of_label[label] for document_id, label in judged.items()
        }
    return people


def read_label_file(
    path: Path,
    aspect: str,
    task: Task,
    *,
    name: str,
    scale: Scale | None = None,
    skip_bad_labels: bool = False,
) -> LabelSet:
    """Read the labels of a judge from a file in the form of qrels.

    Args:
        path: File of qrels, or a table of BEIR.
        aspect: Aspect of the labels.
        task: Task with the labels and scales.
        name: Name of the judge.
        scale: Scale of the grades; None for that of the task's qrels.
        skip_bad_labels: Whether to leave out labels outside the scale, and count them.

    Raises:
        DataError: The file cannot be read, has no labels, gives a document two labels, or has a
            label outside the scale that is not to be left out. Names file and line.
    """
    require_kind(path, "qrels")
    if aspect == STANCE:
        labels = LabelSet(name=name, aspect=aspect, categories=task.stances, scale=None)
    else:
        labels = _create_graded_set(name, aspect, scale or task.qrels_scales[aspect])

    left_out = 0
    for row in read_rows(path, "label"):
        parsed = _parse_label(row.value, labels)
        if parsed is not None:
            _add_new_label(labels, row, parsed)
        elif skip_bad_labels:
            left_out += 1
        else:
            raise DataError(
                f"{row.place}: {row.value!r:.40} is none of the labels {', '.join(labels.categories)}; correct it, or "
                "give --skip-bad-labels to leave such labels out, --scale for another scale, or --task"
            )

    if not labels.labels:
        raise DataError(f"{path}: no labels in this file; give a file with lines `qid 0 doc label`")
    return replace(labels, left_out=left_out)


@dataclass(frozen=True, slots=True)
class _ParsedLabel:
    """Label in a line of a file.

    Attributes:
        category: Index of the label in the categories.
        grade: Grade before rounding; None for a stance.
    """

    category: int
    grade: float | None


def _parse_label(text: str, labels: LabelSet) -> _ParsedLabel | None:
    """Parse a label; return None if it is none of the categories, or outside the scale."""
    if labels.scale is None:
        if text not in labels.categories:
            return None
        return _ParsedLabel(labels.categories.index(text), grade=None)

    grade = parse_grade_text(text)
    if grade is None or not labels.scale.lowest <= grade <= labels.scale.highest:
        return None
    return _ParsedLabel(round_grade(grade) - labels.scale.lowest, grade)


def _add_new_label(labels: LabelSet, row: QrelsRow, parsed: _ParsedLabel) -> None:
    """Add the label of a line.

    Raises:
        DataError: A line above gives the document another label.
    """
    labels_of_topic = labels.labels.setdefault(row.topic_id, {})
    first_category = labels_of_topic.setdefault(row.document_id, parsed.category)
    if first_category != parsed.category:
        raise DataError(
            f"{row.place}: {row.value}, but {labels.categories[first_category]} in a line above; leave one of them out"
        )
    if parsed.grade is not None:
        labels.add_grade(row.topic_id, row.document_id, parsed.grade)


def take_judgment_labels(
    judgments: Iterable[Judgment], aspect: str, task: Task, name: str
) -> LabelSet:
    """Return the labels of judgments in one aspect.

    The label is the most probable one; if several are, the one in the answer, else the lowest. An
    inherited judgment has no answer of its own: its label is its rounded grade. Where the task maps
    the grades of its prompt to those of people, the labels are these.
    """
    if aspect == STANCE:
        return _take_judged_stances(judgments, task, name)

    reader = _GradeReader.of(task, aspect)
    scale = task.aspects[aspect] if reader.mapping is None else task.qrels_scales[aspect]
    labels = _create_graded_set(name, aspect, scale)
    for judgment in judgments:
        if aspect in judgment.grades:
            _add_judged_grade(labels, judgment, scale, reader)
    return labels


def _take_judged_stances(judgments: Iterable[Judgment], task: Task, name: str) -> LabelSet:
    """Return the stances of judgments; documents without one are left out."""
    labels = LabelSet(name=name, aspect=STANCE, categories=task.stances, scale=None)
    category_of_label = {label: index for index, label in enumerate(task.stances)}
    for judgment in judgments:
        category = category_of_label.get(judgment.stance)
        if category is None:
            continue
        labels.add_label(judgment.topic_id, judgment.document_id, category)

        probabilities = _find_probabilities(judgment, STANCE)
        if probabilities is not None and probabilities.keys() == category_of_label.keys():
            labels.add_probabilities(
                judgment.topic_id,
                judgment.document_id,
                [probabilities[label] for label in task.stances],
            )
    return labels


def _find_probabilities(judgment: Judgment, aspect: str) -> Mapping[str, float] | None:
    """Return the probabilities of an answer in one aspect; None if it has none."""
    reading = judgment.readings.get(aspect)
    return None if reading is None else reading.probabilities


def _add_judged_grade(
    labels: LabelSet, judgment: Judgment, scale: Scale, reader: _GradeReader
) -> None:
    """Add the label and the expected grade of a judgment, and its probabilities if it has any."""
    shares = reader.find_shares(judgment)
    expected_grade = sum(grade * share for grade, share in shares.items())
    category = reader.choose_grade(judgment) - scale.lowest
    labels.add_label(judgment.topic_id, judgment.document_id, category)
    labels.add_grade(judgment.topic_id, judgment.document_id, expected_grade)

    if _find_probabilities(judgment, reader.aspect) is not None:
        labels.add_probabilities(
            judgment.topic_id,
            judgment.document_id,
            [shares.get(grade, 0.0) for grade in scale.grades],
        )


def find_grade(judgment: Judgment, aspect: str, task: Task) -> int:
    """Return the most probable grade of an aspect, see `take_judgment_labels`."""
    return _GradeReader.of(task, aspect).choose_grade(judgment)


@dataclass(frozen=True, slots=True)
class _GradeReader:
    """Reader of the grades that judgments give to documents in one aspect.

    Attributes:
        aspect: Graded aspect.
        scale: Scale of the prompt.
        mapping: Grade of people for each grade of the prompt, in which grades are then returned;
            None to return those of the prompt.
    """

    aspect: str
    scale: Scale
    mapping: Mapping[int, int] | None

    @classmethod
    def of(cls, task: Task, aspect: str) -> _GradeReader:
        """Return the reader of an aspect of a task."""
        return cls(aspect, task.aspects[aspect], task.qrels_mapping_of(aspect))

    def find_shares(self, judgment: Judgment) -> dict[int, float]:
        """Return the probability of each grade; 1 for the grade of an answer without any."""
        reading = judgment.readings.get(self.aspect)
        if reading is None:
            shares = _split_grade(judgment.grades[self.aspect], self.scale)
        else:
            shares = {int(grade): share for grade, share in reading.shares.items()}
        return shares if self.mapping is None else _map_shares(shares, self.mapping)

    def choose_grade(self, judgment: Judgment) -> int:
        """Return the most probable grade; of several, the one in the answer, else the lowest."""
        shares = self.find_shares(judgment)
        highest_share = max(shares.values())
        best_grades = [grade for grade, share in shares.items() if share == highest_share]

        answered_grade = self._find_answered(judgment)
        if answered_grade in best_grades:
            return answered_grade
        return min(best_grades)

    def _find_answered(self, judgment: Judgment) -> int:
        """Return the grade in the answer; the rounded grade without an answer."""
        reading = judgment.readings.get(self.aspect)
        if reading is None:
            grade = round_grade(judgment.grades[self.aspect])
        else:
            grade = int(reading.answered)
        return grade if self.mapping is None else self.mapping[grade]


def _split_grade(grade: float, scale: Scale) -> dict[int, float]:
    """Return probabilities of two neighbouring whole grades whose mean is a grade between them.

    1.25 is 1 with a probability of 0.75, and 2 with 0.25.
    """
    lower = min(int(grade), scale.highest - 1)
    share_of_upper = grade - lower
    return {lower: 1.0 - share_of_upper, lower + 1: share_of_upper}


def _map_shares(shares: Mapping[int, float], mapping: Mapping[int, int]) -> dict[int, float]:
    """Return the probability of each grade that grades are mapped to.

    Args:
        shares: Probability of each grade of the prompt.
        mapping: Grade of people for each grade of the prompt; several may have the same.
    """
    mapped: dict[int, float] = {}
    for grade, share in shares.items():
        people_grade = mapping[grade]
        mapped[people_grade] = mapped.get(people_grade, 0.0) + share
    return mapped
