"""Stances from the probabilities of labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from touche_llm.data.files import open_atomic
from touche_llm.data.records import Judgment, StanceReading
from touche_llm.data.runs.writing import NO_STANCE_COLUMN
from touche_llm.errors import UsageError
from touche_llm.settings.section import Option, Scope, Section
from touche_llm.settings.yaml_text import load_yaml, to_yaml
from touche_llm.tasks.task import Task

# A topic's id; YAML reads `12` as a number.
_TopicId = Annotated[str, Field(coerce_numbers_to_str=True)]


class StanceSettings(Section):
    """Settings of stance detection.

    Attributes:
        depth: Number of documents per topic, best first, that the stance prompt labels. The others
            keep the probabilities of the judge prompt; with 0, all do.
        prompt: `own`, to label with the stance prompt once; `both_orders`, to label with the two
            objects in both orders, of which the mean is taken, if the task has objects.
        thresholds: For labels that take no side, the share (0 to 1) from which they are chosen, see
            `choose_stance`.
        calibrated_on: Ids of the topics that the thresholds were fitted on; empty if they were
            chosen by hand.
        calibrated_for: Name, version and hash of the prompt whose probabilities the thresholds were
            fitted on.
    """

    depth: Annotated[
        int,
        Option(
            "--stance-depth",
            "Best documents per topic that a prompt of its own labels (default: none)",
            "Judging",
        ),
        Scope.JUDGE,
    ] = Field(0, ge=0)
    prompt: Annotated[
        Literal["own", "both_orders"],
        Option(
            "--stance-prompt",
            "That prompt: own, or both_orders (own, objects in both)",
            "Judging",
            metavar="NAME",
        ),
        Scope.JUDGE,
    ] = "both_orders"
    thresholds: Annotated[
        dict[str, Annotated[float, Field(ge=0.0, le=1.0)]],
        Option(
            "--thresholds",
            "Stance thresholds, as written by `touche-llm calibrate`",
            "Ranking",
            is_file=True,
        ),
    ] = {}
    calibrated_on: tuple[_TopicId, ...] = ()
    calibrated_for: str = ""

    @model_validator(mode="after")
    def _check_depth(self) -> Self:
        if "prompt" in self.model_fields_set and "depth" not in self.model_fields_set:
            raise ValueError("prompt: of how many documents per topic? Give `depth` too")
        return self


def choose_stance(
    probabilities: Mapping[str, float], thresholds: Mapping[str, float], task: Task
) -> str:
    """Choose the label of a document from the probabilities of all labels, not all 0, as `choose_stances` does."""
    row = np.array([[probabilities[label] for label in task.stances]])
    return task.stances[int(choose_stances(row, thresholds, task)[0])]


def choose_stances(
    probabilities: NDArray[np.float64],
    thresholds: Mapping[str, float | NDArray[np.float64]],
    task: Task,
) -> NDArray[np.intp]:
    """Choose the labels of many documents, for many thresholds at once.

    The labels of `task.no_stances` are tried in their order. A label with a threshold is chosen if
    its share of the probability of all labels not yet ruled out reaches the threshold, and is ruled
    out otherwise; a label without a threshold stays in. Of the remaining labels the most probable
    is chosen, of equal ones the first in `task.stances`. Without thresholds that is the most
    probable label of all. The rule is our own.

    Args:
        probabilities: Array (documents, labels), with labels in the order of `task.stances`.
        thresholds: Numbers, or arrays that are broadcast against (documents,), such as one of shape
            (thresholds, 1).
        task: Task with the labels.

    Returns:
        Indices of the labels in `task.stances`, of the broadcast shape, (documents,) if all
        thresholds are numbers.
    """
    for label in thresholds:
        if label not in task.no_stances:
            known = ", ".join(task.no_stances) or "none"
            raise UsageError(
                f"stance.thresholds: {label!r:.40}: no threshold in {task.name}; thresholds are for {known}"
            )
    remaining = probabilities.copy()
    chosen = []
    for label in task.no_stances:
        if label in thresholds:
            place = task.stances.index(label)
            chosen.append((place, remaining[:, place] >= thresholds[label] * remaining.sum(axis=1)))
            remaining[:, place] = 0.0
    # A label that is ruled out must not win even if all remaining labels have probability 0.
    remaining[:, [place for place, _ in chosen]] = -1.0
    decided: NDArray[np.intp] = remaining.argmax(axis=1)
    for place, where in reversed(chosen):
        decided = np.where(where, place, decided)
    return decided


# Source of a label: the judge prompt, the stance prompt, a threshold that overrode the most
# probable label, the sentences of a pair, or the task's label for an unknown stance; "none" if the
# task has no stances.
StanceSource = Literal["judge", "stance", "threshold", "inherited", "imputed", "none"]


class ChosenStance(NamedTuple):
    """The stance of a document, its source, and the probabilities of the labels, None if unknown."""

    label: str
    source: StanceSource
    probabilities: Mapping[str, float] | None


def choose_label(
    judgment: Judgment | None,
    reading: StanceReading | None,
    task: Task,
    settings: StanceSettings | None,
) -> ChosenStance | None:
    """Choose the stance of a document by the stance prompt if it was used, else by the judge prompt.

    Without an answer it is the task's label for an unknown stance, or None if it has no such label.
    """
    if not task.stances:
        return ChosenStance(NO_STANCE_COLUMN, "none", None)
    thresholds: Mapping[str, float] = settings.thresholds if settings is not None else {}
    if reading is not None:
        probabilities = None if reading.source == "value" else reading.probabilities
        found = ChosenStance(
            choose_stance(reading.probabilities, {}, task), "stance", probabilities
        )
    elif judgment is None:
        return (
            None
            if task.unknown_stance is None
            else ChosenStance(task.unknown_stance, "imputed", None)
        )
    else:
        answer = judgment.readings.get("stance")
        source: StanceSource = "inherited" if judgment.source == "inherited" else "judge"
        found = ChosenStance(
            judgment.stance, source, None if answer is None else answer.probabilities
        )
        # Thresholds belong to one prompt: the judge prompt only if the stance prompt is not used.
        thresholds = {} if settings is not None and settings.depth else thresholds
    if thresholds and found.probabilities:
        label = choose_stance(found.probabilities, thresholds, task)
        return (
            found if label == found.label else ChosenStance(label, "threshold", found.probabilities)
        )
    return found


class _Thresholds(Section, extra="ignore"):
    stance: StanceSettings


def read_thresholds(path: Path) -> StanceSettings:
    """Read the section `stance` of a configuration, as `touche-llm calibrate` writes it, and ignore the others."""
    return load_yaml(path, _Thresholds, error=UsageError).stance


def write_thresholds(
    path: Path, thresholds: Mapping[str, float], topics: list[str], prompt: str
) -> None:
    """Write thresholds, with the topics and prompt that they were fitted on, as a configuration, atomically."""
    values = {
        "stance": {
            "thresholds": dict(thresholds),
            "calibrated_on": topics,
            "calibrated_for": prompt,
        }
    }
    with open_atomic(path) as stream:
        stream.write(to_yaml(values))
