"""Agreement of grades and stances with human judgments."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from touche_llm.data.measure import Measure, MeasureName
from touche_llm.data.records import Candidate
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import DataError
from touche_llm.evaluation.intervals import Array, Bounds
from touche_llm.evaluation.qrels import STANCE, Qrels
from touche_llm.evaluation.registry import (
    LabelMeasure,
    MeasureKind,
    list_label_measures,
    register,
)
from touche_llm.evaluation.significance import Estimate, EstimatePair, ratio

# Whole numbers, or sums of them.
Numbers = NDArray[np.int64] | Array
# Places of labels in `task.stances`, of shape (documents,).
Labels = NDArray[np.intp]


def round_grade(grade: float) -> int:
    """Round a grade to the nearest whole grade, halves up; grades below 0 become 0, as in nDCG."""
    return max(math.floor(grade + 0.5), 0)


def macro_f1(hits: Numbers, chosen: Numbers, true: Numbers) -> Array:
    """Compute the mean F1 of the labels, with F1 = 2 tp / (2 tp + fp + fn).

    The mean is over the labels that are true or chosen for at least one document, as in
    scikit-learn. For any other label F1 is 0 / 0; as a 0 it would lower the mean by a label that
    nobody could have got right.

    Args:
        hits: Number of documents for which a label is chosen and true, of shape (…, labels).
        chosen: Number of documents for which it is chosen, likewise.
        true: Number of documents for which it is true, likewise.

    Returns:
        Values of shape (…).
    """
    # 2 tp + fp + fn, since tp + fp = chosen and tp + fn = true.
    chosen_and_true = chosen + true
    # Where this is 0, so are the hits, so that any denominator gives 0.
    f1_of_labels = 2.0 * hits / np.maximum(chosen_and_true, 1)
    occurring_labels = (chosen_and_true > 0).sum(axis=-1)
    return np.asarray(f1_of_labels.sum(axis=-1) / occurring_labels)


def estimate_stances(run: ParsedRun, qrels: Qrels, cutoff: int) -> dict[Measure, Estimate]:
    """Estimate macro-F1 (see `macro_f1`) and accuracy over the judged documents with a label in the run.

    The documents of all topics are pooled: neither value is a mean over topics, and topics without
    such a document are left out. `cutoff` is that of additional estimates over the first documents
    of each topic.

    Raises:
        DataError: The run has a label that the task does not have.
    """
    return _estimate_pooled(run, qrels) | _estimate_pooled(run, qrels, cutoff)


def estimate_common_stances(
    run: ParsedRun, baseline: ParsedRun, qrels: Qrels
) -> dict[Measure, EstimatePair]:
    """Estimate macro-F1 and accuracy of two runs over the judged documents with a label in both.

    Measured over different documents, one of the runs could look better because it leaves hard
    documents without a label, or because it ranks easier ones.
    """
    common = run.stances.keys() & baseline.stances.keys()
    estimates = _estimate_pooled(_keep_stances(run, common), qrels)
    baseline_estimates = _estimate_pooled(_keep_stances(baseline, common), qrels)

    pairs: dict[Measure, EstimatePair] = {}
    for measure, estimate in estimates.items():
        pairs[measure] = EstimatePair(estimate, baseline_estimates[measure])
    return pairs


def _keep_stances(run: ParsedRun, keys: Collection[tuple[str, str]]) -> ParsedRun:
    """Return a run with the stances of these topics and documents alone."""
    return replace(run, stances={key: run.stances[key] for key in keys})


def estimate_labels(run: ParsedRun, qrels: Qrels) -> dict[Measure, Estimate]:
    """Estimate precision and recall of each label over the judged documents with a label in the run.

    Returns:
        Estimates by measure: the precision of a label over the topics with documents that have it
        in the run, its recall over the topics with documents for which it is true.
    """
    tables = _count_labels(run, qrels)
    topics = list(tables)
    # Of shape (topics, true labels, labels of the run).
    counts = np.array(list(tables.values()))

    precisions: dict[Measure, Estimate] = {}
    recalls: dict[Measure, Estimate] = {}
    for index, label in enumerate(qrels.labels):
        # Numbers of documents by topic: of those that have the label in both, in the run, in truth.
        hits = counts[:, index, index]
        labelled_by_run = counts[:, :, index].sum(axis=1)
        labelled_in_truth = counts[:, index, :].sum(axis=1)

        precision = Measure(STANCE, MeasureName.LABEL_PRECISION, label=label)
        precisions[precision] = _estimate_share(topics, hits, labelled_by_run)
        recall = Measure(STANCE, MeasureName.LABEL_RECALL, label=label)
        recalls[recall] = _estimate_share(topics, hits, labelled_in_truth)
    return precisions | recalls


def _estimate_share(
    topics: Sequence[str], hits: NDArray[np.int64], documents: NDArray[np.int64]
) -> Estimate:
    """Estimate the share of hits among the documents of all topics together.

    Args:
        topics: Topics; those without documents do not contribute.
        hits: Number of hits of each topic.
        documents: Number of documents of each topic.
    """
    counts = np.column_stack([hits, documents]).astype(np.float64)
    used = np.flatnonzero(documents).tolist()
    return Estimate(
        topics=tuple(topics[index] for index in used),
        counts=counts[used],
        formula=ratio,
        documents=int(documents.sum()),
    )


def count_confusion(run: ParsedRun, qrels: Qrels) -> NDArray[np.int64]:
    """Count the judged documents by true label (rows) and the run's label (columns).

    Labels are in the order of `qrels.labels`.
    """
    tables = list(_count_labels(run, qrels).values())
    counts: NDArray[np.int64] = np.array(tables).sum(axis=0)
    return counts


def _count_labels(
    run: ParsedRun, qrels: Qrels, cutoff: int | None = None
) -> dict[str, NDArray[np.int64]]:
    """Count the documents of each judged topic by true label (rows) and the run's label (columns).

    Documents without either label do not count.

    Args:
        run: Run with the labels.
        qrels: True labels.
        cutoff: Number of first documents of each topic that count; None for all.

    Raises:
        DataError: The run has a label that the task does not have.
    """
    tables: dict[str, NDArray[np.int64]] = {}
    for topic_id, true_labels in qrels.stances.items():
        candidates = run.rankings.get(topic_id, [])[:cutoff]
        tables[topic_id] = _count_topic(candidates, run, true_labels, qrels.labels)
    return tables


def _count_topic(
    candidates: Iterable[Candidate],
    run: ParsedRun,
    true_labels: Mapping[str, str],
    labels: Sequence[str],
) -> NDArray[np.int64]:
    """Count documents of a topic by true label (rows) and the run's label (columns).

    Args:
        candidates: Documents that count.
        run: Run with the labels.
        true_labels: True labels by document id.
        labels: All labels, in the order of rows and columns.

    Raises:
        DataError: The run has a label that is none of `labels`.
    """
    index_of_label = {label: index for index, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)), dtype=np.int64)
    for candidate in candidates:
        label = run.stances.get((candidate.topic_id, candidate.document_id))
        if label is None:
            continue
        # An unknown label is an error even if the document has no true label.
        _check_label(label, candidate, labels)

        true_label = true_labels.get(candidate.document_id)
        if true_label is not None:
            table[index_of_label[true_label], index_of_label[label]] += 1
    return table


def _check_label(label: str, candidate: Candidate, labels: Sequence[str]) -> None:
    """Raise DataError if a run's label of a document is none of the known labels."""
    if label not in labels:
        raise DataError(
            f"topic {candidate.topic_id}, document {candidate.document_id}: the run has the stance "
            f"{label!r:.40}, not one of {', '.join(labels)}; evaluate the run with its own task"
        )


def _estimate_pooled(
    run: ParsedRun, qrels: Qrels, cutoff: int | None = None
) -> dict[Measure, Estimate]:
    """Estimate macro-F1 and accuracy over the judged documents with a label in the run.

    Topics without such a document are left out.

    Args:
        run: Run with the labels.
        qrels: True labels.
        cutoff: Number of first documents of each topic that count; None for all.
    """
    tables = _count_labels(run, qrels, cutoff)
    used_tables = {topic_id: table for topic_id, table in tables.items() if table.any()}
    # Of shape (topics, labels * labels): the cells of a topic's table in a row, which the formula
    # puts back into a table.
    flat_counts = np.zeros((len(used_tables), len(qrels.labels) ** 2))
    for row, table in enumerate(used_tables.values()):
        flat_counts[row] = table.ravel()

    estimates: dict[Measure, Estimate] = {}
    for kind in list_label_measures():
        measure = Measure(STANCE, kind.name, cutoff)
        estimates[measure] = Estimate(
            topics=tuple(used_tables),
            counts=flat_counts,
            formula=partial(_compute_from_counts, kind.formula),
            documents=int(flat_counts.sum()),
            bounds=kind.bounds,
        )
    return estimates


def _to_matrix(counts: Array) -> Array:
    """Return confusion matrices, from (…, labels * labels) to (…, labels, labels)."""
    labels = round(counts.shape[-1] ** 0.5)
    return counts.reshape(*counts.shape[:-1], labels, labels)


def _compute_from_counts(formula: Callable[[Array], Array], counts: Array) -> Array:
    """Compute values by a formula for confusion matrices, (…, labels * labels) to (…)."""
    return formula(_to_matrix(counts))


def _macro_f1(matrix: Array) -> Array:
    """Compute macro-F1 of confusion matrices, (…, labels, labels) to (…)."""
    return macro_f1(
        hits=matrix.diagonal(axis1=-2, axis2=-1),
        chosen=matrix.sum(axis=-2),
        true=matrix.sum(axis=-1),
    )


def _accuracy(matrix: Array) -> Array:
    """Compute the accuracy of confusion matrices, (…, labels, labels) to (…)."""
    hits = matrix.trace(axis1=-2, axis2=-1)
    return np.asarray(hits / matrix.sum(axis=(-2, -1)))


register(
    LabelMeasure(
        name=MeasureName.MACRO_F1,
        definition="mean F1 of the labels that occur among the judged documents with a label",
        formula=_macro_f1,
        order=60,
    )
)
register(
    LabelMeasure(
        name=MeasureName.ACCURACY,
        definition="share of the judged documents with a label whose label is the true one",
        formula=_accuracy,
        order=70,
    )
)
register(
    MeasureKind(
        name=MeasureName.LABEL_PRECISION,
        definition="share of the documents with a label for which it is the true one",
        is_of_label=True,
        order=80,
    )
)
register(
    MeasureKind(
        name=MeasureName.LABEL_RECALL,
        definition="share of the documents for which a label is true that have it",
        is_of_label=True,
        order=81,
    )
)
register(
    MeasureKind(
        name=MeasureName.KAPPA,
        definition="agreement of grades with those of people, with quadratic weights",
        reference="J. Cohen, Psychological Bulletin 70, 1968",
        cutoffs=(None,),
        bounds=Bounds(-1.0, 1.0),
        order=90,
    )
)
register(
    MeasureKind(
        name=MeasureName.SPEARMAN,
        definition="rank correlation of grades with those of people, where their scales differ",
        reference="C. Spearman, American Journal of Psychology 15, 1904",
        cutoffs=(None,),
        bounds=Bounds(-1.0, 1.0),
        order=91,
    )
)
