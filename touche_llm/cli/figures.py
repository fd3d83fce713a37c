"""What `evaluate` and `compare` share: their options, the runs and judgments they read, and how they print."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich import box
from rich.table import Table

from touche_llm.cli.output import Format, plain, print_rows, show_table
from touche_llm.data.trec_runs import ParsedRun, read_run
from touche_llm.errors import DataError, UsageError, to_printable
from touche_llm.evaluation.coverage import describe_fitted, describe_limits
from touche_llm.evaluation.qrels import Qrels, read_qrels
from touche_llm.pipeline.progress import ConsoleProgress
from touche_llm.pipeline.run_files import CANDIDATES, CONFIG, METADATA
from touche_llm.pipeline.run_folder import find_folder, find_run_file, read_metadata
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.base import Task

# Functions that need the measures, and pandas with them, import these: wrong usage is reported without loading them.
if TYPE_CHECKING:
    from pandas import DataFrame

    from touche_llm.evaluation.measures import Evaluation


RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...", help="Run files of this or any other program, or folders of runs, for their run.txt."
    ),
]
TaskOption = Annotated[
    str | None, typer.Option("--task", help=f"{', '.join(TASKS)} (default: the task of the first run's folder).")
]
RelevanceOption = Annotated[Path | None, typer.Option("--relevance", help="Relevance qrels: qid 0 doc grade.")]
QualityOption = Annotated[Path | None, typer.Option("--quality", help="Quality qrels.")]
StanceOption = Annotated[Path | None, typer.Option("--stance", help="Stance qrels: qid 0 doc LABEL.")]
CoherenceOption = Annotated[Path | None, typer.Option("--coherence", help="Coherence qrels, for pairs of sentences.")]
DepthOption = Annotated[
    int | None,
    typer.Option("--depth", min=1, help="Of the recall (default: the first stage's, else the longest ranking's)."),
]
RunTopicsOption = Annotated[
    bool,
    typer.Option(
        "--run-topics",
        help="Only topics that every run has; else a judged topic that a run lacks counts 0, unless --limit-topics or "
        "--topic limited that run.",
    ),
]


def given_qrels(task: str, **files: Path | None) -> Qrels:
    """Read the qrels of the files that are given, by aspect."""
    return read_qrels({aspect: path for aspect, path in files.items() if path is not None}, get_task(task))


class Given(NamedTuple):
    """A run that was given.

    Attributes:
        name: the path that it was given as, and for a first stage what it is.
        run: what the file holds.
        folder: of a run of this program; None for others.
        first_stage: whether it is what a run in such a folder was made from.
        limited: Whether its own configuration limited it to some topics.
        fitted_on: Ids of the topics that the thresholds of its stances were fitted on.
    """

    name: str
    run: ParsedRun
    folder: Path | None = None
    first_stage: bool = False
    limited: bool = False
    fitted_on: tuple[str, ...] = ()


def given_runs(paths: Iterable[Path], qrels: Qrels, task: Task, first_stage: Path | None = None) -> list[Given]:
    """The runs, in their order; before a run its first stage, if it is known and can be measured.

    Args:
        paths: of run files, and of folders of runs.
        qrels: what they are to be measured by.
        task: theirs.
        first_stage: the file of a first stage that stands before all of them.

    Raises:
        UsageError: a run that is given twice.
        DataError: a folder without a run or with an unfinished stage, or a file that is no run.
    """
    # Where stances are not measured, other programs may write what they like in the column.
    labels = qrels.labels if qrels.stances else None
    runs: list[Given] = []
    if first_stage is not None:
        if not qrels.grades:
            raise UsageError("--first-stage is measured by grades; give --relevance or others of them")
        runs.append(Given(f"{to_printable(str(first_stage))} (first stage)", read_run(first_stage), first_stage=True))
    for path in paths:
        name = to_printable(str(path))
        if any(name == each.name for each in runs):
            raise UsageError(f"{path}: is given twice; name each run once")
        folder, limited, fitted_on = find_folder(path), False, tuple[str, ...]()
        if folder is not None and (folder / CONFIG).exists():
            # Only here: the models of a configuration take as long to make as all runs to read.
            from touche_llm.config import load_config

            own = load_config(folder / CONFIG, {})
            if own.task != task.name:
                raise UsageError(f"{path}: is a run of {own.task}, and --task is {task.name}; give --task {own.task}")
            limited, fitted_on = own.has_chosen_topics, own.fitted_on
        if folder is not None and qrels.grades and (folder / CANDIDATES).exists():
            before = f"{name} ({task.before_judging})"
            runs.append(Given(before, read_run(folder / CANDIDATES), folder, True, limited))
        run = read_run(find_run_file(path), labels)
        runs.append(Given(name, run, folder, limited=limited, fitted_on=fitted_on))
    return runs


def recall_depth(runs: Sequence[Given]) -> int:
    """The one depth at which the recall of all runs is taken: the deepest first stage's, else the longest ranking's."""
    deepest = [each for each in runs if each.first_stage] or runs
    return max(len(ranking) for each in deepest for ranking in each.run.rankings.values())


def of_all_runs(qrels: Qrels, runs: Sequence[Given]) -> Qrels:
    """The judgments of the topics that every run has.

    Raises:
        DataError: None of these topics is judged.
    """
    first, *others = (each.run.rankings.keys() for each in runs)
    shared = set(first).intersection(*others)
    judged = shared.intersection(*qrels.grades.values(), *([qrels.stances] if qrels.stances else []))
    if not judged:
        names = ", ".join(each.name for each in runs)
        raise DataError(f"{names}: share no judged topic; give runs of the same topics, and the qrels of these topics")
    return qrels.restrict_to(shared)


def limits(runs: Sequence[Given]) -> list[str]:
    """What to know of runs that their own configurations limited to some topics."""
    return describe_limits(each.name for each in runs if each.limited and not each.first_stage)


def fitted(runs: Sequence[Given], qrels: Qrels) -> list[str]:
    """Return notes on runs whose thresholds were fitted on these judgments."""
    return [note for each in runs for note in describe_fitted(each.name, each.run, each.fitted_on, qrels)]


def evaluate_runs(runs: Sequence[Given], qrels: Qrels, depth: int) -> list[Evaluation]:
    """Measure each run, a first stage only by grades, since it labels nothing.

    A run that its own configuration limited to some topics is measured by these.

    Raises:
        DataError: a run none of whose topics is judged; names the run.
    """
    from touche_llm.evaluation.measures import evaluate_run

    evaluations = []
    for each in runs:
        try:
            judged = replace(qrels, stances={}) if each.first_stage else qrels
            if each.limited:
                judged = of_all_runs(judged, [each])
            evaluations.append(evaluate_run(each.name, each.run, judged, depth))
        except DataError as error:
            raise DataError(f"{each.name}: {error}") from error
    return evaluations


def print_frame(frame: DataFrame, output: Format) -> None:
    """Print the rows of a frame for other programs, see `print_rows`."""
    print_rows(output, frame.to_dict(orient="records"), list(frame.columns))


def tell(qrels: Qrels, evaluations: Sequence[Evaluation], runs: Iterable[Given], *further: str) -> None:
    """Say on standard error what should be known of the figures; what holds for all runs is said once."""
    from touche_llm.evaluation.notes import format_notes

    said = (
        qrels.notes() + format_notes({evaluation.name: evaluation.notes for evaluation in evaluations}) + list(further)
    )
    for each in runs:
        if qrels.stances and not each.first_stage and each.folder and (imputed := _imputed(each.folder)):
            said.append(f"{each.name}: stances that are imputed, since no answer could be used: {imputed:,}")
    sys.stdout.flush()
    warn = ConsoleProgress().warn
    for note in said:
        warn(note)


def show_figures(
    title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], below: Sequence[str] = ()
) -> None:
    """Print a table of rows with a name and figures; where there is little room, the names fold."""
    table = plain_table()
    table.add_column("measure")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, figures in rows:
        table.add_row(plain(name), *figures)
    show(title, table, below)


def grouped(rows: Iterable[tuple[str, str, Sequence[str]]]) -> list[tuple[str, Sequence[str]]]:
    """Rows of `(measure, run, figures)` with the runs below their measure."""
    result: list[tuple[str, Sequence[str]]] = []
    measure = None
    for of, run, figures in rows:
        if of != measure:
            result.append((of, ()))
            measure = of
        result.append((f"  {run}", figures))
    return result


def by_aspect(rows: DataFrame) -> list[tuple[str, list[Any]]]:
    """The rows of a frame by the first word of their measure, as named tuples."""
    aspects: dict[str, list[Any]] = {}
    for row in rows.itertuples(index=False):
        aspects.setdefault(row.measure.split(" ", 1)[0], []).append(row)
    return list(aspects.items())


def short(measure: str) -> str:
    """A measure's name without its aspect."""
    return measure.split(" ", 1)[1]


def spelled(value: float, *, sign: str = "", digits: int = 4) -> str:
    """A value with so many decimals, or a dash for one that is not defined; `sign` is "+" where it may be negative."""
    return "–" if math.isnan(value) else f"{value:{sign}.{digits}f}"


def spelled_interval(low: float, high: float, *, sign: str = "", digits: int = 4) -> str:
    """An interval in words, as `spelled`."""
    if math.isnan(low):
        return "–"
    return f"{spelled(low, sign=sign, digits=digits)} to {spelled(high, sign=sign, digits=digits)}"


def plain_table() -> Table:
    """An empty table that leaves as much room as it can to what stands in it."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False)


def show(title: str, table: Table, below: Sequence[str] = ()) -> None:
    """Print a table under a line with its title, which may be wider, and the lines that belong below the title."""
    print(title)
    for line in below:
        print(f"  {line}")
    show_table(table)
    print()


def _imputed(folder: Path) -> int:
    """Return how many stances of a folder's run are no model's, by its metadata; 0 where there is none."""
    if not (folder / METADATA).exists():
        return 0
    imputed = read_metadata(folder).stages.get("rank", {}).get("imputed stances")
    if type(imputed) is not int:
        raise DataError(
            f"{folder / METADATA}: does not say how many stances of the run are imputed; run `touche-llm rank` for its "
            "folder again, or name the run file itself"
        )
    return imputed
