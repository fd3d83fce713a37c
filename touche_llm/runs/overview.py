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
from touche_llm.config.files import METADATA, NO_USER_OPTIONS, UserOptions
from touche_llm.config.origins import Origins
from touche_llm.config.own_folders import UnusedSettings
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


@dataclass(slots=True)
class RunOverview:
    """State, settings and costs of a run.

    Attributes:
        directory: Folder of the run.
        changed: When the metadata or, without it, the folder was last written.
        state: "complete"; the last finished stage ("empty", "retrieved", "judged"); "unfinished"
            while a stage replaces its outputs or after it was interrupted; or "broken".
        problem: What is wrong with the run; empty if nothing is.
        config: Configuration; None if it cannot be read.
        origins: Origins of the values of the configuration.
        unused: Settings of a folder that somebody else wrote; None if it was written here.
        stages: Records of the finished stages.
        evaluation: Last evaluation of the present run file.
    """

    directory: RunDirectory
    changed: datetime
    state: str = BROKEN
    problem: str = ""
    config: Config | None = None
    origins: Origins = Origins()
    unused: UnusedSettings | None = None
    stages: StageRecords = StageRecords()
    evaluation: RecordedEvaluation | None = None

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


def read_overview(folder: Path, user_options: UserOptions = NO_USER_OPTIONS) -> RunOverview:
    """Read the overview of a run.

    A damaged file makes the run "broken" instead of raising an error.

    Args:
        folder: Folder of the run.
        user_options: Settings that the user gives, and whether the user trusts the folder.
    """
    directory = RunDirectory(folder)
    overview = RunOverview(directory, _find_change(directory))
    try:
        _read_files(overview, user_options)
    except ToucheError as error:
        overview.state = BROKEN
        overview.problem = str(error)
        if _is_starting(directory):
            overview.state = EMPTY
            overview.problem = (
                f"{folder}: stopped during start-up, or starting now; give the command again"
            )
    except OSError as error:
        overview.state = BROKEN
        overview.problem = f"cannot be read: {error.strerror}"
    return overview


def _find_change(directory: RunDirectory) -> datetime:
    """Return when the metadata of a run or, without it, the folder was last written."""
    file = directory.metadata_file
    path = file if file.is_file() else directory.path
    return datetime.fromtimestamp(path.stat().st_mtime)


def _read_files(overview: RunOverview, user_options: UserOptions) -> None:
    """Add what the files of a run say to its overview; after an error it has what was read before.

    Raises:
        ToucheError: A file is damaged.
        OSError: A file cannot be read.
    """
    directory = overview.directory
    metadata = directory.read_metadata()
    overview.stages = metadata.stages
    loaded = directory.read_with_origins(user_options)
    overview.config = loaded.config
    overview.origins = loaded.origins
    overview.unused = loaded.unused
    overview.state, overview.problem = _find_state(directory, metadata)
    overview.evaluation = _read_present_evaluation(directory)


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
    """Find the folders of runs in a folder and below, sorted.

    Folders within runs, recorded runs, hidden folders and links are not searched.

    Raises:
        DataError: There is no such folder.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder")

    runs: list[Path] = []
    for name, subfolders, files in os.walk(root):
        folder = Path(name)
        is_recorded = RECORDED in files
        has_mark = any(mark in files for mark in _MARKS)
        if has_mark and not is_recorded:
            runs.append(folder)

        # `os.walk` visits the folders that remain in this list.
        depth = len(folder.relative_to(root).parts)
        if has_mark or is_recorded or depth >= MAX_DEPTH:
            subfolders.clear()
        else:
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
    return sorted(runs)


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
    measures: dict[str, dict[str, float | None]] = {}
    for row in evaluation.summary().to_dict(orient="records"):
        measures[str(row["measure"])] = {
            "value": _round_or_none(row["value"]),
            "judged": _round_or_none(row["judged"]),
        }

    qrels_files: dict[str, dict[str, str]] = {}
    coverage: dict[str, dict[str, Any]] = {}
    for aspect, path in qrels.items():
        qrels_files[aspect] = {"file": str(path.absolute()), "sha256": sha256(path)}
        coverage[aspect] = asdict(evaluation.coverage(aspect))

    content = {
        "task": task.name,
        "run": sha256(directory.run_file),
        "qrels": qrels_files,
        "coverage": coverage,
        "measures": measures,
    }
    with open_atomic(directory.evaluation_file) as stream:
        stream.write(to_yaml(content))


def _round_or_none(value: float) -> float | None:
    """Return a value with six decimals; None for NaN."""
    if isnan(value):
        return None
    return round(float(value), 6)


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

    Raises:
        UsageError: Two runs were evaluated with different qrels of an aspect.
        DataError: A file is missing or changed, or an evaluation is damaged.
    """
    qrels_by_aspect: dict[str, QrelsFile] = {}
    for evaluation in _read_own_evaluations(directories):
        if evaluation.task != task.name:
            continue
        for aspect, qrels in evaluation.qrels.items():
            first = qrels_by_aspect.setdefault(aspect, qrels)
            if first.sha256 != qrels.sha256:
                raise UsageError(
                    f"the runs were evaluated with different qrels of {aspect}; name a file with --{aspect}"
                )

    for aspect, qrels in qrels_by_aspect.items():
        if not qrels.file.is_file() or sha256(qrels.file) != qrels.sha256:
            raise DataError(
                f"{qrels.file}: missing or changed since a run was evaluated with it; name the file with --{aspect}"
            )
    return {aspect: qrels.file for aspect, qrels in qrels_by_aspect.items()}


def _read_own_evaluations(directories: Iterable[RunDirectory]) -> list[RecordedEvaluation]:
    """Read the evaluations of the runs that were written here."""
    evaluations: list[RecordedEvaluation] = []
    for directory in directories:
        # The files that somebody else names are not read.
        if directory.config_file.exists() and directory.read_with_origins().unused is not None:
            continue
        evaluation = read_evaluation(directory)
        if evaluation is not None:
            evaluations.append(evaluation)
    return evaluations


def find_run_directory(path: Path) -> RunDirectory | None:
    """Return the folder of a run of this program, given as the folder or as its run file.

    None for other run files.

    Raises:
        DataError: The run is not finished.
    """
    is_file = not path.is_dir()
    directory = RunDirectory(path.parent if is_file else path)
    if is_file:
        is_own_run = path.name == RUN and directory.config_file.exists()
        if not is_own_run:
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
    if not path.is_dir():
        return path
    directory = find_run_directory(path)
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
    if directory is None:
        return reading.read_run(path, labels)
    return directory.read_run(labels)


def find_task(name: str | None, runs: Collection[Path], dataset: str | None = None) -> Task:
    """Return the task of runs.

    Args:
        name: Name of the task; None for that of the first run that is a folder of this program.
        runs: Run files and folders of runs.
        dataset: Dataset whose task is used if no run says of which task it is.

    Raises:
        DataError: A file is no run file, or a run is missing or not finished.
        UsageError: No run says of which task it is, or there is no such task.
    """
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
        directory = find_run_directory(path)
        if directory is not None:
            return directory.read_task()

    if dataset is not None:
        return get_task(find_dataset_task(dataset))
    raise UsageError(
        "no run says of which task it is; name the task or its folder (`task: NAME`; see `touche-llm tasks list`)"
    )


def read_results(directory: RunDirectory, task: Task) -> Iterator[dict[str, Any]]:
    """Yield the lines of `results.tsv` as mappings with numbers; None for unknown ones.

    Raises:
        DataError: The file is missing or malformed.
    """
    path = directory.results_file
    names = list_result_columns(task)
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream, delimiter="\t", strict=True):
                yield {name: _parse_result(name, row[name]) for name in names}
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: no such file; run `touche-llm rank` for this folder first"
        ) from error
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not results of this program ({error!s:.100}); run `touche-llm rank` again"
        ) from error


def _parse_result(column: str, text: str) -> str | int | float | None:
    """Return the value of a column of `results.tsv`; None for an unknown number."""
    if column in _TEXT_COLUMNS:
        return text
    if column == "rank":
        return int(text)
    return float(text) if text else None


def read_texts(config: Config, task: Task, document_ids: Iterable[str]) -> dict[str, str]:
    """Return the beginning of documents by id, from the local index of a run.

    White space is collapsed. Documents that the index lacks are left out; without an index, all.
    """
    if config.index is None or not (config.index / "manifest.json").is_file():
        return {}

    unique_ids = list(dict.fromkeys(document_ids))
    texts: dict[str, str] = {}
    with DocumentStore(config.index) as store:
        source = get_kind(task).open_space(store, config.search_settings).documents
        unknown_ids = set(source.find_unknown(unique_ids))
        for document_id in unique_ids:
            if document_id not in unknown_ids:
                text = " ".join(source.get(document_id).text.split())
                texts[document_id] = text[:_TEXT_CHARS]
    return texts
