"""Thresholds of labels that take no side, fitted on judged documents and measured on held-out topics."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from touche_llm.data.io import read_records
from touche_llm.data.records import Judgment, StanceReading
from touche_llm.errors import DataError
from touche_llm.evaluation.stance_measures import macro_f1
from touche_llm.judging.labels import check_judgments, choose_stances
from touche_llm.tasks.task import Task

# Candidate thresholds, 0.000335 to 0.999665, in even steps of log-odds, since the probabilities of models cluster near
# 0 and 1. Six decimals, so that a file holds exactly the thresholds that were measured.
GRID = np.round(1.0 / (1.0 + np.exp(-np.arange(-8.0, 8.25, 0.25))), 6)
# Parts that the topics are divided into at most, and the seed of the division.
_FOLDS, _SEED = 5, 0

# Places of labels in `task.stances`, of shape (documents,).
Labels = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class CalibrationSet:
    """The judged documents of a run that have probabilities of the stances.

    Attributes:
        topics: Topic of each document.
        probabilities: Probabilities of the labels, in the order of `task.stances`, of shape (documents, labels).
        truth: True labels.
        without: `topic document` of judged documents whose answer in the run has no probabilities.
        elsewhere: Number of judged documents without an answer in the run.
        prompt: Prompt behind the probabilities.
    """

    topics: Sequence[str]
    probabilities: NDArray[np.float64]
    truth: Labels
    without: Sequence[str] = ()
    elsewhere: int = 0
    prompt: str = ""


def read_calibration_set(
    judgments: Path, readings: Path, truth: Mapping[str, Mapping[str, str]], task: Task
) -> CalibrationSet:
    """Read the documents of a run that have a true label, topic by topic in the order of `truth`.

    Args:
        judgments: File of the run's judgments, with probabilities in the field `stance`.
        readings: File of the stance prompt's answers; if it exists, its documents are read, since another prompt's
            probabilities need other thresholds.
        truth: True labels, {topic id: {document id: label}}.
        task: Task with the labels.

    Raises:
        DataError: A file cannot be read or does not fit the task, or no judged document has probabilities.
    """
    source: dict[tuple[str, str], Mapping[str, float] | None]
    if readings.exists():
        path, answers = readings, read_records(readings, StanceReading, "stance readings")
        prompts = {answer.prompt for answer in answers}
        source = {
            (answer.topic_id, answer.document_id): answer.probabilities if answer.source == "probabilities" else None
            for answer in answers
        }
    else:
        path, said = judgments, read_records(judgments, Judgment, "judgments")
        check_judgments(said, task.question, judgments)
        prompts = {judgment.prompt for judgment in said}
        source = {
            (judgment.topic_id, judgment.document_id): reading.probabilities if reading is not None else None
            for judgment, reading in ((judgment, judgment.readings.get("stance")) for judgment in said)
        }
    topics, probabilities, labels, without, elsewhere = [], [], [], [], 0
    for topic, document, label in (
        (topic, *judged) for topic, of_topic in truth.items() for judged in of_topic.items()
    ):
        found = source.get((topic, document))
        if found is None:
            elsewhere += (topic, document) not in source
            without += [f"{topic} {document}"] if (topic, document) in source else []
            continue
        if set(found) != set(task.stances):
            raise DataError(
                f"{path}: topic {topic}, document {document}: probabilities of {', '.join(found):.80}, not of "
                f"{', '.join(task.stances)}; judge it again"
            )
        topics.append(topic)
        probabilities.append([found[stance] for stance in task.stances])
        labels.append(task.stances.index(label))
    if not topics:
        raise DataError(
            f"{path}: no document is both judged and has probabilities of the stances; check that the qrels cover "
            "the run's topics and that the run was made with log-probabilities"
        )
    given = np.array(probabilities, dtype=np.float64), np.array(labels, dtype=np.intp)
    return CalibrationSet(topics, *given, without, elsewhere, ", ".join(sorted(prompts)))


def fit_thresholds(probabilities: NDArray[np.float64], truth: Labels, task: Task) -> dict[str, float]:
    """Fit the thresholds of `task.no_stances` that have the highest macro-F1 on documents, see `CalibrationSet`.

    All combinations of `GRID` are tried. Of equally good ones, the one nearest to their mean place on the grid is
    chosen; of several equally near, the one with the lowest first threshold.
    """
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


def label_held_out(examples: CalibrationSet, task: Task) -> Labels:
    """Label each document with thresholds that are fitted on other topics: those outside its part of at most five.

    Raises:
        DataError: There is only one topic.
    """
    dealt = sorted(set(examples.topics))
    if (folds := min(_FOLDS, len(dealt))) < 2:
        raise DataError(f"topic {dealt[0]} alone is judged: cross-validation needs two or more; judge more topics")
    random.Random(_SEED).shuffle(dealt)
    chosen = np.empty_like(examples.truth)
    for start in range(folds):
        held_out = np.isin(examples.topics, dealt[start::folds])
        thresholds = fit_thresholds(examples.probabilities[~held_out], examples.truth[~held_out], task)
        chosen[held_out] = choose_stances(examples.probabilities[held_out], thresholds, task)
    return chosen


def score_labels(chosen: Labels, truth: Labels, task: Task) -> tuple[float, float]:
    """Return macro-F1, see `stance_measures.macro_f1`, and the share of documents with the true label."""
    return float(_compute_macro_f1(chosen, truth, task)), float((chosen == truth).mean())


def _compute_macro_f1(chosen: Labels, truth: Labels, task: Task) -> NDArray[np.float64]:
    """Compute macro-F1 over the last axis of `chosen`, of shape (…, documents)."""
    one_hot = np.eye(len(task.stances), dtype=np.int64)
    of_chosen, true = one_hot[chosen], one_hot[truth]
    return macro_f1((of_chosen * true).sum(axis=-2), of_chosen.sum(axis=-2), true.sum(axis=-2))
