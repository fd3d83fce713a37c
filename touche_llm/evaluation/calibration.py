"""Thresholds of labels that take no side, fitted on judged documents and measured on held-out topics."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from touche_llm.data.io import read_records
from touche_llm.data.records import Judgment, StanceReading
from touche_llm.errors import DataError, UsageError
from touche_llm.evaluation.stance_measures import macro_f1
from touche_llm.judging.labels import check_judgments, choose_stances
from touche_llm.tasks.task import Task

# Candidate thresholds, 0.000335 to 0.999665, in even steps of log-odds, since the probabilities of models cluster near
# 0 and 1. Six decimals, so that a file holds exactly the thresholds that were measured.
GRID = np.round(1.0 / (1.0 + np.exp(-np.arange(-8.0, 8.25, 0.25))), 6)
# Probabilities are rounded to nine decimals when they are written.
_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class CalibrationExample:
    """A judged document: the probabilities of the task's labels, and the true label."""

    topic_id: str
    document_id: str
    probabilities: Mapping[str, float]
    stance: str


@dataclass(frozen=True, slots=True)
class CalibrationSet:
    """The judged documents of a run.

    Attributes:
        used: Documents with probabilities.
        without: `topic document` of documents whose answer in the run has no probabilities of the labels.
        elsewhere: Number of judged documents without an answer in the run.
        prompt: Prompt behind the probabilities.
    """

    used: list[CalibrationExample]
    without: list[str]
    elsewhere: int
    prompt: str


@dataclass(frozen=True, slots=True)
class LabelScores:
    """Quality of chosen labels.

    Attributes:
        macro_f1: Macro-F1, see `stance_measures.macro_f1`.
        accuracy: Share of documents with the true label.
    """

    documents: int
    macro_f1: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """The result of a cross-validation, or of one of its folds.

    Attributes:
        topics: Measured topics; those of a fold are held out.
        thresholds: Thresholds fitted on all other topics; of the whole, those fitted on all topics, for use on others.
        scores: Scores of these topics' documents. Of the whole: all documents together, each labelled with the
            thresholds of the fold that held it out; quote these. They are not the mean over the folds.
        most_probable: Scores of the same documents with their most probable labels.
        folds: Folds; each topic is in one of them.
    """

    topics: tuple[str, ...]
    thresholds: dict[str, float]
    scores: LabelScores
    most_probable: LabelScores
    folds: tuple[CrossValidation, ...] = ()


def read_calibration_set(
    judgments: Path, readings: Path, truth: Mapping[str, Mapping[str, str]], task: Task, topics: Collection[str] = ()
) -> CalibrationSet:
    """Read the documents of a run that have a gold label, topic by topic in the order of `truth`.

    Args:
        judgments: File of the run's judgments, with probabilities in the field `stance`.
        readings: File of the stance prompt's answers; if it exists, its documents are read, since another prompt's
            probabilities need other thresholds.
        truth: True labels, {topic id: {document id: label}}.
        task: Task with the labels.
        topics: Topics to read; all if empty.

    Raises:
        DataError: A file cannot be read or does not fit the task, or no judged document has probabilities.
        UsageError: One of `topics` has no judged document with probabilities.
    """
    judged = read_records(judgments, Judgment, "judgments")
    check_judgments(judged, task.question, judgments)
    answers: Sequence[Judgment | StanceReading] = judged
    source: dict[tuple[str, str], Mapping[str, float] | None] = {
        (judgment.topic_id, judgment.document_id): reading.probabilities if reading is not None else None
        for judgment, reading in ((judgment, judgment.readings.get("stance")) for judgment in judged)
    }
    if has_own_prompt := readings.exists():
        answers = stances = read_records(readings, StanceReading, "stance readings")
        source = {
            (answer.topic_id, answer.document_id): answer.probabilities if answer.source == "probabilities" else None
            for answer in stances
        }
    chosen = [(topic, *item) for topic in truth if not topics or topic in topics for item in truth[topic].items()]
    found = [(topic, document, label) for topic, document, label in chosen if (topic, document) in source]
    where = readings if has_own_prompt else judgments
    used = [
        CalibrationExample(topic, document, probabilities, label)
        for topic, document, label in found
        if (probabilities := _check_probabilities(where, topic, document, source[topic, document], task)) is not None
    ]
    if missing := set(topics) - {example.topic_id for example in used}:
        raise UsageError(f"topic {', '.join(sorted(missing))}: no judged document with probabilities in {judgments}")
    if not used:
        raise DataError(
            f"{judgments}: no document is both judged and has probabilities of the stances; check that the qrels cover "
            "the run's topics and that the run was made with log-probabilities"
        )
    without = [f"{topic} {document}" for topic, document, _ in found if source[topic, document] is None]
    prompts = ", ".join(sorted({answer.prompt for answer in answers}))
    return CalibrationSet(used, without, len(chosen) - len(found), prompts)


def _check_probabilities(
    path: Path, topic: str, document: str, probabilities: Mapping[str, float] | None, task: Task
) -> Mapping[str, float] | None:
    """Return the probabilities; raise DataError if these are not those of the task's labels."""
    if probabilities is None:
        return None
    where = f"{path}: topic {topic}, document {document}"
    if set(probabilities) != set(task.stances):
        labels = ", ".join(probabilities)
        raise DataError(f"{where}: probabilities of {labels:.80}, not of {', '.join(task.stances)}; judge it again")
    total = math.fsum(probabilities.values())
    # Negated comparisons, so that NaN is an error too.
    if not (abs(total - 1.0) <= _SUM_TOLERANCE and min(probabilities.values()) >= 0.0):
        raise DataError(f"{where}: the probabilities sum to {total:g}, or one is negative; judge it again")
    return probabilities


def fit_thresholds(examples: Sequence[CalibrationExample], task: Task) -> dict[str, float]:
    """Fit the thresholds of `task.no_stances` that have the highest macro-F1 (see `LabelScores`) on the examples.

    All combinations of `GRID` are tried. Of equally good ones, the one nearest to their mean place on the grid is
    chosen; of several equally near, the one with the lowest first threshold.

    Raises:
        DataError: There is no example.
        UsageError: All labels of the task take a side.
    """
    if not task.no_stances:
        raise UsageError(f"{task.name}: all its stances take a side, so there is no threshold to fit")
    if not examples:
        raise DataError("no judged document to fit thresholds on")
    probabilities, truth = _make_arrays(examples, task)
    *others, last = task.no_stances
    scores = np.array(
        [
            _compute_macro_f1(
                choose_stances(probabilities, dict(zip(others, point, strict=True)) | {last: GRID[:, None]}, task),
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


def measure_thresholds(
    examples: Sequence[CalibrationExample], thresholds: Mapping[str, float], task: Task
) -> LabelScores:
    """Measure how well the thresholds choose the examples' labels; empty ones choose the most probable label.

    Raises:
        DataError: There is no example.
        UsageError: A threshold belongs to a label that is not in `task.no_stances`.
    """
    if not examples:
        raise DataError("no judged document to measure thresholds on")
    probabilities, truth = _make_arrays(examples, task)
    return _score(choose_stances(probabilities, thresholds, task), truth, task)


def cross_validate(examples: Sequence[CalibrationExample], task: Task, folds: int, seed: int) -> CrossValidation:
    """Measure each fold with thresholds fitted on the other folds; then fit on all topics.

    Args:
        examples: Judged documents.
        task: Task with the labels.
        folds: Number of folds, at least 2; their numbers of topics differ by at most one.
        seed: Seed of the order in which topics are assigned to folds.

    Raises:
        DataError: There are fewer topics than folds.
        UsageError: There are fewer than two folds, or all labels of the task take a side.
    """
    if folds < 2:
        raise UsageError(f"{folds} folds: cross-validation needs at least 2")
    topics = list(dict.fromkeys(example.topic_id for example in examples))
    if len(topics) < folds:
        raise DataError(f"{len(topics)} judged topics are too few for {folds} folds; judge more, or use fewer folds")
    dealt = sorted(topics)
    random.Random(seed).shuffle(dealt)
    probabilities, truth = _make_arrays(examples, task)
    chosen, likely = np.empty_like(truth), choose_stances(probabilities, {}, task)
    found: list[CrossValidation] = []
    for start in range(folds):
        held_out = set(dealt[start::folds])
        thresholds = fit_thresholds([example for example in examples if example.topic_id not in held_out], task)
        places = [place for place, example in enumerate(examples) if example.topic_id in held_out]
        chosen[places] = choose_stances(probabilities[places], thresholds, task)
        scores, most_probable = (_score(labels[places], truth[places], task) for labels in (chosen, likely))
        of_fold = tuple(topic for topic in topics if topic in held_out)
        found.append(CrossValidation(of_fold, thresholds, scores, most_probable))
    scores, most_probable = (_score(labels, truth, task) for labels in (chosen, likely))
    return CrossValidation(tuple(topics), fit_thresholds(examples, task), scores, most_probable, tuple(found))


def _make_arrays(examples: Sequence[CalibrationExample], task: Task) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return probabilities, (documents, labels), and the indices of the true labels, (documents,)."""
    probabilities = np.array([[example.probabilities[label] for label in task.stances] for example in examples])
    return probabilities, np.array([task.stances.index(example.stance) for example in examples], dtype=np.intp)


def _score(decided: NDArray[np.intp], truth: NDArray[np.intp], task: Task) -> LabelScores:
    return LabelScores(len(truth), float(_compute_macro_f1(decided, truth, task)), float((decided == truth).mean()))


def _compute_macro_f1(decided: NDArray[np.intp], truth: NDArray[np.intp], task: Task) -> NDArray[np.float64]:
    """Compute macro-F1 over the last axis of `decided`, of shape (…, documents)."""
    one_hot = np.eye(len(task.stances), dtype=np.int64)
    chosen, true = one_hot[decided], one_hot[truth]
    return macro_f1((chosen * true).sum(axis=-2), chosen.sum(axis=-2), true.sum(axis=-2))
