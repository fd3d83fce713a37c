"""Stances from the probabilities of labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """Choose the label of a document by the rule of `choose_stances`.

    Args:
        probabilities: Probability of each label of the task, not all 0.
        thresholds: Thresholds by label that takes no side.
        task: Task with the labels.
    """
    row = np.array([[probabilities[label] for label in task.stances]])
    chosen = choose_stances(row, thresholds, task)
    return task.stances[int(chosen[0])]


def choose_stances(
    probabilities: NDArray[np.float64],
    thresholds: Mapping[str, float | NDArray[np.float64]],
    task: Task,
) -> NDArray[np.intp]:
    """Choose the labels of many documents, for many thresholds at once.

    The labels that take no side are tried one after the other. One with a threshold is chosen if
    its share of the probability of all labels not yet ruled out reaches the threshold, and is ruled
    out otherwise. If none is chosen, it is the most probable of the remaining labels, the first of
    equal ones. The rule is our own.

    Args:
        probabilities: Array (documents, labels), with labels in the order of `task.stances`.
        thresholds: Numbers, or arrays that are broadcast against (documents,), such as one of shape
            (thresholds, 1).
        task: Task with the labels, and the order in which they are tried (`no_stances`).

    Returns:
        Indices of the labels in `task.stances`, of the broadcast shape, (documents,) if all
        thresholds are numbers.

    Raises:
        UsageError: A threshold is for a label that takes a side, or that the task lacks.
    """
    _check_thresholds(thresholds, task)
    remaining = probabilities.copy()

    reached_by_label: dict[int, NDArray[np.bool_]] = {}
    for label in task.no_stances:
        if label not in thresholds:
            continue
        index = task.stances.index(label)
        min_probability = thresholds[label] * remaining.sum(axis=1)
        reached_by_label[index] = remaining[:, index] >= min_probability
        # Ruled out where it does not reach the threshold, so it counts for none of the next labels.
        remaining[:, index] = 0.0

    # A label that is ruled out must not win even if all remaining labels have probability 0.
    remaining[:, list(reached_by_label)] = -1.0
    chosen: NDArray[np.intp] = remaining.argmax(axis=1)
    # The label that was tried first decides, so it is written last.
    for index, is_reached in reversed(reached_by_label.items()):
        chosen = np.where(is_reached, index, chosen)
    return chosen


def _check_thresholds(thresholds: Iterable[str], task: Task) -> None:
    """Raise UsageError if a threshold is for a label that takes a side, or that the task lacks."""
    for label in thresholds:
        if label not in task.no_stances:
            allowed = ", ".join(task.no_stances) or "none"
            raise UsageError(
                f"stance.thresholds: {label!r:.40}: no threshold in {task.name}; thresholds are for {allowed}"
            )


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
    """Choose the stance of a document.

    It is that of the stance prompt if there is an answer to it, otherwise that of the judge prompt,
    and otherwise the task's label for an unknown stance.

    Args:
        judgment: Judgment of the document, if any.
        reading: Answer to the stance prompt about the document, if any.
        task: Task with the labels.
        settings: Settings of stance detection, with the thresholds; None for no thresholds.

    Returns:
        Chosen stance; None if there is no answer and the task has no label for an unknown stance.
    """
    if not task.stances:
        return ChosenStance(NO_STANCE_COLUMN, "none", None)

    thresholds: Mapping[str, float] = {} if settings is None else settings.thresholds
    if reading is not None:
        return _apply_thresholds(_read_stance_answer(reading, task), thresholds, task)

    if judgment is not None:
        judged = _read_judge_answer(judgment)
        uses_stance_prompt = settings is not None and settings.depth > 0
        if uses_stance_prompt:
            # Then the thresholds belong to the stance prompt.
            return judged
        return _apply_thresholds(judged, thresholds, task)

    if task.unknown_stance is None:
        return None
    return ChosenStance(task.unknown_stance, "imputed", None)


def _read_stance_answer(reading: StanceReading, task: Task) -> ChosenStance:
    """Return the most probable stance of an answer to the stance prompt."""
    label = choose_stance(reading.probabilities, {}, task)
    has_probabilities = reading.source == "probabilities"
    return ChosenStance(label, "stance", reading.probabilities if has_probabilities else None)


def _read_judge_answer(judgment: Judgment) -> ChosenStance:
    """Return the stance of an answer to the judge prompt, or the stance that a pair inherits."""
    source: StanceSource = "inherited" if judgment.source == "inherited" else "judge"
    reading = judgment.readings.get("stance")
    probabilities = None if reading is None else reading.probabilities
    return ChosenStance(judgment.stance, source, probabilities)


def _apply_thresholds(
    stance: ChosenStance, thresholds: Mapping[str, float], task: Task
) -> ChosenStance:
    """Return a stance with the label that thresholds choose; unchanged without probabilities."""
    if not thresholds or not stance.probabilities:
        return stance

    label = choose_stance(stance.probabilities, thresholds, task)
    if label == stance.label:
        return stance
    return ChosenStance(label, "threshold", stance.probabilities)


class _ThresholdsFile(Section, extra="ignore"):
    """Configuration of which the section `stance` alone is read."""

    stance: StanceSettings


def read_thresholds(path: Path) -> StanceSettings:
    """Read the section `stance` of a configuration, as `touche-llm calibrate` writes it.

    Other sections are ignored.

    Raises:
        UsageError: The file is missing, or the section is missing or invalid.
    """
    return load_yaml(path, _ThresholdsFile, error=UsageError).stance


def write_thresholds(
    path: Path, thresholds: Mapping[str, float], topics: list[str], prompt: str
) -> None:
    """Write thresholds as a configuration, atomically.

    Args:
        path: File to write.
        thresholds: Thresholds by label.
        topics: Ids of the topics that they were fitted on.
        prompt: Name, version and hash of the prompt that they were fitted on.
    """
    section = {
        "thresholds": dict(thresholds),
        "calibrated_on": topics,
        "calibrated_for": prompt,
    }
    with open_atomic(path) as stream:
        stream.write(to_yaml({"stance": section}))
