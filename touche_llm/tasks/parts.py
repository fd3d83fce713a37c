"""Parts of a task's definition: scales, labels, corpus, limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from touche_llm.data.records import HIGHEST_GRADE, Model
from touche_llm.data.runs.writing import NO_STANCE_COLUMN

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
Feature = Literal["objects", "stance_prompt", "excerpts"]
# Whether the topics of a TIRA collection name the two objects that they compare.
TiraTopics = Literal["objects", "no_objects"]
# Label of a sentence that takes no side, beside the labels of the task.
NO_SIDE = "NONE"
OfficialMeasure = Literal["nDCG@5", "nDCG@10", "macro-F1"]

_SCALE = re.compile(r"([0-9]{1,2})\.\.([0-9]{1,2})")
# Names that no aspect and no label may have: other fields of an answer, other weights, columns of
# runs and results, and the value for a stance that is left out.
_RESERVED = (
    *("stance", "stance_source", "position", "role"),
    *("topic", "document", "rank", "score"),
    *(FIRST_STAGE, OMIT, NO_STANCE_COLUMN),
)


class Scale(NamedTuple):
    """Grades of an aspect, whole numbers from `lowest` to `highest`."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return f"{self.lowest}..{self.highest}"

    def to_share(self, grade: float) -> float:
        """Return the place of a grade on the scale, from 0 to 1."""
        return (grade - self.lowest) / (self.highest - self.lowest)

    @property
    def grades(self) -> tuple[int, ...]:
        """All grades, in ascending order."""
        return tuple(range(self.lowest, self.highest + 1))


def parse_scale(text: object) -> Scale:
    """Return the scale of a text such as `0..3`.

    Raises:
        ValueError: The text is no scale.
    """
    ends = _SCALE.fullmatch(str(text))
    if ends is not None:
        scale = Scale(lowest=int(ends[1]), highest=int(ends[2]))
        if scale.lowest < scale.highest <= HIGHEST_GRADE:
            return scale
    raise ValueError(
        f"must be LOWEST..HIGHEST, numbers from 0 to {HIGHEST_GRADE}, such as 0..3, not {text!r:.30}"
    )


def _check_free(name: str) -> str:
    """Return a name; raise ValueError if it has another meaning."""
    if name in _RESERVED:
        raise ValueError(
            f"{name!r}: has another meaning; give another name than {', '.join(_RESERVED)}"
        )
    return name


def _check_unique(labels: list[str]) -> list[str]:
    """Return labels; raise ValueError if one occurs twice, in any letter case."""
    if len({label.casefold() for label in labels}) < len(labels):
        raise ValueError(
            f"must not hold the same label twice, in any letter case: {', '.join(labels)}"
        )
    return labels


def _to_list(value: object) -> object:
    """Return a text as a list of one; another value as it is."""
    return [value] if isinstance(value, str) else value


GradeScale = Annotated[Scale, BeforeValidator(parse_scale)]
Line = Annotated[str, Field(min_length=1, max_length=200)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
Aspect = Annotated[Name, AfterValidator(_check_free)]
Label = Annotated[
    str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_+-]{0,30}$"), AfterValidator(_check_free)
]
Labels = Annotated[list[Label], AfterValidator(_check_unique)]
Url = Annotated[str, Field(pattern=r"^https://\S+$")]
# Sums of weights and scores stay finite.
Weight = Annotated[float, Field(ge=0.0, le=1e300, allow_inf_nan=False)]


class CorpusDefinition(Model, strict=True):
    """Corpus of a task.

    Attributes:
        reader: Reader of the file: `json_lines`, or `args_me` for arguments with their sentences.
        files: Names of the published files, by which `tira` detects the task.
        datasets: Ids of ir_datasets, by which the task of a dataset is known.
        tira: Topics for which `tira` chooses the task if the name of the collection is no published
            one.
        id: Key of a document's id in JSON Lines; None for the keys of the Touché collections.
        text: Keys of the parts of its text, or its only key; likewise.
    """

    reader: Literal["json_lines", "args_me"]
    files: list[Line] = []
    datasets: list[Line] = []
    tira: TiraTopics | None = None
    id: Line | None = None
    text: Annotated[list[Line], BeforeValidator(_to_list)] = []

    @model_validator(mode="after")
    def _check_keys(self) -> CorpusDefinition:
        """Raise ValueError for keys that the reader does not have."""
        if (self.id or self.text) and self.reader != "json_lines":
            raise ValueError("id: only the reader json_lines has keys; leave out `id` and `text`")
        return self


class StanceDefinition(Model, strict=True):
    """Stance labels of a task.

    Attributes:
        labels: All labels, in the order of the answer; of a task with objects, the first two stand
            for these.
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
        """Raise ValueError unless all labels are among `labels`, and fit together."""
        _require_allowed("no_side", self.no_side, self.labels)
        for pair in self.swapped.items():
            _require_allowed("swapped", pair, self.labels)
        _require_allowed("unanswered", [self.unanswered], [*self.labels, OMIT])

        if set(self.no_side) == set(self.labels):
            raise ValueError("no_side: holds all labels; at least one must take a side")
        _check_pairs(self.swapped)
        return self


def _check_pairs(swapped: Mapping[str, str]) -> None:
    """Raise ValueError unless each label has one partner, another label.

    A pair may be given in both directions.
    """
    partners: dict[str, set[str]] = {}
    for first, second in swapped.items():
        partners.setdefault(first, set()).add(second)
        partners.setdefault(second, set()).add(first)

    for label, label_partners in partners.items():
        if len(label_partners) > 1 or label in label_partners:
            raise ValueError(
                "swapped: must hold pairs of two different labels, and each label in one pair only"
            )


def _require_allowed(key: str, labels: Iterable[str], allowed: Sequence[str]) -> None:
    """Raise ValueError, naming the key, if a label is not allowed."""
    for label in labels:
        if label not in allowed:
            raise ValueError(f"{key}: must be of {', '.join(allowed)}, not {label!r:.40}")


class DocumentLimits(Model, strict=True):
    """Minimum and maximum length of a ranking, set by the organisers."""

    min: Annotated[int, Field(ge=0)] = 0
    max: Annotated[int, Field(ge=1, le=1000)] = 1000

    @model_validator(mode="after")
    def _check_order(self) -> DocumentLimits:
        """Raise ValueError if the minimum is above the maximum."""
        if self.min > self.max:
            raise ValueError(f"min: {self.min} is above max, {self.max}")
        return self
