"""Parts of a task's definition: scales, labels, corpus, limits."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from touche_llm.data.records import HIGHEST_GRADE, Model
from touche_llm.data.trec_runs import NO_STANCE_COLUMN

TASK_FILE = "task.yaml"
# Name of the weight of the first stage's score, beside those of the grades.
FIRST_STAGE = "first_stage"
# Value of `stance.unanswered` for a task whose runs leave out documents without a usable answer.
OMIT = "omit"
# Servers return the probabilities of 20 tokens at most.
MAX_LABELS = 20
# Objective of a ranking.
Objective = Literal["relevance", "quality", "both"]
# What needs code; docs/reference/tasks.md describes each.
Feature = Literal["objects", "stance_prompt", "pairs", "excerpts"]
# Whether the topics of a TIRA collection name the two objects that they compare.
TiraTopics = Literal["objects", "no_objects"]
# Label of a sentence that takes no side, beside the labels of the task.
NO_SIDE = "NONE"
MeasureName = Literal["nDCG@5", "nDCG@10", "macro-F1"]

_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,30}")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
_SCALE = re.compile(r"([0-9]{1,2})\.\.([0-9]{1,2})")
# Other fields of an answer, other weights, and columns of the results.
_RESERVED = ("stance", "stance_source", "position", "role", FIRST_STAGE, "topic", "document", "rank", "score")


class Scale(NamedTuple):
    """Grades of an aspect, whole numbers from `lowest` to `highest`."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return f"{self.lowest}..{self.highest}"

    def to_share(self, grade: float) -> float:
        """Return the place of a grade on the scale, from 0 to 1."""
        return (grade - self.lowest) / (self.highest - self.lowest)

    def convert(self, grade: float, scale: Scale) -> float:
        """Return the grade of another scale that has the same place there."""
        if scale == self:
            return grade
        return scale.lowest + self.to_share(grade) * (scale.highest - scale.lowest)

    @property
    def grades(self) -> tuple[int, ...]:
        """All grades, in ascending order."""
        return tuple(range(self.lowest, self.highest + 1))


def _parse_scale(text: Any) -> Scale:
    found = _SCALE.fullmatch(text) if isinstance(text, str) else None
    scale = Scale(*map(int, found.groups())) if found else None
    if scale is None or not scale.lowest < scale.highest <= HIGHEST_GRADE:
        raise ValueError(
            f"must be a scale LOWEST..HIGHEST of numbers from 0 to {HIGHEST_GRADE}, such as 0..3, not {text!r:.30}"
        )
    return scale


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.40}: must begin with a letter and have only a to z, 0 to 9 and _, 31 at most")
    return name


def _check_aspect(name: str) -> str:
    if _check_name(name) in _RESERVED:
        raise ValueError(f"{name!r}: has another meaning; an aspect must not be named {', '.join(_RESERVED)}")
    return name


def _check_label(label: str) -> str:
    if not _LABEL.fullmatch(label):
        raise ValueError(
            f"{label!r:.40}: must begin with a letter and have only letters, digits, _, + and -, 31 at most"
        )
    if label in (OMIT, NO_STANCE_COLUMN):
        raise ValueError(f"{label!r}: has another meaning in runs and tasks; give another label")
    return label


def _check_unique(names: list[str]) -> list[str]:
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.casefold(), name)) != name or names.count(name) > 1:
            raise ValueError(f"{other} and {name} are the same label; leave one of them out")
    return names


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line without control characters")
    return text


GradeScale = Annotated[Scale, BeforeValidator(_parse_scale)]
Line = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_printable)]
Name = Annotated[str, AfterValidator(_check_name)]
Aspect = Annotated[str, AfterValidator(_check_aspect)]
Labels = Annotated[list[Annotated[str, AfterValidator(_check_label)]], AfterValidator(_check_unique)]
Url = Annotated[str, Field(pattern=r"^https://\S+$")]
# Sums of weights and scores stay finite.
Weight = Annotated[float, Field(ge=0.0, le=1e300, allow_inf_nan=False)]


class CorpusDefinition(Model, strict=True):
    """Corpus of a task.

    Attributes:
        reader: Reader of the file: `json_lines`, or `args_me` for arguments with their sentences.
        files: Names of the published files, by which `tira` detects the task.
        datasets: Ids of ir_datasets, by which the task of a dataset is known.
        tira: Topics for which `tira` chooses the task if the name of the collection is no published one.
        id: Key of a document's id in JSON Lines; None for the keys of the Touché collections.
        text: Keys of the parts of its text, or its only key; likewise.
    """

    reader: Literal["json_lines", "args_me"]
    files: list[Line] = []
    datasets: list[Line] = []
    tira: TiraTopics | None = None
    id: Line | None = None
    text: Annotated[list[Line], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = []

    @model_validator(mode="after")
    def _check_fields(self) -> CorpusDefinition:
        for key in ("id", "text"):
            if getattr(self, key) and self.reader != "json_lines":
                raise ValueError(f"{key}: only the reader json_lines has keys; leave it out")
        return self


class StanceDefinition(Model, strict=True):
    """Stance labels of a task.

    Attributes:
        labels: All labels, in the order of the answer; of a task with objects, the first two stand for these.
        no_side: Labels that take no side, in the order in which they are ruled out.
        swapped: Labels that are exchanged when the two objects are; one direction is enough.
        unanswered: Label of a document without usable answer, or `omit` to leave it out of the run.
    """

    labels: Annotated[Labels, Field(min_length=2, max_length=MAX_LABELS)]
    no_side: Labels = []
    swapped: dict[str, str] = {}
    unanswered: str

    @model_validator(mode="after")
    def _check_labels(self) -> StanceDefinition:
        known = ", ".join(self.labels)
        for key, labels in (
            ("no_side", self.no_side),
            ("swapped", [label for pair in self.swapped.items() for label in pair]),
            ("unanswered", [] if self.unanswered == OMIT else [self.unanswered]),
        ):
            for label in labels:
                if label not in self.labels:
                    also = f" or {OMIT}" if key == "unanswered" else ""
                    raise ValueError(f"{key}: {label!r:.40} is not one of the labels; it must be {known}{also}")
        if set(self.no_side) == set(self.labels):
            raise ValueError(f"no_side: holds all of {known}; at least one label must take a side")
        pairs = {frozenset(pair) for pair in self.swapped.items()}
        exchanged = [label for pair in pairs for label in pair]
        if len(exchanged) < 2 * len(pairs) or len(set(exchanged)) < len(exchanged):
            raise ValueError("swapped: must hold pairs of two different labels, and each label in one pair only")
        return self


class DocumentLimits(Model, strict=True):
    """Minimum and maximum length of a ranking, set by the organisers."""

    min: Annotated[int, Field(ge=0)] = 0
    max: Annotated[int, Field(ge=1, le=1000)] = 1000

    @model_validator(mode="after")
    def _check_order(self) -> DocumentLimits:
        if self.min > self.max:
            raise ValueError(f"min: {self.min} is above max, {self.max}; it must be {self.max} or less")
        return self
