"""How well a run's stance labels agree with the true ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import DataError
from touche_llm.evaluation.estimate import Array, Estimate, ratio
from touche_llm.evaluation.qrels import Qrels

if TYPE_CHECKING:
    from pandas import DataFrame


def macro_f1(hits: NDArray[Any], chosen: NDArray[Any], true: NDArray[Any]) -> Array:
    """The mean of the labels' F1, F1 being 2 tp / (2 tp + fp + fn).

    It is the mean over the labels that are the truth or the choice of at least one document, as in scikit-learn: of the
    others F1 is 0 / 0, and to count it as 0 would lower the estimate by a label that nobody could have got right.

    Args:
        hits: documents for which a label is both chosen and true, of shape (…, labels).
        chosen: documents for which it is chosen, (…, labels).
        true: documents for which it is true, (…, labels).

    Returns:
        (…); there must be a document in each.
    """
    # 2 tp + fp + fn is what was chosen and what is true; where both are 0, so is tp.
    counted = chosen + true
    return np.asarray((2.0 * hits / np.maximum(counted, 1)).sum(axis=-1) / (counted > 0).sum(axis=-1))


def estimate_stances(run: ParsedRun, qrels: Qrels, cutoff: int) -> dict[str, Estimate]:
    """Macro-F1 (see `macro_f1`) and accuracy over the documents that are judged and carry a label in the run.

    Documents of all topics are put together: neither estimate is the mean of the topics' own.

    Args:
        run: labels in the stance column count, `Q0` is none.
        qrels: with stances.
        cutoff: for the same over the first so many documents of each topic.

    Returns:
        by measure; topics without such a document take no part.

    Raises:
        DataError: a label in the run that the task does not have.
    """
    return _pooled(_tables(run, qrels, None), "") | _pooled(_tables(run, qrels, cutoff), f"@{cutoff}")


def estimate_common_stances(run: ParsedRun, other: ParsedRun, qrels: Qrels) -> dict[str, tuple[Estimate, Estimate]]:
    """Macro-F1 and accuracy of two runs over the judged documents that carry a label in both.

    Over its own documents a run could look better by leaving the hard ones without a label, or by ranking others.

    Returns:
        by measure, the first run's estimate and the other's.
    """
    both = run.stances.keys() & other.stances.keys()
    estimates, others = (
        _pooled(_tables(replace(each, stances={key: each.stances[key] for key in both}), qrels, None), "")
        for each in (run, other)
    )
    return {measure: (estimate, others[measure]) for measure, estimate in estimates.items()}


def estimate_labels(run: ParsedRun, qrels: Qrels) -> dict[str, Estimate]:
    """Precision and recall of each label, over the documents of `estimate_stances`.

    Returns:
        by measure, as `stance precision NO`; only topics take part with documents that the share is of: documents with
        this label in the run, or those for which it is true.
    """
    tables = np.array(list(_tables(run, qrels, None).values()))
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


def confusion_matrix(run: ParsedRun, qrels: Qrels, cutoff: int | None = None) -> DataFrame:
    """The number of documents by true label (rows, `true`) and the run's label (columns, `chosen`).

    Args:
        run: see `estimate_stances`.
        qrels: with stances.
        cutoff: only the first so many documents of each topic; None: all.
    """
    # Here and below, since the command line loads this module at every start, and pandas takes its time.
    import pandas as pd

    table = np.zeros((len(qrels.labels),) * 2, dtype=np.int64)
    for each in _tables(run, qrels, cutoff).values():
        table += each
    labels = list(qrels.labels)
    return pd.DataFrame(table, index=pd.Index(labels, name="true"), columns=pd.Index(labels, name="chosen"))


def summarize_labels(confusion: DataFrame) -> DataFrame:
    """Precision, recall and F1 of each label, with how many documents have it (`true`) and were given it (`chosen`).

    Args:
        confusion: of `confusion_matrix`.

    Returns:
        a row for each label, in the column `label`; NaN where a share of no documents is asked for.
    """
    import pandas as pd

    table: NDArray[np.int64] = confusion.to_numpy()
    hits, true, chosen = table.diagonal(), table.sum(axis=1), table.sum(axis=0)
    return pd.DataFrame(
        {
            "label": list(confusion.index),
            "precision": _share(hits, chosen),
            "recall": _share(hits, true),
            "F1": _share(2 * hits, true + chosen),
            "true": true,
            "chosen": chosen,
        }
    )


def _tables(run: ParsedRun, qrels: Qrels, cutoff: int | None) -> dict[str, NDArray[np.int64]]:
    """The confusion matrix of each judged topic of the run: true labels in rows, the run's in columns."""
    places = {label: place for place, label in enumerate(qrels.labels)}
    tables = {}
    for topic, truth in qrels.stances.items():
        table = np.zeros((len(places), len(places)), dtype=np.int64)
        for candidate in run.rankings.get(topic, [])[:cutoff]:
            chosen = run.stances.get((topic, candidate.document_id))
            if chosen is not None and chosen not in places:
                raise DataError(
                    f"topic {topic}, document {candidate.document_id}: the run has the stance {chosen!r:.40}, which is "
                    f"none of {', '.join(places)}; evaluate it as a run of its own task"
                )
            if chosen is not None and candidate.document_id in truth:
                table[places[truth[candidate.document_id]], places[chosen]] += 1
        tables[topic] = table
    return tables


def _pooled(tables: Mapping[str, NDArray[np.int64]], suffix: str) -> dict[str, Estimate]:
    """Macro-F1 and accuracy of confusion matrices by topic, those without a document left out."""
    kept = {topic: table for topic, table in tables.items() if table.any()}
    size = next(iter(tables.values())).size
    counts = np.array(list(kept.values()), dtype=np.float64).reshape(len(kept), size)
    return {
        f"stance {name}{suffix}": Estimate(tuple(kept), counts, formula, int(counts.sum()))
        for name, formula in (("macro-F1", _macro_f1), ("accuracy", _accuracy))
    }


def _square(counts: Array) -> Array:
    labels = round(counts.shape[-1] ** 0.5)
    return counts.reshape(*counts.shape[:-1], labels, labels)


def _macro_f1(counts: Array) -> Array:
    table = _square(counts)
    return macro_f1(table.diagonal(axis1=-2, axis2=-1), table.sum(axis=-2), table.sum(axis=-1))


def _accuracy(counts: Array) -> Array:
    table = _square(counts)
    return np.asarray(table.trace(axis1=-2, axis2=-1) / table.sum(axis=(-2, -1)))


def _share(part: NDArray[np.int64], whole: NDArray[np.int64]) -> Array:
    shares: Array = np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)
    return shares
