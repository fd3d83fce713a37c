"""What `evaluate` and `compare` share: their options, the runs and judgments they read, and how they print."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import orjson
import typer
import yaml
from rich import box
from rich.table import Table

from touche_llm.cli import options as o
from touche_llm.cli.console import ConsoleObserver
from touche_llm.errors import DataError, UsageError, printable
from touche_llm.metadata import FILE_NAME as METADATA
from touche_llm.qrels import Qrels, read_qrels
from touche_llm.run_files import CANDIDATES, RUN
from touche_llm.runs import ReadRun, read_run
from touche_llm.tasks import TASKS, get_task

# The measures, and pandas with them, are imported by the functions that need them: with scipy they take more than a
# second, which every other command would wait for.
if TYPE_CHECKING:
    from pandas import DataFrame

    from touche_llm.evaluation.measures import Evaluation


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    TSV = "tsv"


RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...", help="Run files of this or any other program, or folders of runs, for their run.txt."
    ),
]
TaskOption = Annotated[str, typer.Option("--task", help=f"The shared task: {', '.join(TASKS)}.")]
RelevanceOption = Annotated[Path | None, typer.Option("--relevance", help="Relevance qrels: qid 0 doc grade.")]
QualityOption = Annotated[Path | None, typer.Option("--quality", help="Quality qrels.")]
StanceOption = Annotated[Path | None, typer.Option("--stance", help="Stance qrels: qid 0 doc LABEL.")]
CoherenceOption = Annotated[Path | None, typer.Option("--coherence", help="Coherence qrels, for pairs of sentences.")]
DepthOption = Annotated[
    int | None, typer.Option("--depth", min=1, help="Of the recall (default: the longest ranking of all runs).")
]
FormatOption = Annotated[
    Format, typer.Option("--format", help="table for people; json: a list of objects; tsv, as pandas reads it.")
]


def given_qrels(task: str, **files: Path | None) -> Qrels:
    """The judgments of the files that are given, by aspect."""
    known = get_task(task)
    return read_qrels({aspect: path for aspect, path in files.items() if path is not None}, known)


class Given(NamedTuple):
    """A run that was given, under the path that it was given as; or the first stage in such a folder."""

    name: str
    run: ReadRun
    first_stage: bool = False


def given_runs(paths: Iterable[Path], qrels: Qrels, *, first_stages: bool) -> list[Given]:
    """The runs, in their order; before the run of a folder its first stage, if that is asked for and can be measured.

    Raises:
        UsageError: a run that is given twice.
        DataError: a folder without a run, or a file that is none.
    """
    # Where stances are not measured, other programs may write what they like in the column.
    labels = qrels.labels if qrels.stances else None
    runs: list[Given] = []
    for path in paths:
        name = printable(str(path))
        if any(name == each.name for each in runs):
            raise UsageError(f"{path}: is given twice; name each run once")
        if path.is_dir() and not (path / RUN).exists():
            raise DataError(f"{path}: no {RUN} in this folder; run `touche-llm rank` for it, or name a run file")
        if first_stages and qrels.grades and (path / CANDIDATES).exists():
            runs.append(Given(f"{name} (first stage)", read_run(path / CANDIDATES), first_stage=True))
        runs.append(Given(name, read_run(path / RUN if path.is_dir() else path, labels)))
    return runs


def evaluate_runs(runs: Sequence[Given], qrels: Qrels, depth: int | None) -> list[Evaluation]:
    """Measure each run, a first stage only by grades, since it labels nothing.

    The recall of all is at one depth, or they could not be compared.

    Raises:
        DataError: a run none of whose topics is judged; names the run.
    """
    from touche_llm.evaluation.measures import evaluate_run

    if depth is None:
        depth = max(len(ranking) for each in runs for ranking in each.run.rankings.values())
    evaluations = []
    for each in runs:
        try:
            judged = replace(qrels, stances={}) if each.first_stage else qrels
            evaluations.append(evaluate_run(each.name, each.run, judged, depth))
        except DataError as error:
            raise DataError(f"{each.name}: {error}") from error
    return evaluations


def print_frame(frame: DataFrame, output: Format) -> None:
    """Print rows for other programs; what is not defined is null in JSON, and empty in TSV."""
    if output is Format.JSON:
        print(orjson.dumps(frame.to_dict(orient="records"), option=orjson.OPT_INDENT_2).decode())
    else:
        frame.to_csv(sys.stdout, sep="\t", index=False)


def tell(qrels: Qrels, evaluations: Sequence[Evaluation], paths: Iterable[Path]) -> None:
    """Say on standard error what should be known of the figures; what holds for all runs is said once."""
    found: dict[str, list[str]] = {}
    for evaluation in evaluations:
        for note in (*evaluation.notes, *_unjudged(evaluation)):
            found.setdefault(note, []).append(evaluation.name)
    # What is said of several aspects in the same words, and of the same runs, is one note.
    notes: dict[tuple[str, str], list[str]] = {}
    for note, names in found.items():
        aspect, text = note.split(": ", 1)
        where = "" if len(names) == len(evaluations) else f"{', '.join(names)}: "
        notes.setdefault((where, text), []).append(aspect)
    said = qrels.notes() + [f"{where}{', '.join(aspects)}: {text}" for (where, text), aspects in notes.items()]
    for path in paths:
        if qrels.stances and path.is_dir() and (imputed := _imputed(path / METADATA)):
            said.append(f"{path}: stances that are imputed, since no answer could be used: {imputed:,}")
    sys.stdout.flush()
    notify = ConsoleObserver().notify
    for each in said:
        notify(each)


def show_figures(title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Print a table of rows with a name and figures; where there is little room, the names fold."""
    table = plain_table()
    table.add_column("measure")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, figures in rows:
        table.add_row(o.plain(name), *figures)
    show(title, table)


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


def show(title: str, table: Table) -> None:
    """Print a table under a line with its title, which may be wider."""
    print(title)
    o.show(table)
    print()


def _unjudged(evaluation: Evaluation) -> list[str]:
    """How far unjudged documents could move the figures."""
    said = []
    for measure, rows in evaluation.bounds.groupby("measure", sort=False):
        if unjudged := int(rows["unjudged"].sum()):
            topics = int((rows["unjudged"] > 0).sum())
            said.append(
                f"{measure}: unjudged documents among the first {measure.rsplit('@', 1)[1]}, which count 0: {unjudged} "
                f"in {topics} topics; judged, they could make it {rows['lowest'].mean():.4f} to "
                f"{rows['highest'].mean():.4f}"
            )
    return said


def _imputed(metadata: Path) -> int:
    """How many stances of the run beside this file are no model's, by the file; 0 where there is no such file."""
    if not metadata.exists():
        return 0
    try:
        imputed = yaml.safe_load(metadata.read_bytes())["stages"]["rank"]["imputed stances"]
    except (yaml.YAMLError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise DataError(
            f"{metadata}: does not say how many stances of the run are imputed; run `touche-llm rank` for its folder "
            "again, or name the run file itself"
        ) from error
    if type(imputed) is not int:
        raise DataError(f"{metadata}: stages: rank: imputed stances: {imputed!r:.40} is no number; mend the file")
    return imputed
