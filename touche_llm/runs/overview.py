"""Finished, unfinished and damaged runs: found and read as folders or files, with overviews of folders."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import PlainValidator

from touche_llm.api.rank import list_result_columns
from touche_llm.config.configuration import Config
from touche_llm.config.files import METADATA
from touche_llm.config.origins import Origins
from touche_llm.corpus.store import DocumentStore
from touche_llm.data.files import open_atomic, sha256
from touche_llm.data.locks import LOCK
from touche_llm.data.measure import Measure
from touche_llm.data.recognize import require_kind
from touche_llm.data.records import Model
from touche_llm.data.runs import reading
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import DataError, ToucheError, UsageError
from touche_llm.evaluation.qrels import Coverage
from touche_llm.kinds.known import get_kind
from touche_llm.runs.directory import BATCH, OUTPUTS, RECORDED, RUN, RunDirectory
from touche_llm.runs.facts import sum_values
from touche_llm.runs.record import RunRecord, StageRecords
from touche_llm.settings.yaml_text import load_yaml, to_yaml
from touche_llm.tasks import find_dataset_task, get_task
from touche_llm.tasks.task import Task

if TYPE_CHECKING:
    from touche_llm.evaluation.measures import Evaluation

# Any of these files marks a folder as a run.
_MARKS = frozenset((METADATA, LOCK, BATCH, *(name for names in OUTPUTS.values() for name in names)))
# The search for runs goes no deeper.
MAX_DEPTH = 6
COMPLETE = "complete"
BROKEN = "broken"
EMPTY = "empty"
# State of a run whose last finished stage is this one.
_STATES = {"retrieve": "retrieved", "judge": "judged", "rank": COMPLETE}
# Facts of which a run has the sum over its stages. Tokens are those of requests, not of answers from
# the cache.
TOTALS = (
    "requests",
    "cached",
    "prompt_tokens",
    "completion_tokens",
    "failures",
    "unread",
    "overruled",
    "seconds",
)
_TEXT_CHARS = 300
_TEXT_COLUMNS = ("topic", "document", "stance", "stance_source")


@dataclass(frozen=True, slots=True)
class RunOverview:
    """State, settings and costs of a run.

    Attributes:
        state: "complete"; the last finished stage ("empty", "retrieved", "judged"); "unfinished"
            while a stage replaces its outputs or after it was interrupted; or "broken".
        config: Configuration; None if it cannot be read.
        origins: Origins of the values of the configuration.
        stages: Records of the finished stages.
        evaluation: Last evaluation of the present run file.
        changed: When the metadata or, without it, the folder was last written.
    """

    directory: RunDirectory
    state: str
    problem: str
    config: Config | None
    origins: Origins
    stages: StageRecords
    evaluation: RecordedEvaluation | None
    changed: datetime

    @property
    def model(self) -> str:
        """Model of the judgments; empty if there are none."""
        judge = self.stages.judge
        return "" if judge is None else judge.llm.model.name

    @property
    def prompt(self) -> str:
        """Judge prompt, as NAME@VERSION-HASH; empty before the judge stage."""
        label = self.stages.prompts.get("judge", "")
        return label.partition("/")[2]

    @property
    def topics(self) -> int | None:
        """Number of topics of the first stage."""
        retrieve = self.stages.retrieve
        return None if retrieve is None else retrieve.topics

    @property
    def totals(self) -> dict[str, int | float]:
        """Sums over all finished stages of the facts in `TOTALS`, by name."""
        return sum_values(self.stages.finished.values(), TOTALS)


def read_overview(folder: Path) -> RunOverview:
    """Read the overview of a run.

    A damaged file makes the run "broken" instead of raising an error.
    """
    directory = RunDirectory(folder)
    state = BROKEN
    problem = ""
    config: Config | None = None
    origins = Origins()
    stages = StageRecords()
    evaluation: RecordedEvaluation | None = None
    try:
        metadata = directory.read_metadata()
        stages = metadata.stages
        loaded = directory.read_with_origins()
        config = loaded.config
        origins = loaded.origins
        state, problem = _find_state(directory, metadata)
        evaluation = _read_present_evaluation(directory)
    except ToucheError as error:
        problem = str(error)
        state = BROKEN
        if _is_starting(directory):
            state = EMPTY
            problem = f"{folder}: stopped during start-up, or starting now; give the command again"
    except OSError as error:
        state = BROKEN
        problem = f"cannot be read: {error.strerror}"

    marked = directory.metadata_file if directory.metadata_file.is_file() else folder
    return RunOverview(
        directory=directory,
        state=state,
        problem=problem,
        config=config,
        origins=origins,
        stages=stages,
        evaluation=evaluation,
        changed=datetime.fromtimestamp(marked.stat().st_mtime),
    )


def _find_state(directory: RunDirectory, metadata: RunRecord) -> tuple[str, str]:
    """Return the state of a run that can be read, and the problem, empty if there is none."""
    if metadata.unfinished is not None:
        return "unfinished", f"`touche-llm {metadata.unfinished}` was interrupted or is running"

    finished = list(metadata.stages.finished)
    if not finished:
        return EMPTY, ""

    state = _STATES[finished[-1]]
    if state == COMPLETE and not directory.run_file.is_file():
        return BROKEN, f"no {RUN}"
    return state, ""


def _read_present_evaluation(directory: RunDirectory) -> RecordedEvaluation | None:
    """Read the last evaluation; None if there is none, or if it measured an earlier run file."""
    if not directory.run_file.is_file():
        return None
    evaluation = read_evaluation(directory)
    if evaluation is None or evaluation.run != sha256(directory.run_file):
        return None
    return evaluation


def _is_starting(directory: RunDirectory) -> bool:
    """Return whether a folder holds nothing but a lock, as during the start-up of a run."""
    marks = [name for name in _MARKS if (directory.path / name).exists()]
    # The configuration is written after start-up.
    return marks == [LOCK] and not directory.config_file.exists()


def find_runs(root: Path) -> list[Path]:
    """Find the folders of runs in a folder and below, but not within runs, recorded ones, hidden folders and links."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder")
    found = []
    for name, below, files in os.walk(root):
        folder = Path(name)
        is_run = not _MARKS.isdisjoint(files)
        if is_run and RECORDED not in files:
            found.append(folder)
        is_end = is_run or RECORDED in files or len(folder.relative_to(root).parts) >= MAX_DEPTH
        below[:] = [] if is_end else [name for name in below if not name.startswith(".")]
    return sorted(found)


class QrelsFile(Model, extra="ignore"):
    """A qrels file: its absolute path, and its SHA-256 when the run was evaluated."""

    file: Path
    sha256: str


class RecordedMeasure(Model, extra="ignore"):
    """The value of a measure, None if it is undefined, and judged@k."""

    value: float | None
    judged: float | None


def _parse_recorded_measure(text: object) -> Measure:
    # Imported here, since only the folders of evaluated runs need the measures.
    from touche_llm.evaluation.known_measures import parse_measure

    try:
        return parse_measure(str(text))
    except ValueError as error:
        remedy = "give the qrels to `touche-llm evaluate` again"
        raise ValueError(f"{error}; {remedy}") from error


_RecordedName = Annotated[Measure, PlainValidator(_parse_recorded_measure)]


class RecordedEvaluation(Model, extra="ignore"):
    """The last evaluation of a run, by aspect and measure.

    Attributes:
        run: SHA-256 of the run file that was measured.
        coverage: Topics that the run is measured on.
    """

    task: str
    run: str
    qrels: dict[str, QrelsFile]
    coverage: dict[str, Coverage]
    measures: dict[_RecordedName, RecordedMeasure]


def record_evaluation(
    directory: RunDirectory, task: Task, qrels: Mapping[str, Path], evaluation: Evaluation
) -> None:
    """Write the evaluation of a folder's run by these qrels files, in place of an earlier one."""
    measures = {
        str(row["measure"]): {
            name: None if isnan(row[name]) else round(float(row[name]), 6)
            for name in ("value", "judged")
        }
        for row in evaluation.summary().to_dict(orient="records")
    }
    content = {
        "task": task.name,
        "run": sha256(directory.run_file),
        "qrels": {
            aspect: {"file": str(path.absolute()), "sha256": sha256(path)}
            for aspect, path in qrels.items()
        },
        "coverage": {aspect: asdict(evaluation.coverage(aspect)) for aspect in qrels},
        "measures": measures,
    }
    with open_atomic(directory.evaluation_file) as stream:
        stream.write(to_yaml(content))


def read_evaluation(directory: RunDirectory) -> RecordedEvaluation | None:
    """Read the last evaluation of a folder's run.

    None if it was never evaluated, DataError if it is damaged.
    """
    path = directory.evaluation_file
    if not path.exists():
        return None
    return load_yaml(path, RecordedEvaluation)


def find_known_qrels(directories: Iterable[RunDirectory], task: Task) -> dict[str, Path]:
    """Return the qrels that these runs were last evaluated with, by aspect.

    Empty if none was evaluated.
    """
    known: dict[str, QrelsFile] = {}
    recorded = [
        evaluation
        for directory in directories
        if (evaluation := read_evaluation(directory)) is not None
    ]
    for aspect, qrels in (
        item for each in recorded if each.task == task.name for item in each.qrels.items()
    ):
        if known.setdefault(aspect, qrels).sha256 != qrels.sha256:
            raise UsageError(
                f"the runs were evaluated with different qrels of {aspect}; name a file with --{aspect}"
            )
    for aspect, qrels in known.items():
        if not qrels.file.is_file() or sha256(qrels.file) != qrels.sha256:
            raise DataError(
                f"{qrels.file}: missing or changed since a run was evaluated with it; name the file with --{aspect}"
            )
    return {aspect: qrels.file for aspect, qrels in known.items()}


def find_run_directory(path: Path) -> RunDirectory | None:
    """Return the folder of a run of this program, given as the folder or as its run file.

    None for other run files.
    """
    directory = RunDirectory(path if path.is_dir() else path.parent)
    if path != directory.path and (path.name != RUN or not directory.config_file.exists()):
        return None
    directory.check_finished("rank")
    if not directory.run_file.exists():
        finished = ", ".join(directory.read_metadata().stages.finished) or "none"
        raise DataError(
            f"{directory}: no {RUN}, and so no finished run (finished stages: {finished}); name a run "
            "file or the folder of a run, or give the command of this run again"
        )
    return directory


def find_run_file(path: Path) -> Path:
    """Return the run file of a run's folder, or the file that was given.

    See `find_run_directory` for errors.
    """
    directory = find_run_directory(path) if path.is_dir() else None
    return path if directory is None else directory.run_file


def read_run(path: Path | str, labels: Collection[str] | None = None) -> ParsedRun:
    """Read the run of a folder, given as the folder or as its run file, or the run file of any tool, with its stances.

    A file has columns that are separated by any white space; a `rerank.jsonl` of TIRA has no
    stances. Only the run of a folder has chosen topics (`--topic`, `--limit-topics`).

    Args:
        path: Folder or file.
        labels: Valid stances beside `Q0`; None accepts any word.

    Raises:
        DataError: A line is no run line, a topic repeats a document, scores grow along the ranks,
            or a stance is not one of the labels; for a folder also as `find_run_directory`.
    """
    directory = find_run_directory(Path(path))
    return reading.read_run(path, labels) if directory is None else directory.read_run(labels)


def find_task(name: str | None, runs: Collection[Path], dataset: str | None = None) -> Task:
    """Return the task of this name, or without a name the task of the first run that is a folder of this program."""
    for path in runs:
        if path.is_file():
            require_kind(path, "run", "rerank")
    if name is not None:
        return get_task(name)
    for path in runs:
        if not path.exists():
            raise DataError(
                f"{path}: no such file or folder; give a run file or the folder of a run"
            )
        if (directory := find_run_directory(path)) is not None:
            return directory.read_task()
    if dataset is not None:
        return get_task(find_dataset_task(dataset))
    raise UsageError(
        "no run says of which task it is; name the task or its folder (`task: NAME`; see `touche-llm tasks list`)"
    )


def read_results(directory: RunDirectory, task: Task) -> Iterator[dict[str, Any]]:
    """Yield the lines of `results.tsv` as mappings with numbers; None for unknown ones."""
    path = directory.results_file
    names = list_result_columns(task)
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream, delimiter="\t", strict=True):
                numbers = {
                    name: float(row[name]) if row[name] else None
                    for name in names
                    if name not in _TEXT_COLUMNS
                }
                yield {name: row[name] for name in names} | numbers | {"rank": int(row["rank"])}
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: no such file; run `touche-llm rank` for this folder first"
        ) from error
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not results of this program ({error!s:.100}); run `touche-llm rank` again"
        ) from error


def read_texts(config: Config, task: Task, document_ids: Iterable[str]) -> dict[str, str]:
    """Return the beginning of documents by id, from the local index of a run.

    White space is collapsed. Documents that the index lacks are left out; without an index, all.
    """
    if config.index is None or not (config.index / "manifest.json").is_file():
        return {}
    wanted = list(dict.fromkeys(document_ids))
    with DocumentStore(config.index) as store:
        source = get_kind(task).open_space(store, config.search_settings).documents
        unknown = set(source.find_unknown(wanted))
        return {
            name: " ".join(source.get(name).text.split())[:_TEXT_CHARS]
            for name in wanted
            if name not in unknown
        }
