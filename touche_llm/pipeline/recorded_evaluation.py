"""The last evaluation of a run, kept in its folder: the qrels, and the values that they gave."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from pydantic import model_validator

from touche_llm.data.io import open_atomic, sha256
from touche_llm.data.records import Model
from touche_llm.data.settings import load_yaml, to_yaml
from touche_llm.errors import DataError, UsageError
from touche_llm.evaluation.qrels import Coverage
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.tasks.task import Task

if TYPE_CHECKING:
    from touche_llm.evaluation.measures import Evaluation


class QrelsFile(Model, extra="ignore"):
    """A qrels file: its absolute path and its SHA-256 when the run was evaluated."""

    file: Path
    sha256: str


class RecordedMeasure(Model, extra="ignore"):
    """The value of a measure with its 95 % interval, over how many topics or documents, and judged@k.

    A value is None if it is undefined.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    judged: float | None


class Basis(NamedTuple):
    """What a value rests on; values with another basis cannot be compared with it.

    Attributes:
        qrels: SHA-256 of the qrels file.
        topics: Topics that the run is measured on.
    """

    qrels: str
    topics: frozenset[str]


class RecordedEvaluation(Model, extra="ignore"):
    """The last evaluation of a run.

    Attributes:
        task: Name of the task.
        run: SHA-256 of the run file that was measured.
        qrels: Qrels files by aspect.
        coverage: Topics that the run is measured on, by aspect.
        measures: Measures by name, such as `relevance nDCG@5`.
    """

    task: str
    run: str
    qrels: dict[str, QrelsFile]
    coverage: dict[str, Coverage]
    measures: dict[str, RecordedMeasure]

    @model_validator(mode="after")
    def _check_aspects(self) -> Self:
        aspects = {name.split(" ", 1)[0] for name in self.measures}
        if unknown := aspects - (self.qrels.keys() & self.coverage.keys()):
            raise ValueError(f"no qrels or coverage of {', '.join(sorted(unknown))}")
        return self

    def is_current(self, directory: RunDirectory) -> bool:
        """Whether the folder's run is the one that was measured."""
        return directory.run_file.is_file() and sha256(directory.run_file) == self.run

    def get_basis(self, measure: str) -> Basis | None:
        """Return what the value of a measure rests on; None without a value."""
        if measure not in self.measures or self.measures[measure].value is None:
            return None
        aspect = measure.split(" ", 1)[0]
        return Basis(self.qrels[aspect].sha256, frozenset(self.coverage[aspect].topics))


def record_evaluation(directory: RunDirectory, task: Task, qrels: Mapping[str, Path], evaluation: Evaluation) -> None:
    """Write the evaluation of a folder's run by these qrels files, in place of an earlier one."""
    measures = {
        row["measure"]: {name: _to_plain(row[name]) for name in ("value", "low", "high", "judged")}
        | {"n": int(row["n"])}
        for row in evaluation.summary().to_dict(orient="records")
    }
    content = {
        "task": task.name,
        "run": sha256(directory.run_file),
        "qrels": {aspect: {"file": str(path.absolute()), "sha256": sha256(path)} for aspect, path in qrels.items()},
        "coverage": {aspect: asdict(evaluation.coverage(aspect)) for aspect in qrels},
        "measures": measures,
    }
    with open_atomic(directory.evaluation_file) as stream:
        stream.write(to_yaml(content))


def _to_plain(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 6)


def read_evaluation(directory: RunDirectory) -> RecordedEvaluation | None:
    """Read the last evaluation of a folder's run; None if it was never evaluated with qrels.

    Raises:
        DataError: The file was not written by this program.
    """
    path = directory.evaluation_file
    if not path.exists():
        return None
    return load_yaml(path, RecordedEvaluation, advice="delete the file and evaluate the run again")


def choose_reference(bases: Iterable[Basis]) -> Basis | None:
    """Return the most frequent basis of values, of equally frequent ones that with the most topics, else the first."""
    counts = Counter(bases)
    return max(counts, key=lambda basis: (counts[basis], len(basis.topics)), default=None)


def find_known_qrels(directories: Iterable[RunDirectory], task: Task) -> dict[str, Path]:
    """Return the qrels that these runs were last evaluated with, by aspect; empty if none was evaluated.

    Raises:
        DataError: A file changed or is missing.
        UsageError: Two runs were evaluated with different qrels.
    """
    known: dict[str, QrelsFile] = {}
    source: RunDirectory | None = None
    for directory in directories:
        recorded = read_evaluation(directory)
        if recorded is None or recorded.task != task.name:
            continue
        if source is not None and {each.sha256 for each in known.values()} != {
            each.sha256 for each in recorded.qrels.values()
        }:
            options = " ".join(f"--{aspect} {each.file}" for aspect, each in known.items())
            raise UsageError(f"{source} and {directory} were evaluated with different qrels; choose some, as {options}")
        known, source = recorded.qrels, directory
    for aspect, each in known.items():
        if not each.file.is_file():
            raise DataError(
                f"{each.file}: not found, but {source} was evaluated with it; name the file with --{aspect}"
            )
        if sha256(each.file) != each.sha256:
            raise DataError(
                f"{each.file}: changed since {source} was evaluated with it; give it again with --{aspect} {each.file}"
            )
    return {aspect: each.file for aspect, each in known.items()}
