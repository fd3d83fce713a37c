"""Thresholds of stances, fitted on judged documents."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from touche_llm.data.files import read_records
from touche_llm.data.records import Judgment, StanceReading
from touche_llm.errors import DataError
from touche_llm.evaluation.agreement import Labels, macro_f1
from touche_llm.judging.grades import check_judgments
from touche_llm.judging.stance_labels import choose_stances
from touche_llm.tasks.task import Task

# Candidate thresholds, 0.000335 to 0.999665, in even steps of log-odds, since the probabilities of
# models cluster near 0 and 1. Six decimals, so that a file holds exactly the thresholds that were
# measured.
GRID = np.round(1.0 / (1.0 + np.exp(-np.arange(-8.0, 8.25, 0.25))), 6)
# Parts that the topics are divided into at most, and the seed of the division.
_MAX_FOLDS = 5
_SEED = 0
# Values that differ by less are equal, since they are sums of a few terms.
_TIE = 1e-9


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
    """Read the documents of a run that have a true label and probabilities of the stances.

    Args:
        judgments: File with the judgments of the run.
        readings: File with the answers of the stance prompt. If it exists, it is read instead of
            the judgments, since another prompt's probabilities need other thresholds.
        truth: True labels by topic and document, whose order the documents have.
        task: Task of the run.

    Raises:
        DataError: A file cannot be read or is of another task, or there is no such document.
    """
    source = _read_probabilities(judgments, readings, task)
    judged = [(topic_id, *pair) for topic_id, labels in truth.items() for pair in labels.items()]

    examples: list[_Example] = []
    without: list[str] = []
    for topic_id, document_id, label in judged:
        probabilities = source.probabilities.get((topic_id, document_id))
        if probabilities is None:
            without.append(f"{topic_id} {document_id}")
            continue
        if set(probabilities) != set(task.stances):
            raise DataError(
                f"{source.path}: topic {topic_id}, document {document_id}: probabilities of "
                f"{', '.join(probabilities):.80}, not of {', '.join(task.stances)}; judge it again"
            )
        examples.append(_Example(topic_id, label, probabilities))

    if not examples:
        raise DataError(
            f"{source.path}: no document is both judged and has probabilities of the stances; check that the "
            "qrels cover the run's topics and that the run was made with log-probabilities"
        )
    return _stack_examples(examples, task, without, source.prompts)


@dataclass(frozen=True, slots=True)
class _Example:
    """Judged document.

    Attributes:
        topic_id: Id of its topic.
        label: True label.
        probabilities: Probabilities by label.
    """

    topic_id: str
    label: str
    probabilities: Mapping[str, float]


def _stack_examples(
    examples: Sequence[_Example], task: Task, without: Sequence[str], prompts: Iterable[str]
) -> CalibrationSet:
    """Return examples as arrays, with the labels in the order of the task."""
    rows: list[list[float]] = []
    true_labels: list[int] = []
    for example in examples:
        rows.append([example.probabilities[stance] for stance in task.stances])
        true_labels.append(task.stances.index(example.label))
    return CalibrationSet(
        topics=[example.topic_id for example in examples],
        probabilities=np.array(rows, dtype=np.float64),
        truth=np.array(true_labels, dtype=np.intp),
        without=without,
        prompt=", ".join(sorted(prompts)),
    )


@dataclass(frozen=True, slots=True)
class _ProbabilitySource:
    """Probabilities of the stances that a file of a run has.

    Attributes:
        path: The file.
        probabilities: Probabilities by topic and document; None for an answer without any.
        prompts: Prompts of all answers in the file.
    """

    path: Path
    probabilities: Mapping[tuple[str, str], Mapping[str, float] | None]
    prompts: Collection[str]


def _read_probabilities(judgments: Path, readings: Path, task: Task) -> _ProbabilitySource:
    """Read the stance prompt's answers if their file exists, else the judgments."""
    if readings.exists():
        return _read_stance_probabilities(readings)
    return _read_judged_probabilities(judgments, task)


def _read_stance_probabilities(path: Path) -> _ProbabilitySource:
    """Read the probabilities in the stance prompt's answers."""
    answers = list(read_records(path, StanceReading, "stance readings"))
    probabilities: dict[tuple[str, str], Mapping[str, float] | None] = {}
    for answer in answers:
        has_probabilities = answer.source != "value"
        key = (answer.topic_id, answer.document_id)
        probabilities[key] = answer.probabilities if has_probabilities else None
    prompts = {answer.prompt for answer in answers}
    return _ProbabilitySource(path, probabilities, prompts)


def _read_judged_probabilities(path: Path, task: Task) -> _ProbabilitySource:
    """Read the probabilities of stances in judgments; raise DataError if they are of another task."""
    judgments = read_records(path, Judgment, "judgments")
    check_judgments(judgments, task.question, path)
    probabilities: dict[tuple[str, str], Mapping[str, float] | None] = {}
    for judgment in judgments:
        key = (judgment.topic_id, judgment.document_id)
        reading = judgment.readings.get("stance")
        probabilities[key] = None if reading is None else reading.probabilities
    prompts = {judgment.prompt for judgment in judgments}
    return _ProbabilitySource(path, probabilities, prompts)


def fit_thresholds(
    probabilities: NDArray[np.float64], truth: Labels, task: Task
) -> dict[str, float]:
    """Fit the thresholds of the stances that take no side to the highest macro-F1.

    All combinations of `GRID` are tried. Of equally good ones, the one nearest to their mean place
    on the grid is chosen; of several equally near, the one with the lowest first threshold.

    Args:
        probabilities: Probabilities of documents, of shape (documents, labels).
        truth: True labels.
        task: Task with the labels, `task.no_stances` among them.

    Returns:
        Threshold of each of `task.no_stances`.
    """
    scores = _score_grid(probabilities, truth, task)
    best = _find_central_maximum(scores)
    thresholds = GRID[best].tolist()
    return dict(zip(task.no_stances, thresholds, strict=True))


def _score_grid(
    probabilities: NDArray[np.float64], truth: Labels, task: Task
) -> NDArray[np.float64]:
    """Compute macro-F1 for all combinations of thresholds.

    Returns:
        Values, with an axis of the length of `GRID` for each of `task.no_stances`.
    """
    *first_labels, last_label = task.no_stances
    scores: list[NDArray[np.float64]] = []
    for first_thresholds in product(GRID, repeat=len(first_labels)):
        thresholds: dict[str, float | NDArray[np.float64]] = {}
        thresholds.update(zip(first_labels, first_thresholds, strict=True))
        # All thresholds of the last label at once, which is faster.
        thresholds[last_label] = GRID[:, np.newaxis]
        chosen = choose_stances(probabilities, thresholds, task)
        scores.append(_compute_macro_f1(chosen, truth, task))

    shape = (len(GRID),) * len(task.no_stances)
    return np.array(scores).reshape(shape)


def _find_central_maximum(scores: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the indices of the highest score; of equal ones, of that nearest to their mean place."""
    maxima = np.argwhere(scores >= scores.max() - _TIE)
    mean_place = maxima.mean(axis=0)
    squared_distances = np.square(maxima - mean_place).sum(axis=1)

    is_nearest = squared_distances <= squared_distances.min() + _TIE
    first_nearest: NDArray[np.intp] = maxima[is_nearest][0]
    return first_nearest


def label_held_out(examples: CalibrationSet, task: Task) -> Labels:
    """Label each document with thresholds that are fitted on other topics, by cross-validation.

    Raises:
        DataError: There is one topic alone.
    """
    topics = sorted(set(examples.topics))
    folds = min(_MAX_FOLDS, len(topics))
    if folds < 2:
        raise DataError(
            f"topic {topics[0]} alone is judged: cross-validation needs two or more; judge more topics"
        )
    random.Random(_SEED).shuffle(topics)

    labels = np.empty_like(examples.truth)
    for fold in range(folds):
        held_out_topics = topics[fold::folds]
        is_held_out = np.isin(examples.topics, held_out_topics)
        thresholds = fit_thresholds(
            examples.probabilities[~is_held_out],
            examples.truth[~is_held_out],
            task,
        )
        labels[is_held_out] = choose_stances(examples.probabilities[is_held_out], thresholds, task)
    return labels


def score_labels(chosen: Labels, truth: Labels, task: Task) -> tuple[float, float]:
    """Return macro-F1, see `macro_f1`, and the share of documents with the true label."""
    accuracy = (chosen == truth).mean()
    return float(_compute_macro_f1(chosen, truth, task)), float(accuracy)


def _compute_macro_f1(chosen: Labels, truth: Labels, task: Task) -> NDArray[np.float64]:
    """Compute macro-F1 of chosen labels.

    Args:
        chosen: Chosen labels, of shape (…, documents).
        truth: True labels, of shape (documents,).
        task: Task of the labels.

    Returns:
        Values of shape (…).
    """
    # Of shape (…, documents, labels): 1 for the label of a document, and 0 for the others.
    one_hot = np.eye(len(task.stances), dtype=np.int64)
    is_chosen = one_hot[chosen]
    is_true = one_hot[truth]
    return macro_f1(
        hits=(is_chosen * is_true).sum(axis=-2),
        chosen=is_chosen.sum(axis=-2),
        true=is_true.sum(axis=-2),
    )
