"""Runs and qrels of `evaluate`, `compare` and `report`, and their shared options."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from touche_llm.api.dataset import Dataset
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import Column, format_interval, show_table
from touche_llm.cli.shared_options import format_qrels_option
from touche_llm.data.files import sha256, shorten_path
from touche_llm.data.runs import reading
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import DataError, UsageError, to_printable
from touche_llm.evaluation.qrels import Qrels, describe_fitted, format_notes, read_qrels
from touche_llm.kinds.known import get_kind
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.overview import find_known_qrels, find_run_directory, read_run
from touche_llm.tasks import TASK_HELP, get_task
from touche_llm.tasks.task import Task

# Functions that need the measures, and pandas with them, import these: wrong usage is reported
# without loading them.
if TYPE_CHECKING:
    from touche_llm.evaluation.measures import Evaluation

# The columns of a measure in tables by aspect.
MEASURE = Column("measure", is_text=True, value=lambda row: row["measure"].short_text)
RUN_COLUMN = Column("run", is_text=True)
INTERVAL = Column("95 % interval", value=format_interval)
# The columns of a difference between two runs or prompts.
CHANGE_COLUMNS = (
    Column("change", value="difference", sign="+"),
    Column("95 % interval", value=partial(format_interval, sign="+")),
    Column("p Holm", value="p_holm"),
    Column("+/=/-", drop=1, value=lambda row: f"{row['wins']}/{row['ties']}/{row['losses']}"),
)
JUDGED_LEGEND = "judged@k: share of judged documents among the first k, the measure's cutoff, or in the whole ranking"

RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN",
        help="Run files of this or any other program, or folders of runs, for their run.txt.",
    ),
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME|FOLDER",
        help=f"{TASK_HELP} (default: the task of the first run's folder).",
        rich_help_panel="Input",
    ),
]


def find_qrels_files(
    task: Task, runs: Iterable[Path], given: Mapping[str, Path], dataset: str | None
) -> Mapping[str, Path]:
    """Return the qrels files to measure runs with; empty if none are known.

    They are those that were given, or else those of the runs' last evaluation, which are named on
    standard error, or else those of the first run's dataset.

    Args:
        task: Task of the runs.
        runs: Run files and folders of runs.
        given: Files by aspect.
        dataset: Dataset whose qrels are used instead.

    Raises:
        UsageError: Both files and a dataset are given.
    """
    if given and dataset is not None:
        raise UsageError(
            f"--dataset {dataset:.200}: has qrels of its own; leave it out, or the qrels files"
        )
    if given:
        return given

    directories = [find_run_directory(path) for path in runs]
    folders = [directory for directory in directories if directory is not None]
    if dataset is None:
        known = find_known_qrels(folders, task)
        if known:
            _name_known_qrels(known)
            return known
        dataset = _find_dataset(folders)
    if dataset is None:
        return {}
    return Dataset(dataset, task.reference).qrels_files


def _name_known_qrels(files: Mapping[str, Path]) -> None:
    """Print on standard error that the qrels of the last evaluation are used, as options."""
    options: list[str] = []
    for aspect, path in files.items():
        options.append(format_qrels_option(aspect, shorten_path(path)))
    CommandProgress().warn(f"qrels of the last evaluation: {' '.join(options)}")


def _find_dataset(folders: Iterable[RunDirectory]) -> str | None:
    """Return the dataset of the first run that has one; None if none has."""
    for folder in folders:
        if folder.config_file.exists():
            dataset = folder.read_config().dataset
            if dataset:
                return dataset
    return None


def require_qrels(
    task: Task, runs: Sequence[Path], given: Mapping[str, Path], dataset: str | None
) -> tuple[Mapping[str, Path], Qrels]:
    """Return the files of `find_qrels_files` and their content.

    Raises:
        UsageError: There are none.
    """
    files = find_qrels_files(task, runs, given, dataset)
    if not files:
        options = ", ".join(format_qrels_option(aspect) for aspect in task.judged_aspects)
        raise UsageError(
            f"{options}: no qrels given, and these runs have none from an earlier evaluation here; give one or more, "
            "or --dataset ID"
        )
    return files, read_qrels(files, task)


def describe_qrels(files: Mapping[str, Path]) -> list[str]:
    """Return a line for each qrels file, with the beginning of its hash."""
    return [
        f"qrels: {aspect} {shorten_path(path)} sha256 {sha256(path):.12}"
        for aspect, path in files.items()
    ]


def show_aspects(
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[Column],
    evaluations: Sequence[Evaluation],
    change: str = "",
) -> None:
    """Print a table of measures for each aspect, with the topics that its values are over."""
    from touche_llm.evaluation.measures import describe_coverage

    rows_by_aspect: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        rows_by_aspect.setdefault(row["measure"].aspect, []).append(row)

    for aspect, of_aspect in rows_by_aspect.items():
        coverage = describe_coverage(evaluations, aspect)
        show_table(columns, of_aspect, title=aspect + change, below=coverage)
        print()


class Given(NamedTuple):
    """A run given on the command line.

    Attributes:
        name: Path as given; a first stage has its kind in parentheses.
        run: Content of the run file; of a folder's runs with their chosen topics.
        folder: Folder of a run of this program; None for other runs.
        first_stage: Whether it is the first stage of the run that follows.
        fitted_on: Topics that the thresholds of its stances were fitted on.
    """

    name: str
    run: ParsedRun
    folder: Path | None = None
    first_stage: bool = False
    fitted_on: tuple[str, ...] = ()


def given_runs(paths: Sequence[Path], qrels: Qrels, task: Task) -> list[Given]:
    """Read runs in their order.

    The first stage of a run comes before it, if it is known and can be measured.

    Args:
        paths: Run files and folders of runs.
        qrels: Qrels to measure them with.
        task: Task of the runs.

    Raises:
        DataError: A file is missing or malformed.
        UsageError: A run is given twice, or is of another task.
    """
    # Where stances are not measured, other programs may write what they like in the column.
    labels = qrels.labels if qrels.stances else None
    runs: list[Given] = []
    names: set[str] = set()
    for path in paths:
        name = to_printable(str(path))
        if name in names:
            raise UsageError(f"{path}: is given twice; name each run once")
        names.add(name)

        directory = find_run_directory(path)
        run = read_run(path, labels)
        if directory is None:
            runs.append(Given(name, run))
            continue

        fitted_on = _read_fitted_topics(directory, path, task)
        first_stage = directory.candidates_file
        # A first stage labels nothing, so only grades measure it.
        if qrels.grades and first_stage.exists():
            candidates = replace(reading.read_run(first_stage), chosen_topics=run.chosen_topics)
            title = f"{name} ({get_kind(task).before_judging})"
            runs.append(Given(title, candidates, directory.path, first_stage=True))
        runs.append(Given(name, run, directory.path, fitted_on=fitted_on))
    return runs


def _read_fitted_topics(directory: RunDirectory, path: Path, task: Task) -> tuple[str, ...]:
    """Return the topics that the thresholds of a run's stances were fitted on, if any.

    Raises:
        UsageError: The run is of another task.
    """
    if not directory.config_file.exists():
        return ()

    config = directory.read_config()
    run_task = get_task(config.task)
    if run_task.name != task.name:
        raise UsageError(
            f"{path}: a run of {run_task.name}, not of {task.name}; measure runs of one task (--task {config.task})"
        )
    return config.fitted_on


def find_recall_depth(runs: Sequence[Given]) -> int:
    """Return the depth for the recall of all runs: the deepest first stage's, else the longest ranking's."""
    deepest = [each for each in runs if each.first_stage] or runs
    return max(len(ranking) for each in deepest for ranking in each.run.rankings.values())


def list_fitted(runs: Sequence[Given], qrels: Qrels) -> list[str]:
    """Return notes on runs whose thresholds were fitted on these judgments."""
    return [
        note
        for each in runs
        for note in describe_fitted(each.name, each.run, each.fitted_on, qrels)
    ]


def evaluate_runs(runs: Sequence[Given], qrels: Qrels, depth: int) -> list[Evaluation]:
    """Measure each run, a first stage only by grades, since it labels nothing."""
    from touche_llm.evaluation.measures import evaluate_run

    qrels_of_grades = replace(qrels, stances={})
    evaluations: list[Evaluation] = []
    for given in runs:
        measuring = qrels_of_grades if given.first_stage else qrels
        try:
            evaluations.append(evaluate_run(given.name, given.run, measuring, depth))
        except DataError as error:
            raise DataError(f"{given.name}: {error}") from error
    return evaluations


def print_notes(
    qrels: Qrels, evaluations: Sequence[Evaluation], runs: Iterable[Given], *further: str
) -> None:
    """Print on standard error what readers should know about the values.

    What holds for all runs is printed once.
    """
    notes_by_run = {evaluation.name: evaluation.notes for evaluation in evaluations}
    notes = [*format_notes(notes_by_run), *further]
    for run in runs:
        imputed = _count_imputed_stances(run)
        if qrels.stances and imputed:
            notes.append(f"{run.name}: imputed stances, for lack of a usable answer: {imputed:,}")

    sys.stdout.flush()
    for note in notes:
        CommandProgress().warn(note)


def _count_imputed_stances(given: Given) -> int:
    """Return the number of imputed stances that the folder of a run records, 0 if it records none."""
    if given.folder is None or given.first_stage:
        return 0
    record = RunDirectory(given.folder).read_metadata().stages.rank
    return 0 if record is None else record.imputed_stances
