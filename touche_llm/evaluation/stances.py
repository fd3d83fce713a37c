"""Stances of a run: agreement of its labels with the true ones, and thresholds fitted on judged documents."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from touche_llm.data.io import read_records
from touche_llm.data.measure import Measure, MeasureName
from touche_llm.data.records import Judgment, StanceReading
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import DataError
from touche_llm.evaluation.qrels import STANCE, Qrels
from touche_llm.evaluation.significance import Array, Estimate, ratio
from touche_llm.judging.labels import check_judgments, choose_stances
from touche_llm.tasks.task import Task

# Candidate thresholds, 0.000335 to 0.999665, in even steps of log-odds, since the probabilities of
# models cluster near 0 and 1. Six decimals, so that a file holds exactly the thresholds that were
# measured.
GRID = np.round(1.0 / (1.0 + np.exp(-np.arange(-8.0, 8.25, 0.25))), 6)
# Parts that the topics are divided into at most, and the seed of the division.
_FOLDS, _SEED = 5, 0

# Places of labels in `task.stances`, of shape (documents,).
Labels = NDArray[np.intp]


def round_grade(grade: float) -> int:
    """Round a grade to the nearest whole grade, halves up; grades below 0 become 0, as in nDCG."""
    return max(math.floor(grade + 0.5), 0)


def estimate_kappa(pairs: Mapping[str, Iterable[tuple[float, float]]]) -> Estimate:
    """Estimate Cohen's kappa, with quadratic weights, of two gradings of the same documents in whole grades.

    kappa = 1 - (observed disagreement) / (disagreement expected by chance), where a disagreement
    counts as the square of the difference (J. Cohen, Weighted kappa, Psychological Bulletin 70,
    1968). With such weights kappa depends only on sums of grades, of their squares and of their
    products, so topics add up.

    If all grades of both are the same, kappa is 0 / 0; it counts as 1, since they agree. Topics
    without documents are left out.
    """
    sums: dict[str, Array] = {}
    for topic, grades in pairs.items():
        if rounded := [(round_grade(a), round_grade(b)) for a, b in grades]:
            sums[topic] = np.array(
                [(1, a, b, a**2 + b**2, a * b) for a, b in rounded], dtype=np.float64
            ).sum(axis=0)
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

    The mean is over the labels that are true or chosen for at least one document, as in
    scikit-learn: for the others F1 is 0 / 0, and counting it as 0 would lower the mean by a label
    that nobody could have got right.

    The arguments are numbers of documents for which a label is both chosen and true, chosen, and
    true, each of shape (…, labels); the result has the shape (…).
    """
    # 2 tp + fp + fn = chosen + true; if this is 0, so is tp.
    counted = chosen + true
    return np.asarray(
        (2.0 * hits / np.maximum(counted, 1)).sum(axis=-1) / (counted > 0).sum(axis=-1)
    )


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
    run: ParsedRun, other: ParsedRun, qrels: Qrels
) -> dict[Measure, tuple[Estimate, Estimate]]:
    """Estimate macro-F1 and accuracy of two runs, by measure, over the judged documents with a label in both.

    Over its own documents, a run could look better by leaving hard ones without a label or by
    ranking other documents.
    """
    common = run.stances.keys() & other.stances.keys()
    estimates = _estimate_pooled(_keep_stances(run, common), qrels)
    other_estimates = _estimate_pooled(_keep_stances(other, common), qrels)
    return {measure: (estimates[measure], other_estimates[measure]) for measure in estimates}


def _keep_stances(run: ParsedRun, keys: Collection[tuple[str, str]]) -> ParsedRun:
    """Return a run with the stances of these topics and documents alone."""
    return replace(run, stances={key: run.stances[key] for key in keys})


def estimate_labels(run: ParsedRun, qrels: Qrels) -> dict[Measure, Estimate]:
    """Estimate precision and recall of each label, over the documents of `estimate_stances`.

    Returns:
        Estimates by measure, over the topics with documents that have its label in the run
        (precision) or for which the label is true (recall).
    """
    tables = _count_labels(run, qrels)
    topics = list(tables)
    # Of shape (topics, true labels, labels of the run).
    counts = np.array(list(tables.values()))
    hits = counts.diagonal(axis1=1, axis2=2)
    chosen = counts.sum(axis=1)
    true = counts.sum(axis=2)

    estimates: dict[Measure, Estimate] = {}
    for place, label in enumerate(qrels.labels):
        precision = Measure(STANCE, MeasureName.LABEL_PRECISION, label=label)
        estimates[precision] = _estimate_share(topics, hits[:, place], chosen[:, place])
    for place, label in enumerate(qrels.labels):
        recall = Measure(STANCE, MeasureName.LABEL_RECALL, label=label)
        estimates[recall] = _estimate_share(topics, hits[:, place], true[:, place])
    return estimates


def _estimate_share(
    topics: Sequence[str], hits: NDArray[np.int64], documents: NDArray[np.int64]
) -> Estimate:
    """Estimate the share of hits among the documents of all topics.

    Args:
        topics: Topics; those without documents do not contribute.
        hits: Number of hits of each topic.
        documents: Number of documents of each topic.
    """
    has_documents = documents > 0
    contributing = tuple(compress(topics, has_documents))
    counts = np.stack([hits[has_documents], documents[has_documents]], axis=1)
    return Estimate(contributing, counts.astype(np.float64), ratio, int(documents.sum()))


def count_confusion(run: ParsedRun, qrels: Qrels) -> NDArray[np.int64]:
    """Count the documents by true label (rows) and the run's label (columns), in the order of `qrels.labels`."""
    tables = list(_count_labels(run, qrels).values())
    counts: NDArray[np.int64] = np.array(tables).sum(axis=0)
    return counts


def _count_labels(
    run: ParsedRun, qrels: Qrels, cutoff: int | None = None
) -> dict[str, NDArray[np.int64]]:
    """Count the documents of each judged topic by true label (rows) and the run's label (columns).

    Args:
        run: Run with the labels.
        qrels: True labels.
        cutoff: Number of first documents of each topic that count; None for all.

    Raises:
        DataError: The run has a label that the task does not have.
    """
    places = {label: place for place, label in enumerate(qrels.labels)}
    tables: dict[str, NDArray[np.int64]] = {}
    for topic, truth in qrels.stances.items():
        table = np.zeros((len(places), len(places)), dtype=np.int64)
        for candidate in run.rankings.get(topic, [])[:cutoff]:
            chosen = run.stances.get((topic, candidate.document_id))
            if chosen is None:
                continue
            if chosen not in places:
                raise DataError(
                    f"topic {topic}, document {candidate.document_id}: the run has the stance {chosen!r:.40}, not one "
                    f"of {', '.join(places)}; evaluate the run with its own task"
                )
            true = truth.get(candidate.document_id)
            if true is not None:
                table[places[true], places[chosen]] += 1
        tables[topic] = table
    return tables


def _estimate_pooled(
    run: ParsedRun, qrels: Qrels, cutoff: int | None = None
) -> dict[Measure, Estimate]:
    """Estimate macro-F1 and accuracy over the documents that `_count_labels` counts.

    Topics without documents are left out.
    """
    tables = _count_labels(run, qrels, cutoff)
    kept = {topic: table for topic, table in tables.items() if table.any()}
    cells = len(qrels.labels) ** 2
    counts = np.array(list(kept.values()), dtype=np.float64).reshape(len(kept), cells)

    formulas = {MeasureName.MACRO_F1: _macro_f1, MeasureName.ACCURACY: _accuracy}
    estimates: dict[Measure, Estimate] = {}
    for name, formula in formulas.items():
        estimates[Measure(STANCE, name, cutoff)] = Estimate(
            topics=tuple(kept),
            counts=counts,
            formula=formula,
            documents=int(counts.sum()),
        )
    return estimates


def _to_matrix(counts: Array) -> Array:
    labels = round(counts.shape[-1] ** 0.5)
    return counts.reshape(*counts.shape[:-1], labels, labels)


def _macro_f1(counts: Array) -> Array:
    table = _to_matrix(counts)
    return macro_f1(table.diagonal(axis1=-2, axis2=-1), table.sum(axis=-2), table.sum(axis=-1))


def _accuracy(counts: Array) -> Array:
    table = _to_matrix(counts)
    return np.asarray(table.trace(axis1=-2, axis2=-1) / table.sum(axis=(-2, -1)))


@dataclass(frozen=True, slots=True)
class CalibrationSet:
    """The judged documents of a run that have probabilities of the stances.

    Attributes:
        topics: Topic of each document.
        probabilities: Probabilities of the labels, in the order of `task.stances`, of shape
            (documents, labels).
        truth: True labels.
        without: `topic document` of the judged documents without probabilities, in the run or not.
        prompt: Prompt behind the probabilities.
    """

    topics: Sequence[str]
    probabilities: NDArray[np.float64]
    truth: Labels
    without: Sequence[str] = ()
    prompt: str = ""


def read_calibration_set(
    judgments: Path, readings: Path, truth: Mapping[str, Mapping[str, str]], task: Task
) -> CalibrationSet:
    """Read the documents of a run that have a true label, topic by topic in the order of `truth`.

    If the file of the stance prompt's answers, `readings`, exists, its documents are read instead
    of those of the judgments, since another prompt's probabilities need other thresholds.
    """
    source: dict[tuple[str, str], Mapping[str, float] | None] = {}
    prompts = set()
    if readings.exists():
        path = readings
        for answer in read_records(path, StanceReading, "stance readings"):
            prompts.add(answer.prompt)
            source[answer.topic_id, answer.document_id] = (
                None if answer.source == "value" else answer.probabilities
            )
    else:
        path, said = judgments, read_records(judgments, Judgment, "judgments")
        check_judgments(said, task.question, path)
        for judgment in said:
            prompts.add(judgment.prompt)
            reading = judgment.readings.get("stance")
            source[judgment.topic_id, judgment.document_id] = (
                None if reading is None else reading.probabilities
            )
    judged = [
        (topic, document, label)
        for topic, labels in truth.items()
        for document, label in labels.items()
    ]
    used = [(*row, found) for row in judged if (found := source.get(row[:2])) is not None]
    for topic, document, _, found in used:
        if set(found) != set(task.stances):
            raise DataError(
                f"{path}: topic {topic}, document {document}: probabilities of {', '.join(found):.80}, not of "
                f"{', '.join(task.stances)}; judge it again"
            )
    if not used:
        raise DataError(
            f"{path}: no document is both judged and has probabilities of the stances; check that the qrels cover "
            "the run's topics and that the run was made with log-probabilities"
        )
    return CalibrationSet(
        [topic for topic, *_ in used],
        np.array(
            [[found[stance] for stance in task.stances] for *_, found in used], dtype=np.float64
        ),
        np.array([task.stances.index(label) for _, _, label, _ in used], dtype=np.intp),
        [
            f"{topic} {document}"
            for topic, document, _ in judged
            if source.get((topic, document)) is None
        ],
        ", ".join(sorted(prompts)),
    )


def fit_thresholds(
    probabilities: NDArray[np.float64], truth: Labels, task: Task
) -> dict[str, float]:
    """Fit the thresholds of `task.no_stances` that have the highest macro-F1 on documents, see `CalibrationSet`.

    All combinations of `GRID` are tried. Of equally good ones, the one nearest to their mean place
    on the grid is chosen; of several equally near, the one with the lowest first threshold.
    """
    *others, last = task.no_stances
    scores = np.array(
        [
            _compute_macro_f1(
                choose_stances(
                    probabilities,
                    dict(zip(others, point, strict=True)) | {last: GRID[:, None]},
                    task,
                ),
                truth,
                task,
            )
            for point in product(GRID, repeat=len(others))
        ]
    ).reshape((len(GRID),) * len(task.no_stances))
    best = np.argwhere(scores >= scores.max() - 1e-9)
    distances = np.square(best - best.mean(axis=0)).sum(axis=1)
    places = best[np.argmax(distances <= distances.min() + 1e-9)]
    return {label: float(GRID[place]) for label, place in zip(task.no_stances, places, strict=True)}


def label_held_out(examples: CalibrationSet, task: Task) -> Labels:
    """Label each document with thresholds that are fitted on other topics: those outside its part of at most five."""
    dealt = sorted(set(examples.topics))
    if (folds := min(_FOLDS, len(dealt))) < 2:
        raise DataError(
            f"topic {dealt[0]} alone is judged: cross-validation needs two or more; judge more topics"
        )
    random.Random(_SEED).shuffle(dealt)
    chosen = np.empty_like(examples.truth)
    for start in range(folds):
        held_out = np.isin(examples.topics, dealt[start::folds])
        thresholds = fit_thresholds(
            examples.probabilities[~held_out], examples.truth[~held_out], task
        )
        chosen[held_out] = choose_stances(examples.probabilities[held_out], thresholds, task)
    return chosen


def score_labels(chosen: Labels, truth: Labels, task: Task) -> tuple[float, float]:
    """Return macro-F1, see `macro_f1`, and the share of documents with the true label."""
    return float(_compute_macro_f1(chosen, truth, task)), float((chosen == truth).mean())


def _compute_macro_f1(chosen: Labels, truth: Labels, task: Task) -> NDArray[np.float64]:
    """Compute macro-F1 over the last axis of `chosen`, of shape (…, documents)."""
    one_hot = np.eye(len(task.stances), dtype=np.int64)
    of_chosen, true = one_hot[chosen], one_hot[truth]
    return macro_f1((of_chosen * true).sum(axis=-2), of_chosen.sum(axis=-2), true.sum(axis=-2))
