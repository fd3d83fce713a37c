"""Stance measures: agreement of a run's labels with the true ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import DataError
from touche_llm.evaluation.qrels import Qrels
from touche_llm.evaluation.significance import Array, Estimate, ratio


def round_grade(grade: float) -> int:
    """Round a grade to the nearest whole grade, halves up; grades below 0 become 0, as in nDCG."""
    return max(math.floor(grade + 0.5), 0)


def estimate_kappa(pairs: Mapping[str, Iterable[tuple[float, float]]]) -> Estimate:
    """Estimate Cohen's kappa, with quadratic weights, of two gradings of the same documents in whole grades.

    kappa = 1 - (observed disagreement) / (disagreement expected by chance), where a disagreement counts as the square
    of the difference (J. Cohen, Weighted kappa, Psychological Bulletin 70, 1968). With such weights kappa depends
    only on sums of grades, of their squares and of their products, so topics add up.

    If all grades of both are the same, kappa is 0 / 0; it counts as 1, since they agree.

    Args:
        pairs: The two grades of each document, by topic; topics without documents are left out.
    """
    sums: dict[str, Array] = {}
    for topic, grades in pairs.items():
        if rounded := [(round_grade(a), round_grade(b)) for a, b in grades]:
            sums[topic] = np.array([(1, a, b, a**2 + b**2, a * b) for a, b in rounded], dtype=np.float64).sum(axis=0)
    counts = np.array(list(sums.values())).reshape(len(sums), 5)
    return Estimate(tuple(sums), counts, _kappa, int(counts[:, 0].sum()))


def _kappa(counts: Array) -> Array:
    n, one, other, squares, products = np.moveaxis(counts, -1, 0)
    # Both are multiplied by the squared number of documents.
    observed, expected = n * (squares - 2.0 * products), n * squares - 2.0 * one * other
    share: Array = np.divide(observed, expected, out=np.zeros_like(observed), where=expected > 0.0)
    return np.asarray(1.0 - share)


def macro_f1(hits: NDArray[Any], chosen: NDArray[Any], true: NDArray[Any]) -> Array:
    """Compute the mean F1 of the labels, with F1 = 2 tp / (2 tp + fp + fn).

    The mean is over the labels that are true or chosen for at least one document, as in scikit-learn: for the others F1
    is 0 / 0, and counting it as 0 would lower the mean by a label that nobody could have got right.

    Args:
        hits: Numbers of documents for which a label is both chosen and true, of shape (…, labels).
        chosen: Numbers of documents for which it is chosen, (…, labels).
        true: Numbers of documents for which it is true, (…, labels).

    Returns:
        Macro-F1 of shape (…); each element needs at least one document.
    """
    # 2 tp + fp + fn = chosen + true; if this is 0, so is tp.
    counted = chosen + true
    return np.asarray((2.0 * hits / np.maximum(counted, 1)).sum(axis=-1) / (counted > 0).sum(axis=-1))


def estimate_stances(run: ParsedRun, qrels: Qrels, cutoff: int) -> dict[str, Estimate]:
    """Estimate macro-F1 (see `macro_f1`) and accuracy over the judged documents with a label in the run.

    The documents of all topics are pooled: neither value is a mean over topics.

    Args:
        run: Run with labels in its stance column; `Q0` is no label.
        qrels: Judgments with stances.
        cutoff: Cutoff of additional estimates over the first documents of each topic.

    Returns:
        Estimates by measure; topics without such a document are left out.

    Raises:
        DataError: The run has a label that the task does not have.
    """
    return _pool(_count_labels(run, qrels, None), "") | _pool(_count_labels(run, qrels, cutoff), f"@{cutoff}")


def estimate_common_stances(run: ParsedRun, other: ParsedRun, qrels: Qrels) -> dict[str, tuple[Estimate, Estimate]]:
    """Estimate macro-F1 and accuracy of two runs over the judged documents with a label in both.

    Over its own documents, a run could look better by leaving hard ones without a label or by ranking other documents.

    Returns:
        By measure, the first run's estimate and the other's.
    """
    both = run.stances.keys() & other.stances.keys()
    estimates, others = (
        _pool(_count_labels(replace(labelled, stances={key: labelled.stances[key] for key in both}), qrels, None), "")
        for labelled in (run, other)
    )
    return {measure: (estimate, others[measure]) for measure, estimate in estimates.items()}


def estimate_labels(run: ParsedRun, qrels: Qrels) -> dict[str, Estimate]:
    """Estimate precision and recall of each label, over the documents of `estimate_stances`.

    Returns:
        Estimates by measure, such as `stance precision NO`, over the topics with documents that have this label in the
        run (precision) or for which it is true (recall).
    """
    tables = np.array(list(_count_labels(run, qrels, None).values()))
    topics = list(qrels.stances)
    estimates = {}
    for name, axis in (("precision", 1), ("recall", 2)):
        of_label = tables.sum(axis=axis)
        for place, label in enumerate(qrels.labels):
            hits, whole = tables[:, place, place], of_label[:, place]
            kept = whole > 0
            counts = np.stack([hits[kept], whole[kept]], axis=1).astype(np.float64)
            topics_kept = tuple(topic for topic, keep in zip(topics, kept, strict=True) if keep)
            estimates[f"stance {name} {label}"] = Estimate(topics_kept, counts, ratio, int(whole.sum()))
    return estimates


def count_confusion(run: ParsedRun, qrels: Qrels) -> NDArray[np.int64]:
    """Count the documents by true label (rows) and the run's label (columns), in the order of `qrels.labels`."""
    counts: NDArray[np.int64] = np.array(list(_count_labels(run, qrels, None).values())).sum(axis=0)
    return counts


def _count_labels(run: ParsedRun, qrels: Qrels, cutoff: int | None) -> dict[str, NDArray[np.int64]]:
    """Return the confusion matrix of each judged topic: true labels in rows, the run's in columns."""
    places = {label: place for place, label in enumerate(qrels.labels)}
    tables = {}
    for topic, truth in qrels.stances.items():
        table = np.zeros((len(places), len(places)), dtype=np.int64)
        for candidate in run.rankings.get(topic, [])[:cutoff]:
            chosen = run.stances.get((topic, candidate.document_id))
            if chosen is not None and chosen not in places:
                raise DataError(
                    f"topic {topic}, document {candidate.document_id}: the run has the stance {chosen!r:.40}, not one "
                    f"of {', '.join(places)}; evaluate the run with its own task"
                )
            if chosen is not None and candidate.document_id in truth:
                table[places[truth[candidate.document_id]], places[chosen]] += 1
        tables[topic] = table
    return tables


def _pool(tables: Mapping[str, NDArray[np.int64]], suffix: str) -> dict[str, Estimate]:
    """Estimate macro-F1 and accuracy from confusion matrices by topic; topics without documents are left out."""
    kept = {topic: table for topic, table in tables.items() if table.any()}
    size = next(iter(tables.values())).size
    counts = np.array(list(kept.values()), dtype=np.float64).reshape(len(kept), size)
    return {
        f"stance {name}{suffix}": Estimate(tuple(kept), counts, formula, int(counts.sum()))
        for name, formula in (("macro-F1", _macro_f1), ("accuracy", _accuracy))
    }


def _to_matrix(counts: Array) -> Array:
    labels = round(counts.shape[-1] ** 0.5)
    return counts.reshape(*counts.shape[:-1], labels, labels)


def _macro_f1(counts: Array) -> Array:
    table = _to_matrix(counts)
    return macro_f1(table.diagonal(axis1=-2, axis2=-1), table.sum(axis=-2), table.sum(axis=-1))


def _accuracy(counts: Array) -> Array:
    table = _to_matrix(counts)
    return np.asarray(table.trace(axis1=-2, axis2=-1) / table.sum(axis=(-2, -1)))
