"""Thresholds of stances, fitted on judged documents."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
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
    """Read the documents of a run that have a true label, topic by topic in the order of `truth`.

    If the file of the stance prompt's answers, `readings`, exists, its documents are read instead
    of those of the judgments, since another prompt's probabilities need other thresholds.
    """
    source = _read_probabilities(judgments, readings, task)
    topics: list[str] = []
    rows: list[list[float]] = []
    true_labels: list[int] = []
    without: list[str] = []
    for topic, labels in truth.items():
        for document, label in labels.items():
            probabilities = source.probabilities.get((topic, document))
            if probabilities is None:
                without.append(f"{topic} {document}")
                continue
            if set(probabilities) != set(task.stances):
                place = f"{source.path}: topic {topic}, document {document}"
                raise DataError(
                    f"{place}: probabilities of {', '.join(probabilities):.80}, not of "
                    f"{', '.join(task.stances)}; judge it again"
                )
            topics.append(topic)
            rows.append([probabilities[stance] for stance in task.stances])
            true_labels.append(task.stances.index(label))
    if not topics:
        raise DataError(
            f"{source.path}: no document is both judged and has probabilities of the stances; check that the "
            "qrels cover the run's topics and that the run was made with log-probabilities"
        )
    return CalibrationSet(
        topics=topics,
        probabilities=np.array(rows, dtype=np.float64),
        truth=np.array(true_labels, dtype=np.intp),
        without=without,
        prompt=", ".join(sorted(source.prompts)),
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
    probabilities: dict[tuple[str, str], Mapping[str, float] | None] = {}
    prompts: set[str] = set()
    for answer in read_records(path, StanceReading, "stance readings"):
        prompts.add(answer.prompt)
        has_probabilities = answer.source != "value"
        key = (answer.topic_id, answer.document_id)
        probabilities[key] = answer.probabilities if has_probabilities else None
    return _ProbabilitySource(path, probabilities, prompts)


def _read_judged_probabilities(path: Path, task: Task) -> _ProbabilitySource:
    """Read the probabilities in judgments; raise DataError if they are of another task."""
    judgments = read_records(path, Judgment, "judgments")
    check_judgments(judgments, task.question, path)
    probabilities: dict[tuple[str, str], Mapping[str, float] | None] = {}
    for judgment in judgments:
        reading = judgment.readings.get("stance")
        key = (judgment.topic_id, judgment.document_id)
        probabilities[key] = None if reading is None else reading.probabilities
    prompts = {judgment.prompt for judgment in judgments}
    return _ProbabilitySource(path, probabilities, prompts)


def fit_thresholds(
    probabilities: NDArray[np.float64], truth: Labels, task: Task
) -> dict[str, float]:
    """Fit the thresholds of `task.no_stances` that have the highest macro-F1 on documents, see `CalibrationSet`.

    All combinations of `GRID` are tried. Of equally good ones, the one nearest to their mean place
    on the grid is chosen; of several equally near, the one with the lowest first threshold.
    """
    *first_labels, last_label = task.no_stances
    scores: list[NDArray[np.float64]] = []
    for point in product(GRID, repeat=len(first_labels)):
        thresholds: dict[str, float | NDArray[np.float64]] = dict(
            zip(first_labels, point, strict=True)
        )
        # All thresholds of the last label at once.
        thresholds[last_label] = GRID[:, np.newaxis]
        chosen = choose_stances(probabilities, thresholds, task)
        scores.append(_compute_macro_f1(chosen, truth, task))

    grid_shape = (len(GRID),) * len(task.no_stances)
    best_place = _find_central_maximum(np.array(scores).reshape(grid_shape))
    return {
        label: float(GRID[place]) for label, place in zip(task.no_stances, best_place, strict=True)
    }


def _find_central_maximum(scores: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the place of the highest score, nearest to the mean place of equally high ones."""
    best_places = np.argwhere(scores >= scores.max() - _TIE)
    distances = np.square(best_places - best_places.mean(axis=0)).sum(axis=1)
    nearest = np.argmax(distances <= distances.min() + _TIE)
    central: NDArray[np.intp] = best_places[nearest]
    return central


def label_held_out(examples: CalibrationSet, task: Task) -> Labels:
    """Label each document with thresholds that are fitted on other topics: those outside its part of at most five."""
    topics = sorted(set(examples.topics))
    folds = min(_MAX_FOLDS, len(topics))
    if folds < 2:
        raise DataError(
            f"topic {topics[0]} alone is judged: cross-validation needs two or more; judge more topics"
        )
    random.Random(_SEED).shuffle(topics)

    chosen = np.empty_like(examples.truth)
    for fold in range(folds):
        is_held_out = np.isin(examples.topics, topics[fold::folds])
        thresholds = fit_thresholds(
            examples.probabilities[~is_held_out],
            examples.truth[~is_held_out],
            task,
        )
        chosen[is_held_out] = choose_stances(examples.probabilities[is_held_out], thresholds, task)
    return chosen


def score_labels(chosen: Labels, truth: Labels, task: Task) -> tuple[float, float]:
    """Return macro-F1, see `macro_f1`, and the share of documents with the true label."""
    accuracy = (chosen == truth).mean()
    return float(_compute_macro_f1(chosen, truth, task)), float(accuracy)


def _compute_macro_f1(chosen: Labels, truth: Labels, task: Task) -> NDArray[np.float64]:
    """Compute macro-F1 over the last axis of `chosen`, of shape (…, documents)."""
    # A row for each document, with 1 for its label and 0 for the others.
    one_hot = np.eye(len(task.stances), dtype=np.int64)
    one_hot_chosen = one_hot[chosen]
    one_hot_true = one_hot[truth]
    return macro_f1(
        hits=(one_hot_chosen * one_hot_true).sum(axis=-2),
        chosen=one_hot_chosen.sum(axis=-2),
        true=one_hot_true.sum(axis=-2),
    )
