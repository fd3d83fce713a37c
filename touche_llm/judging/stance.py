"""The stance of a document: what is asked about it, and how a label is chosen from the probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from touche_llm.data.files import open_atomic
from touche_llm.data.setting_problems import describe_problem
from touche_llm.data.yaml_text import YamlError, read_yaml, to_yaml
from touche_llm.errors import UsageError
from touche_llm.tasks.base import Task

# A topic's id; YAML reads `12` as a number.
_TopicId = Annotated[str, Field(coerce_numbers_to_str=True)]


def _labels(values: Any) -> Any:
    """YAML reads the name `NO` as false where it is not in quotation marks."""
    if not isinstance(values, dict) or False not in values:
        return values
    if "NO" in values:
        raise ValueError("NO is there twice, once without quotation marks")
    return {"NO" if name is False else name: value for name, value in values.items()}


class StanceSettings(BaseModel):
    """How the stance of documents is found.

    Attributes:
        depth: documents of each topic that the stance prompt asks about, the best first; 0: none. The others keep the
            probabilities of the judge prompt.
        both_orders: ask with the two objects in both orders and take the mean, where the task has objects.
        thresholds: for labels that take no side, the share (0 to 1) from which they are chosen, see `choose_stance`.
        calibrated_on: ids of the topics that the thresholds were fitted on; none where they were chosen by hand.
        calibrated_for: name, version and hash of the prompt whose probabilities they were fitted on.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    depth: int = Field(20, ge=0)
    both_orders: bool = True
    thresholds: Annotated[dict[str, Annotated[float, Field(ge=0.0, le=1.0)]], BeforeValidator(_labels)] = {}
    calibrated_on: tuple[_TopicId, ...] = ()
    calibrated_for: str = ""


def choose_stance(probabilities: Mapping[str, float], thresholds: Mapping[str, float], task: Task) -> str:
    """The label of a document.

    The labels of `task.no_stances` are looked at in their order. One with a threshold is chosen where its share of the
    probability of all labels not yet ruled out is at least the threshold, and is ruled out otherwise; one without a
    threshold stays in. Of the labels left the most probable is chosen, of equal ones the first in `task.stances`.
    Without thresholds that is the most probable of all. The rule is our own.

    Args:
        probabilities: of each label of `task.stances`, not all 0.
        thresholds: by label of `task.no_stances`, 0 to 1.
        task: has the labels.

    Raises:
        UsageError: a threshold of another label.
    """
    row = np.array([[probabilities[label] for label in task.stances]])
    return task.stances[int(choose_stances(row, thresholds, task)[0])]


def choose_stances(
    probabilities: NDArray[np.float64], thresholds: Mapping[str, float | NDArray[np.float64]], task: Task
) -> NDArray[np.intp]:
    """The rule of `choose_stance` for many documents, and for many thresholds at once.

    Args:
        probabilities: (documents, labels), in the order of `task.stances`.
        thresholds: numbers, or arrays that are broadcast against (documents,), as one of shape (thresholds, 1).
        task: has the labels.

    Returns:
        places of the labels in `task.stances`, of shape (documents,) or what it was broadcast to.

    Raises:
        UsageError: a threshold of a label that takes a side, or that the task does not have.
    """
    for label in thresholds:
        if label not in task.no_stances:
            known = ", ".join(task.no_stances) or "none"
            raise UsageError(f"stance.thresholds: {label!r:.40}: {task.name} has thresholds of: {known}")
    left = probabilities.copy()
    chosen = []
    for label in task.no_stances:
        if label in thresholds:
            place = task.stances.index(label)
            chosen.append((place, left[:, place] >= thresholds[label] * left.sum(axis=1)))
            left[:, place] = 0.0
    # A label that is ruled out is not taken where all that are left have probability 0 either.
    left[:, [place for place, _ in chosen]] = -1.0
    decided: NDArray[np.intp] = left.argmax(axis=1)
    for place, where in reversed(chosen):
        decided = np.where(where, place, decided)
    return decided


def read_settings(path: Path) -> StanceSettings:
    """The section `stance` of a configuration, as `touche-llm calibrate` writes it; other sections are not looked at.

    Raises:
        UsageError: the file cannot be read, has no such section, or a value in it is not as it should be.
    """
    try:
        values = read_yaml(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot read the thresholds: {error.strerror or error}") from error
    except YamlError as error:
        raise UsageError(f"{path}: not YAML: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("stance"), dict):
        raise UsageError(f"{path}: has no section `stance`; `touche-llm calibrate --out` writes one")
    try:
        return StanceSettings.model_validate(values["stance"])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("stance", *first["loc"]))
        raise UsageError(f"{path}: {where}: {describe_problem(first)}") from error


def write_thresholds(path: Path, thresholds: Mapping[str, float], topics: list[str], prompt: str) -> None:
    """Write thresholds, the topics and the prompt they were fitted on as a configuration, whole or not at all."""
    values = {"stance": {"thresholds": dict(thresholds), "calibrated_on": topics, "calibrated_for": prompt}}
    with open_atomic(path) as stream:
        stream.write(to_yaml(values))
