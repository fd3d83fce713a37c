"""Strict model of a `task.yaml`, with errors that name file, key and allowed values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from touche_llm.data.records import HIGHEST_GRADE
from touche_llm.data.settings import YamlError, read_yaml
from touche_llm.data.trec_runs import NO_STANCE_COLUMN
from touche_llm.errors import DataError, describe_problem, suggest

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
ReaderName = Literal["json_lines", "args_me"]
MeasureName = Literal["nDCG@5", "nDCG@10", "macro-F1"]
# Label of a sentence that takes no side, beside the labels of the task.
NO_SIDE = "NONE"

_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,30}")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
_SCALE = re.compile(r"([0-9]{1,2})\.\.([0-9]{1,2})")
# Other fields of an answer, other weights, and columns of the results.
_RESERVED = ("stance", "stance_source", "position", "role", FIRST_STAGE, "topic", "document", "rank", "score")
ModelT = TypeVar("ModelT", bound=BaseModel)


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


def _check_file_name(name: str) -> str:
    if name in ("", "..") or Path(name).name != name or not name.isprintable():
        raise ValueError(f"{name!r:.80}: must be the name of a file without a folder")
    return name


def _to_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line without control characters")
    return text


_Scale = Annotated[Scale, BeforeValidator(_parse_scale)]
_Text = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_printable)]
_Name = Annotated[str, AfterValidator(_check_name)]
_Aspect = Annotated[str, AfterValidator(_check_aspect)]
_Label = Annotated[str, AfterValidator(_check_label)]
_Labels = Annotated[list[_Label], AfterValidator(_check_unique)]
Url = Annotated[str, Field(pattern=r"^https://\S+$")]
# Sums of weights and scores stay finite.
Weight = Annotated[float, Field(ge=0.0, le=1e300, allow_inf_nan=False)]


class Strict(BaseModel):
    """Part of a YAML file of a task: unknown keys are errors, and no value is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CorpusDefinition(Strict):
    """Corpus of a task.

    Attributes:
        reader: Reader of the file: `json_lines`, or `args_me` for arguments with their sentences.
        files: Names of the published files, by which `tira` detects the task.
        datasets: Ids of ir_datasets, by which the task of a dataset is known.
        tira: Topics for which `tira` chooses the task if the name of the collection is no published one.
        id: Key of a document's id in JSON Lines; None for the keys of the Touché collections.
        text: Keys of the parts of its text, or its only key; likewise.
    """

    reader: ReaderName
    files: list[Annotated[str, AfterValidator(_check_file_name)]] = []
    datasets: list[_Text] = []
    tira: TiraTopics | None = None
    id: _Text | None = None
    text: Annotated[list[_Text], BeforeValidator(_to_list)] = []

    @model_validator(mode="after")
    def _check_fields(self) -> CorpusDefinition:
        for key in ("id", "text"):
            if getattr(self, key) and self.reader != "json_lines":
                raise ValueError(f"{key}: only the reader json_lines has keys; leave it out")
        return self


class StanceDefinition(Strict):
    """Stance labels of a task.

    Attributes:
        labels: All labels, in the order of the answer; of a task with objects, the first two stand for these.
        no_side: Labels that take no side, in the order in which they are ruled out.
        swapped: Labels that are exchanged when the two objects are; one direction is enough.
        unanswered: Label of a document without usable answer, or `omit` to leave it out of the run.
    """

    labels: Annotated[_Labels, Field(min_length=2, max_length=MAX_LABELS)]
    no_side: _Labels = []
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
        for label, other in self.swapped.items():
            if label == other or self.swapped.get(other, label) != label:
                raise ValueError(f"swapped: {label} and {other} do not exchange; give pairs of two different labels")
        if len(set(self.swapped.values())) < len(self.swapped):
            raise ValueError("swapped: two labels become the same one; give pairs of two different labels")
        return self


class DocumentLimits(Strict):
    """Minimum and maximum length of a ranking."""

    min: Annotated[int, Field(ge=0)] = 0
    max: Annotated[int, Field(ge=1, le=1000)] = 1000

    @model_validator(mode="after")
    def _check_order(self) -> DocumentLimits:
        if self.min > self.max:
            raise ValueError(f"min: {self.min} is above max, {self.max}; it must be {self.max} or less")
        return self


class TaskDefinition(Strict):
    """Content of a `task.yaml`; docs/reference/tasks.md describes its keys.

    Attributes:
        name: Name of the task, also of the folder of its templates below `prompts.folder`.
        title: Title for people.
        features: Features that need code.
        templates: Task of the project whose templates are used where the folder has none.
        corpus: Reader and file names of the corpus.
        aspects: Scale of each aspect that the judge prompt grades, in the order of the answer.
        qrels: Scale of the human judgments of each aspect where it is another than that of the prompt.
        sentence_aspects: Aspects that are graded for single sentences, with the feature `pairs`.
        stance: Stance labels; None if documents have no stance, so that runs have `Q0` in its place.
        documents_per_topic: Limits of a ranking.
        weights: Weights of the aspects and of the first stage by objective; an objective that is left out has those of
            `both`, and a weight that is left out is 0.
        measures: Official measure of each aspect and of the stance.
    """

    name: _Name
    title: _Text
    features: list[Feature] = []
    templates: _Name | None = None
    corpus: CorpusDefinition = CorpusDefinition(reader="json_lines")
    aspects: Annotated[dict[_Aspect, _Scale], Field(min_length=1, max_length=10)]
    qrels: dict[str, _Scale] = {}
    sentence_aspects: list[str] = []
    stance: StanceDefinition | None = None
    documents_per_topic: DocumentLimits = DocumentLimits()
    weights: dict[Objective, dict[str, Weight]]
    measures: dict[str, MeasureName] = {}

    @model_validator(mode="after")
    def _check_parts(self) -> TaskDefinition:
        self._check_features()
        for name, scale in self.aspects.items():
            if scale.lowest <= 1 and scale.highest == 10:
                raise ValueError(
                    f"aspects.{name}: {scale} has 1 and 10, whose probabilities cannot be told apart where a model "
                    f"writes digits one by one; give a scale up to 9, and qrels.{name} for human judgments up to 10"
                )
        for name in self.qrels:
            _require_known(f"qrels.{name}", name, tuple(self.aspects))
        names = (*self.aspects, FIRST_STAGE)
        if "both" not in self.weights:
            raise ValueError("weights.both: missing; it is the default objective")
        for objective, weights in self.weights.items():
            for name in weights:
                _require_known(f"weights.{objective}.{name}", name, names)
            if not sum(weights.values()):
                raise ValueError(f"weights.{objective}: all are 0; give one of {', '.join(names)} a weight above 0")
        for name, measure in self.measures.items():
            _require_known(f"measures.{name}", name, (*self.aspects, *(["stance"] if self.stance else [])))
            if (name == "stance") is not (measure == "macro-F1"):
                allowed = [known for known in get_args(MeasureName) if (known == "macro-F1") is (name == "stance")]
                raise ValueError(f"measures.{name}: must be {' or '.join(allowed)}, not {measure}")
        return self

    def _check_features(self) -> None:
        has = self.features
        if len(set(has)) < len(has):
            raise ValueError(f"features: {', '.join(has)}: one occurs twice; leave it out")
        if "pairs" in has:
            if others := [name for name in has if name != "pairs"]:
                raise ValueError(f"features: pairs cannot be combined with {', '.join(others)}")
            if self.corpus.reader != "args_me":
                raise ValueError("corpus.reader: must be args_me, which reads the sentences that `pairs` needs")
            if self.stance is None or self.stance.no_side or NO_SIDE in self.stance.labels:
                raise ValueError(f"stance: the feature pairs needs labels that all take a side; {NO_SIDE} is its own")
            if not self.sentence_aspects:
                raise ValueError(f"sentence_aspects: missing; name at least one of {', '.join(self.aspects)}")
        elif self.sentence_aspects:
            raise ValueError("sentence_aspects: only with the feature pairs; leave it out")
        elif "excerpts" in has and self.corpus.reader == "args_me":
            raise ValueError("features: excerpts are those of web pages; leave it out with corpus.reader args_me")
        for name in self.sentence_aspects:
            _require_known("sentence_aspects", name, tuple(self.aspects))
        if "stance_prompt" in has and (self.stance is None or not self.stance.no_side):
            raise ValueError("stance.no_side: missing; stance_prompt finds out whether a document takes a side")
        if self.stance is not None and self.stance.swapped and "objects" not in has:
            raise ValueError("stance.swapped: only with the feature objects; leave it out")


def _require_known(place: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise ValueError(f"{place}: {name!r:.40} is unknown{suggest(name, known)}; it must be {', '.join(known)}")


def read_definition(path: Path, model: type[ModelT]) -> ModelT:
    """Read a YAML file of a task into its model.

    Raises:
        DataError: The file cannot be read, is not YAML, or does not fit the model; names file, key and allowed values.
    """
    try:
        values = read_yaml(path, words=True)
    except OSError as error:
        raise DataError(f"{path}: cannot read it: {error.strerror}; see `touche-llm tasks new`") from error
    except YamlError as error:
        raise DataError(f"{path}: not YAML: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: must hold names and values: {', '.join(model.model_fields)}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        # A misspelt key is missing too, but the misspelling says more.
        first = min(error.errors(include_url=False), key=lambda found: found["type"] != "extra_forbidden")
        raise DataError(f"{path}: {_describe(first, model)}") from error


def _describe(error: ErrorDetails, model: type[BaseModel]) -> str:
    """Return `key: problem` of an error, with the key's dotted name."""
    *sections, last = parts = [part for part in error["loc"] if part != "[key]"] or [""]
    place, problem = ".".join(map(str, parts)), describe_problem(error)
    if error["type"] == "missing":
        return f"{place}: missing; the file must have it"
    if error["type"] in ("extra_forbidden", "invalid_key"):
        known = _list_keys(model, sections)
        return f"{place}: no such key{suggest(str(last), known)}; known are {', '.join(known)}"
    if not place:
        return problem
    # The message of a check of several keys begins with the key's name within its section.
    is_key = error["type"] == "value_error" and problem.partition(":")[0] in _list_keys(model, parts)
    return f"{place}{'.' if is_key else ': '}{problem}"


def _list_keys(model: type[BaseModel], sections: Iterable[object]) -> list[str]:
    """Return the keys of a section of a model; empty if it is no section."""
    known: Mapping[str, Any] = model.model_fields
    for section in sections:
        if isinstance(section, int) or section not in known:
            continue
        kinds = [known[str(section)].annotation]
        kinds += [kind for outer in kinds for kind in get_args(outer)]
        found = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        known = found[0].model_fields if found else {}
    return list(known)
