"""Labels that people or a judge give to documents, from qrels, judgments and files of other tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from touche_llm.data.recognize import require_kind
from touche_llm.data.records import Judgment, Reading
from touche_llm.errors import DataError
from touche_llm.evaluation.agreement import round_grade
from touche_llm.evaluation.qrels import STANCE, Qrels, parse_grade_text, read_rows
from touche_llm.tasks.parts import Scale
from touche_llm.tasks.task import Task


@dataclass(frozen=True, slots=True)
class LabelSet:
    """Labels of documents in one aspect, by people or by one judge.

    Attributes:
        name: Name of the judge.
        aspect: Graded aspect, or `stance`.
        categories: All possible labels; grades in ascending order.
        scale: Scale of the grades; None for the stance.
        labels: Label of each document, as its place in `categories`, by topic and document: the most
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

    def __contains__(self, key: tuple[str, str]) -> bool:
        """Return whether a document of a topic has a label."""
        topic_id, document_id = key
        return document_id in self.labels.get(topic_id, ())


def take_people_labels(qrels: Qrels, aspect: str, name: str = "people") -> LabelSet:
    """Return the labels of qrels: grades as whole numbers, those below the scale as its lowest."""
    if aspect == STANCE:
        places = {label: place for place, label in enumerate(qrels.labels)}
        labels = {
            topic: {document: places[label] for document, label in judged.items()}
            for topic, judged in qrels.stances.items()
        }
        return LabelSet(
            name=name,
            aspect=aspect,
            categories=qrels.labels,
            scale=None,
            labels=labels,
            is_people=True,
        )

    scale = qrels.scales[aspect]
    people = LabelSet(
        name=name,
        aspect=aspect,
        categories=_list_categories(scale),
        scale=scale,
        is_people=True,
    )
    for topic, judged in qrels.grades[aspect].items():
        grades = {document: max(grade, scale.lowest) for document, grade in judged.items()}
        people.grades[topic] = grades
        people.labels[topic] = {
            document: round_grade(grade) - scale.lowest for document, grade in grades.items()
        }
    return people


def _list_categories(scale: Scale) -> tuple[str, ...]:
    return tuple(map(str, scale.grades))


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
        categories = task.stances
        scale = None
    else:
        scale = scale or task.qrels_scales[aspect]
        categories = _list_categories(scale)

    labels: dict[str, dict[str, int]] = {}
    grades: dict[str, dict[str, float]] = {}
    left_out = 0
    for place, topic, document, text in read_rows(path, "label"):
        parsed = _parse_label(text, categories, scale)
        if parsed is None and skip_bad_labels:
            left_out += 1
            continue
        if parsed is None:
            raise DataError(
                f"{place}: {text!r:.40} is none of the labels {', '.join(categories)}; correct it, or give "
                "--skip-bad-labels to leave such labels out, --scale for another scale, or --task"
            )

        label, grade = parsed
        of_topic = labels.setdefault(topic, {})
        if of_topic.setdefault(document, label) != label:
            raise DataError(
                f"{place}: {text}, but {categories[of_topic[document]]} in a line above; leave one of them out"
            )
        if scale is not None:
            grades.setdefault(topic, {})[document] = grade
    if not labels:
        raise DataError(f"{path}: no labels in this file; give a file with lines `qid 0 doc label`")
    return LabelSet(
        name=name,
        aspect=aspect,
        categories=categories,
        scale=scale,
        labels=labels,
        grades=grades,
        left_out=left_out,
    )


def _parse_label(
    text: str, categories: Sequence[str], scale: Scale | None
) -> tuple[int, float] | None:
    """Return the place of a label and its grade (0 for a stance); None if it is outside the scale."""
    if scale is None:
        if text not in categories:
            return None
        return categories.index(text), 0.0

    grade = parse_grade_text(text)
    if grade is None or not scale.lowest <= grade <= scale.highest:
        return None
    return round_grade(grade) - scale.lowest, grade


def take_judgment_labels(
    judgments: Iterable[Judgment], aspect: str, task: Task, name: str
) -> LabelSet:
    """Return the labels of judgments in one aspect.

    The label is the most probable one; if several are, the one in the answer, else the lowest. An
    inherited judgment has no answer of its own: its label is its rounded grade. Where the task maps
    the grades of its prompt to those of people, the labels are these.
    """
    if aspect == STANCE:
        return _take_stances(judgments, task, name)

    mapping = task.qrels_mapping_of(aspect)
    scale = task.aspects[aspect] if mapping is None else task.qrels_scales[aspect]
    found = LabelSet(name=name, aspect=aspect, categories=_list_categories(scale), scale=scale)
    for judgment in judgments:
        if aspect not in judgment.grades:
            continue
        shares = _find_shares(judgment, aspect, task.aspects[aspect], mapping)
        grade = find_grade(judgment, aspect, task)
        topic = judgment.topic_id
        document = judgment.document_id
        found.labels.setdefault(topic, {})[document] = grade - scale.lowest
        found.grades.setdefault(topic, {})[document] = sum(
            grade * share for grade, share in shares.items()
        )
        if _has_probabilities(judgment.readings.get(aspect)):
            found.probabilities.setdefault(topic, {})[document] = tuple(
                shares.get(grade, 0.0) for grade in scale.grades
            )
    return found


def find_grade(judgment: Judgment, aspect: str, task: Task) -> int:
    """Return the most probable grade of an aspect, see `take_judgment_labels`."""
    mapping = task.qrels_mapping_of(aspect)
    shares = _find_shares(judgment, aspect, task.aspects[aspect], mapping)
    answered = _find_answered(judgment, aspect)
    if mapping is not None:
        answered = mapping[answered]
    highest = max(shares.values())
    best = [grade for grade, share in shares.items() if share == highest]
    return answered if answered in best else min(best)


def _take_stances(judgments: Iterable[Judgment], task: Task, name: str) -> LabelSet:
    """Return the stances of judgments; documents without one are left out."""
    places = {label: place for place, label in enumerate(task.stances)}
    found = LabelSet(name=name, aspect=STANCE, categories=task.stances, scale=None)
    for judgment in judgments:
        if judgment.stance not in places:
            continue
        topic = judgment.topic_id
        document = judgment.document_id
        found.labels.setdefault(topic, {})[document] = places[judgment.stance]

        reading = judgment.readings.get(STANCE)
        is_of_all_labels = reading is not None and set(reading.shares) == set(task.stances)
        if reading is not None and is_of_all_labels and _has_probabilities(reading):
            found.probabilities.setdefault(topic, {})[document] = tuple(
                reading.shares[label] for label in task.stances
            )
    return found


def _has_probabilities(reading: Reading | None) -> bool:
    return reading is not None and reading.probabilities is not None


def _find_shares(
    judgment: Judgment, aspect: str, scale: Scale, mapping: Mapping[int, int] | None
) -> dict[int, float]:
    """Return the probability of each grade; 1 for the grade of a judgment without probabilities.

    A mean grade between two whole ones, which has no probabilities, is shared by these.

    Args:
        judgment: Judgment of a document.
        aspect: Graded aspect.
        scale: Scale of the prompt.
        mapping: Grade of people for each grade of the prompt; None to keep these.
    """
    reading = judgment.readings.get(aspect)
    if reading is not None:
        shares = {int(grade): share for grade, share in reading.shares.items()}
    else:
        grade = judgment.grades[aspect]
        lower = min(int(grade), scale.highest - 1)
        shares = {lower: 1.0 - (grade - lower), lower + 1: grade - lower}
    return shares if mapping is None else _map_shares(shares, mapping)


def _find_answered(judgment: Judgment, aspect: str) -> int:
    """Return the grade in the answer; the rounded grade without an answer."""
    reading = judgment.readings.get(aspect)
    return round_grade(judgment.grades[aspect]) if reading is None else int(reading.answered)


def _map_shares(shares: Mapping[int, float], mapping: Mapping[int, int]) -> dict[int, float]:
    """Return the probabilities of the grades that the grades are mapped to."""
    mapped: dict[int, float] = {}
    for grade, share in shares.items():
        target = mapping[grade]
        mapped[target] = mapped.get(target, 0.0) + share
    return mapped
