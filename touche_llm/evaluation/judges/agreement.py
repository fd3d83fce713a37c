"""Agreement of one judge with people in one aspect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from touche_llm.errors import DataError
from touche_llm.evaluation.intervals import SHARE, Array, Bounds, Formula
from touche_llm.evaluation.judges.label_tables import (
    compute_accuracy,
    compute_auc,
    compute_kappa,
    compute_macro_f1,
    compute_quadratic_kappa,
    compute_spearman,
)
from touche_llm.evaluation.judges.labels import LabelSet
from touche_llm.evaluation.judges.probabilities import (
    BrierParts,
    ReliabilityBin,
    decompose_brier_score,
    list_reliability,
)
from touche_llm.evaluation.significance import Estimate, ratio

# Lowest grade of a relevant document, as in P and R.
RELEVANT = 1
# Bounds of kappa and of correlations.
CORRELATION = Bounds(-1.0, 1.0)
Indices = NDArray[np.intp]


class AgreementName(StrEnum):
    """What is measured of a judge; the labels are its most probable ones."""

    KAPPA = "kappa"
    QUADRATIC_KAPPA = "quadratic kappa"
    SPEARMAN = "Spearman"
    AUC = f"AUC of {RELEVANT} or more"
    MEAN_ERROR = "mean error"
    MACRO_F1 = "macro-F1"
    ACCURACY = "accuracy"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of a judge with people over the documents that both label.

    Attributes:
        judge: Labels of the judge.
        people: Labels of people.
        topics: Topics with such a document.
        table: Number of documents, (topics, labels of people, labels of the judge).
        estimates: Estimates by measure; without kappa and the mean error if the scales differ.
        error_by_grade: Mean error over the documents with each grade of people that occurs; empty
            if the scales differ.
        brier: Brier score and its parts; None without probabilities of all labels of people.
        reliability: Reliability of the probabilities, likewise.
        probability_documents: Number of documents with probabilities.
    """

    judge: LabelSet
    people: LabelSet
    topics: tuple[str, ...]
    table: NDArray[np.int64]
    estimates: dict[AgreementName, Estimate]
    error_by_grade: dict[int, Estimate]
    brier: BrierParts | None
    reliability: list[ReliabilityBin]
    probability_documents: int

    @property
    def aspect(self) -> str:
        """Judged aspect."""
        return self.people.aspect

    @property
    def documents(self) -> int:
        """Number of documents that both label."""
        return int(self.table.sum())

    @property
    def confusion(self) -> NDArray[np.int64]:
        """Number of documents of all topics, (labels of people, labels of the judge)."""
        sums: NDArray[np.int64] = self.table.sum(axis=0)
        return sums

    @property
    def has_same_scale(self) -> bool:
        """Whether the grades of the judge and of people can be compared one by one."""
        return self.judge.categories == self.people.categories

    @property
    def unlabelled(self) -> int:
        """Number of documents of people that the judge does not label."""
        return sum(map(len, self.people.labels.values())) - self.documents


@dataclass(frozen=True, slots=True)
class JointLabels:
    """Labels of the documents that people and a judge label, an entry for each document.

    Attributes:
        topics: Topics with such a document.
        keys: Topic and document.
        topic_places: Place of the topic in `topics`.
        people: Place of people's label in their categories.
        judge: Place of the judge's label in its categories.
        errors: Expected grade of the judge minus that of people; 0 for the stance.
    """

    topics: tuple[str, ...]
    keys: list[tuple[str, str]]
    topic_places: Indices
    people: Indices
    judge: Indices
    errors: Array


def join_labels(
    people: LabelSet, judge: LabelSet, keys: Sequence[tuple[str, str]] | None = None
) -> JointLabels:
    """Join the labels of people and of a judge.

    Args:
        people: Labels of people.
        judge: Labels of the judge.
        keys: Documents to join, which both label; None for all of them.
    """
    if keys is None:
        keys = list_common_keys(people, [judge])
    topics = tuple(dict.fromkeys(topic for topic, _ in keys))
    places = {topic: place for place, topic in enumerate(topics)}
    return JointLabels(
        topics=topics,
        keys=list(keys),
        topic_places=np.array([places[topic] for topic, _ in keys], dtype=np.intp),
        people=_take_labels(people, keys),
        judge=_take_labels(judge, keys),
        errors=_take_grades(judge, keys) - _take_grades(people, keys),
    )


def list_common_keys(people: LabelSet, judges: Sequence[LabelSet]) -> list[tuple[str, str]]:
    """Return the documents that people and all judges label, in people's order."""
    keys: list[tuple[str, str]] = []
    for topic, judged in people.labels.items():
        labelled = [judge.labels.get(topic, {}) for judge in judges]
        for document in judged:
            if all(document in of_judge for of_judge in labelled):
                keys.append((topic, document))
    return keys


def _take_labels(labels: LabelSet, keys: Sequence[tuple[str, str]]) -> Indices:
    places = [labels.labels[topic][document] for topic, document in keys]
    return np.array(places, dtype=np.intp)


def _take_grades(labels: LabelSet, keys: Sequence[tuple[str, str]]) -> Array:
    """Return the grades of documents; 0 for the stance."""
    if labels.scale is None:
        return np.zeros(len(keys))
    return np.array([labels.grades[topic][document] for topic, document in keys], dtype=np.float64)


def count_labels(joint: JointLabels, rows: int, columns: int) -> NDArray[np.int64]:
    """Count documents by topic, label of people and label of the judge, (topics, rows, columns)."""
    cells = (joint.topic_places * rows + joint.people) * columns + joint.judge
    counts = np.bincount(cells, minlength=len(joint.topics) * rows * columns)
    return counts.reshape(len(joint.topics), rows, columns)


def measure_agreement(people: LabelSet, judge: LabelSet) -> Agreement:
    """Measure the agreement of a judge with people over the documents that both label.

    Raises:
        DataError: There is no such document.
    """
    joint = join_labels(people, judge)
    if not joint.keys:
        raise DataError(
            f"{judge.name}: no document is in the {people.aspect} qrels and has a label of the judge; give "
            "labels of the same topics and corpus"
        )

    table = count_labels(joint, len(people.categories), len(judge.categories))
    documents_with_probabilities = _list_with_probabilities(people, judge, joint)
    brier = None
    reliability: list[ReliabilityBin] = []
    if documents_with_probabilities:
        probabilities, truth = _stack_probabilities(people, judge, documents_with_probabilities)
        brier = decompose_brier_score(probabilities, truth)
        reliability = list_reliability(probabilities, truth)

    return Agreement(
        judge=judge,
        people=people,
        topics=joint.topics,
        table=table,
        estimates=estimate_agreement(people, judge, joint),
        error_by_grade=_estimate_errors_by_grade(people, judge, joint),
        brier=brier,
        reliability=reliability,
        probability_documents=len(documents_with_probabilities),
    )


def estimate_agreement(
    people: LabelSet, judge: LabelSet, joint: JointLabels
) -> dict[AgreementName, Estimate]:
    """Estimate the measures of agreement; kappa and the mean error only of the same scale."""
    estimates = estimate_tables(people, judge, joint)
    if _have_same_scale(people, judge):
        estimates[AgreementName.MEAN_ERROR] = _estimate_mean_error(people, joint)
    return estimates


def _have_same_scale(people: LabelSet, judge: LabelSet) -> bool:
    """Return whether both have grades, on the same scale."""
    return people.scale is not None and people.scale == judge.scale


def estimate_tables(
    people: LabelSet, judge: LabelSet, joint: JointLabels
) -> dict[AgreementName, Estimate]:
    """Estimate the measures that are computed from the table of labels."""
    table = count_labels(joint, len(people.categories), len(judge.categories))
    counts = table.reshape(len(joint.topics), -1).astype(np.float64)
    formulas = choose_formulas(people, judge)
    estimates: dict[AgreementName, Estimate] = {}
    for name, (formula, bounds) in formulas.items():
        estimates[name] = Estimate(
            topics=joint.topics,
            counts=counts,
            formula=formula,
            documents=len(joint.keys),
            bounds=bounds,
        )
    return estimates


def choose_formulas(
    people: LabelSet, judge: LabelSet
) -> dict[AgreementName, tuple[Formula, Bounds]]:
    """Return the formulas of the measures of a table, whose cells are flattened, and their bounds."""
    rows = len(people.categories)
    columns = len(judge.categories)
    formulas: dict[AgreementName, tuple[Formula, Bounds]] = {}
    is_same = people.categories == judge.categories
    if is_same:
        kappa = _on_tables(compute_kappa, rows, columns)
        formulas[AgreementName.KAPPA] = (kappa, CORRELATION)
    if people.scale is None:
        macro_f1 = _on_tables(compute_macro_f1, rows, columns)
        accuracy = _on_tables(compute_accuracy, rows, columns)
        formulas[AgreementName.MACRO_F1] = (macro_f1, SHARE)
        formulas[AgreementName.ACCURACY] = (accuracy, SHARE)
        return formulas

    if is_same:
        quadratic = _on_tables(compute_quadratic_kappa, rows, columns)
        formulas[AgreementName.QUADRATIC_KAPPA] = (quadratic, CORRELATION)
    grades = people.scale.grades

    def compute_auc_of_tables(tables: Array) -> Array:
        return compute_auc(tables, grades, RELEVANT)

    spearman = _on_tables(compute_spearman, rows, columns)
    formulas[AgreementName.SPEARMAN] = (spearman, CORRELATION)
    formulas[AgreementName.AUC] = (_on_tables(compute_auc_of_tables, rows, columns), SHARE)
    return formulas


def _on_tables(compute: Callable[[Array], Array], rows: int, columns: int) -> Formula:
    """Return a formula of flattened tables, from (…, rows * columns) to (…)."""

    def formula(cells: Array) -> Array:
        return compute(cells.reshape(*cells.shape[:-1], rows, columns))

    return formula


def _estimate_mean_error(
    people: LabelSet, joint: JointLabels, is_counted: NDArray[np.bool_] | None = None
) -> Estimate:
    """Estimate the mean error of the expected grade, positive if the judge over-rates.

    Args:
        people: Labels of people.
        joint: Labels of documents.
        is_counted: Whether each document counts; None if all do.
    """
    if is_counted is None:
        is_counted = np.ones(len(joint.keys), dtype=np.bool_)
    places = joint.topic_places[is_counted]
    sums = np.bincount(places, joint.errors[is_counted], minlength=len(joint.topics))
    documents = np.bincount(places, minlength=len(joint.topics))
    counts = np.stack([sums, documents.astype(np.float64)], axis=1)
    has_documents = counts[:, 1] > 0.0
    topics = tuple(
        topic for topic, is_used in zip(joint.topics, has_documents, strict=True) if is_used
    )
    return Estimate(
        topics=topics,
        counts=counts[has_documents],
        formula=ratio,
        documents=len(places),
        bounds=find_error_bounds(people),
    )


def find_error_bounds(people: LabelSet) -> Bounds:
    """Return the range of errors of grades on the scale of people."""
    places = len(people.categories) - 1
    return Bounds(-float(places), float(places))


def _estimate_errors_by_grade(
    people: LabelSet, judge: LabelSet, joint: JointLabels
) -> dict[int, Estimate]:
    """Estimate the mean error over the documents of each grade of people that occurs."""
    if people.scale is None or people.scale != judge.scale:
        return {}
    estimates: dict[int, Estimate] = {}
    for place, grade in enumerate(people.scale.grades):
        is_of_grade = joint.people == place
        if is_of_grade.any():
            estimates[grade] = _estimate_mean_error(people, joint, is_of_grade)
    return estimates


def _list_with_probabilities(
    people: LabelSet, judge: LabelSet, joint: JointLabels
) -> list[tuple[str, str]]:
    """Return the documents whose probabilities are of the labels of people."""
    if judge.categories != people.categories:
        return []
    return [
        (topic, document)
        for topic, document in joint.keys
        if document in judge.probabilities.get(topic, ())
    ]


def _stack_probabilities(
    people: LabelSet, judge: LabelSet, keys: Sequence[tuple[str, str]]
) -> tuple[Array, Indices]:
    """Return the probabilities of documents, (documents, labels), and their true labels."""
    rows = [judge.probabilities[topic][document] for topic, document in keys]
    return np.array(rows, dtype=np.float64), _take_labels(people, keys)
