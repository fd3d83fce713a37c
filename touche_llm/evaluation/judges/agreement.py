"""Agreement of one judge with people in one aspect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from touche_llm.errors import DataError
from touche_llm.evaluation.intervals import SHARE, Array, Bounds
from touche_llm.evaluation.judges.label_tables import (
    compute_accuracy,
    compute_auc,
    compute_kappa,
    compute_macro_f1,
    compute_quadratic_kappa,
    compute_spearman,
)
from touche_llm.evaluation.judges.labels import DocumentKey, LabelSet
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
class ProbabilityScores:
    """Scores of the probabilities that a judge gives to labels.

    Attributes:
        brier: Brier score and its parts.
        reliability: Bins of probabilities, with the share of true labels in each.
        documents: Number of documents with probabilities.
    """

    brier: BrierParts
    reliability: list[ReliabilityBin]
    documents: int


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
        probabilities: Scores of its probabilities; None without probabilities of all labels of
            people.
    """

    judge: LabelSet
    people: LabelSet
    topics: tuple[str, ...]
    table: NDArray[np.int64]
    estimates: dict[AgreementName, Estimate]
    error_by_grade: dict[int, Estimate]
    probabilities: ProbabilityScores | None

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
        documents: Topic and document ids.
        topic_indices: Index of the topic in `topics`.
        people: Index of people's label in their categories.
        judge: Index of the judge's label in its categories.
        errors: Expected grade of the judge minus that of people; 0 for the stance.
    """

    topics: tuple[str, ...]
    documents: list[DocumentKey]
    topic_indices: Indices
    people: Indices
    judge: Indices
    errors: Array


def join_labels(people: LabelSet, judge: LabelSet, documents: Sequence[DocumentKey]) -> JointLabels:
    """Join the labels that people and a judge give to documents.

    Args:
        people: Labels of people.
        judge: Labels of the judge.
        documents: Topic and document ids; both label each of them.
    """
    topics = tuple(dict.fromkeys(topic_id for topic_id, _ in documents))
    index_of_topic = {topic_id: index for index, topic_id in enumerate(topics)}
    topic_indices = [index_of_topic[topic_id] for topic_id, _ in documents]
    return JointLabels(
        topics=topics,
        documents=list(documents),
        topic_indices=np.array(topic_indices, dtype=np.intp),
        people=_take_labels(people, documents),
        judge=_take_labels(judge, documents),
        errors=_take_grades(judge, documents) - _take_grades(people, documents),
    )


def list_common_documents(people: LabelSet, judges: Sequence[LabelSet]) -> list[DocumentKey]:
    """Return the documents that people and all judges label, in people's order."""
    documents: list[DocumentKey] = []
    for topic_id, labels_of_people in people.labels.items():
        labels_of_judges = [judge.labels.get(topic_id, {}) for judge in judges]
        for document_id in labels_of_people:
            if all(document_id in labels for labels in labels_of_judges):
                documents.append((topic_id, document_id))
    return documents


def _take_labels(labels: LabelSet, documents: Iterable[DocumentKey]) -> Indices:
    """Return the labels of documents, as indices in the categories."""
    categories = [labels.labels[topic_id][document_id] for topic_id, document_id in documents]
    return np.array(categories, dtype=np.intp)


def _take_grades(labels: LabelSet, documents: Sequence[DocumentKey]) -> Array:
    """Return the expected grades of documents; 0 for the stance."""
    if labels.scale is None:
        return np.zeros(len(documents))
    grades = [labels.grades[topic_id][document_id] for topic_id, document_id in documents]
    return np.array(grades, dtype=np.float64)


def count_labels(people: LabelSet, judge: LabelSet, joint: JointLabels) -> NDArray[np.int64]:
    """Count the documents of each topic by both labels.

    Returns:
        Counts, of shape (topics, labels of people, labels of the judge).
    """
    shape = (len(joint.topics), len(people.categories), len(judge.categories))
    counts = np.zeros(shape, dtype=np.int64)
    np.add.at(counts, (joint.topic_indices, joint.people, joint.judge), 1)
    return counts


def measure_agreement(people: LabelSet, judge: LabelSet) -> Agreement:
    """Measure the agreement of a judge with people over the documents that both label.

    Raises:
        DataError: There is no such document.
    """
    documents = list_common_documents(people, [judge])
    if not documents:
        raise DataError(
            f"{judge.name}: no document is in the {people.aspect} qrels and has a label of the judge; give "
            "labels of the same topics and corpus"
        )

    joint = join_labels(people, judge, documents)
    return Agreement(
        judge=judge,
        people=people,
        topics=joint.topics,
        table=count_labels(people, judge, joint),
        estimates=estimate_agreement(people, judge, joint),
        error_by_grade=_estimate_errors_by_grade(people, judge, joint),
        probabilities=_score_probabilities(people, judge, documents),
    )


def estimate_agreement(
    people: LabelSet, judge: LabelSet, joint: JointLabels
) -> dict[AgreementName, Estimate]:
    """Estimate the measures of agreement; kappa and the mean error only of the same scale."""
    estimates = estimate_tables(people, judge, joint)
    if _have_same_scale(people, judge):
        all_documents = np.full(len(joint.documents), True)
        estimates[AgreementName.MEAN_ERROR] = _estimate_mean_error(people, joint, all_documents)
    return estimates


def _have_same_scale(people: LabelSet, judge: LabelSet) -> bool:
    """Return whether both have grades, on the same scale."""
    return people.scale is not None and people.scale == judge.scale


def estimate_tables(
    people: LabelSet, judge: LabelSet, joint: JointLabels
) -> dict[AgreementName, Estimate]:
    """Estimate the measures that are computed from the table of labels."""
    tables = count_labels(people, judge, joint).astype(np.float64)
    topics, rows, columns = tables.shape
    cells = tables.reshape(topics, rows * columns)

    estimates: dict[AgreementName, Estimate] = {}
    for measure in choose_measures(people, judge):
        estimates[measure.name] = Estimate(
            topics=joint.topics,
            counts=cells,
            formula=partial(_compute_from_cells, measure.compute, (rows, columns)),
            documents=len(joint.documents),
            bounds=measure.bounds,
        )
    return estimates


def _compute_from_cells(
    compute: Callable[[Array], Array], shape: tuple[int, int], cells: Array
) -> Array:
    """Compute a measure of tables of this shape, whose cells are in one axis, (…, cells) to (…)."""
    tables = cells.reshape(*cells.shape[:-1], *shape)
    return compute(tables)


@dataclass(frozen=True, slots=True)
class _TableMeasure:
    """Measure that is computed from tables of people's labels and a judge's.

    Attributes:
        name: Name of the measure.
        compute: Computes the values of tables, from (…, rows, columns) to (…).
        bounds: Range of the values.
    """

    name: AgreementName
    compute: Callable[[Array], Array]
    bounds: Bounds


def choose_measures(people: LabelSet, judge: LabelSet) -> list[_TableMeasure]:
    """Choose the measures of a table of labels: those of stances, or those of grades.

    Kappa is among them if the labels of people and of the judge are the same.
    """
    kappa = _TableMeasure(AgreementName.KAPPA, compute_kappa, CORRELATION)
    has_same_labels = people.categories == judge.categories
    measures = [kappa] if has_same_labels else []

    if people.scale is None:
        measures.append(_TableMeasure(AgreementName.MACRO_F1, compute_macro_f1, SHARE))
        measures.append(_TableMeasure(AgreementName.ACCURACY, compute_accuracy, SHARE))
        return measures

    if has_same_labels:
        quadratic = AgreementName.QUADRATIC_KAPPA
        measures.append(_TableMeasure(quadratic, compute_quadratic_kappa, CORRELATION))
    compute_auc_of_scale = partial(compute_auc, grades=people.scale.grades, threshold=RELEVANT)
    measures.append(_TableMeasure(AgreementName.SPEARMAN, compute_spearman, CORRELATION))
    measures.append(_TableMeasure(AgreementName.AUC, compute_auc_of_scale, SHARE))
    return measures


def _estimate_mean_error(
    people: LabelSet, joint: JointLabels, is_counted: NDArray[np.bool_]
) -> Estimate:
    """Estimate the mean error of the expected grade, positive if the judge over-rates.

    Args:
        people: Labels of people.
        joint: Labels of documents.
        is_counted: Whether each document counts.
    """
    topic_indices = joint.topic_indices[is_counted]
    errors = joint.errors[is_counted]
    topic_count = len(joint.topics)
    error_sums = np.bincount(topic_indices, weights=errors, minlength=topic_count)
    document_counts = np.bincount(topic_indices, minlength=topic_count)

    counts = np.column_stack([error_sums, document_counts]).astype(np.float64)
    used_topics = np.flatnonzero(document_counts)
    return Estimate(
        topics=tuple(joint.topics[index] for index in used_topics),
        counts=counts[used_topics],
        formula=ratio,
        documents=len(errors),
        bounds=find_error_bounds(people),
    )


def find_error_bounds(people: LabelSet) -> Bounds:
    """Return the range of errors of grades on the scale of people."""
    largest_error = float(len(people.categories) - 1)
    return Bounds(-largest_error, largest_error)


def _estimate_errors_by_grade(
    people: LabelSet, judge: LabelSet, joint: JointLabels
) -> dict[int, Estimate]:
    """Estimate the mean error over the documents of each grade of people that occurs.

    Empty if the scales differ.
    """
    if people.scale is None or people.scale != judge.scale:
        return {}

    estimates: dict[int, Estimate] = {}
    for category, grade in enumerate(people.scale.grades):
        has_grade = joint.people == category
        if has_grade.any():
            estimates[grade] = _estimate_mean_error(people, joint, has_grade)
    return estimates


def _score_probabilities(
    people: LabelSet, judge: LabelSet, documents: Sequence[DocumentKey]
) -> ProbabilityScores | None:
    """Score the probabilities that a judge gives to the labels of people; None without any."""
    if judge.categories != people.categories:
        return None

    scored: list[DocumentKey] = []
    probabilities: list[tuple[float, ...]] = []
    for topic_id, document_id in documents:
        probabilities_of_topic = judge.probabilities.get(topic_id, {})
        if document_id in probabilities_of_topic:
            scored.append((topic_id, document_id))
            probabilities.append(probabilities_of_topic[document_id])
    if not scored:
        return None

    stacked = np.array(probabilities, dtype=np.float64)
    true_labels = _take_labels(people, scored)
    return ProbabilityScores(
        brier=decompose_brier_score(stacked, true_labels),
        reliability=list_reliability(stacked, true_labels),
        documents=len(scored),
    )
