"""The command that fuses runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from touche_llm.cli import shared_options as o
from touche_llm.cli.output import Format, FormatOption, print_result, say
from touche_llm.cli.validate import find_run_task
from touche_llm.data.files import check_output, is_word
from touche_llm.data.runs.reading import read_run
from touche_llm.data.runs.writing import write_run
from touche_llm.errors import UsageError, shorten
from touche_llm.ranking.fusion import FusionFormula
from touche_llm.ranking.run_fusion import FusedRun, fuse_runs
from touche_llm.runs.overview import find_run_file
from touche_llm.tasks import TASK_HELP
from touche_llm.tasks.task import Task

RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN",
        help="Run files of this or any other program, or folders of runs; two or more.",
    ),
]
OutOption = Annotated[Path, typer.Option("--out", help="The run file to write.")]
MethodOption = Annotated[
    Literal["rrf", "interpolation"],
    typer.Option(
        "--method", help="rrf: by reciprocal ranks; interpolation: by scores scaled to 0..1."
    ),
]
KOption = Annotated[
    float,
    typer.Option("--k", min=0, help="Constant of rrf; the larger, the less a first place counts."),
]
WeightOption = Annotated[
    list[float] | None,
    typer.Option("--weight", help="One for each run, in their order (default: 1 each)."),
]
DepthOption = Annotated[
    int, typer.Option("--depth", min=1, help="Lines for each topic; the runs are read whole.")
]
TagOption = Annotated[str, typer.Option("--tag", help="Last column of the run, one word.")]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME|FOLDER",
        help=f"{TASK_HELP}, for the labels and limits (default: the task of the runs' folders). Needed where "
        "some documents have a stance and others none: those get the task's label for an unknown stance, or are "
        "left out where it has none.",
    ),
]


def fuse(
    runs: RunsArgument,
    out: OutOption,
    method: MethodOption = "rrf",
    k: KOption = 60.0,
    weight: WeightOption = None,
    depth: DepthOption = 1000,
    tag: TagOption = "touche-llm",
    task: TaskOption = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Fuse runs by reciprocal ranks or by scores.

    A document has the stance of the first run that gives it one.
    """
    known_task = find_run_task(task, runs)
    if len(runs) < 2:
        raise UsageError(f"{runs[0]}: one run cannot be fused; name two or more")
    if not is_word(tag):
        raise UsageError(f"--tag {tag!r:.40}: not one word; a run line has six columns")
    if known_task is not None:
        _check_depth(depth, known_task)
    run_files = [find_run_file(run) for run in runs]
    check_output(out, overwrite, run_files)

    labels = None if known_task is None else known_task.stances
    fused = fuse_runs(
        runs=[read_run(file, labels) for file in run_files],
        weights=weight or [1.0] * len(runs),
        formula=FusionFormula(method=method, k=k),
        task=known_task,
        depth=depth,
        tag=tag,
    )
    write_run(out, fused.lines)
    _report_exceptions(fused, known_task, output)
    _print_fused(out, fused, output)


def _check_depth(depth: int, task: Task) -> None:
    """Raise UsageError if the task allows fewer documents for a topic."""
    max_depth = task.documents_per_topic.max
    if depth > max_depth:
        raise UsageError(
            f"--depth {depth}: {task.name} allows at most {max_depth} documents a topic; give less"
        )


def _print_fused(file: Path, fused: FusedRun, output: Format) -> None:
    """Print the file of a fused run, with the numbers of its lines."""
    topic_count = len({line.topic_id for line in fused.lines})
    row = {
        "file": file,
        "lines": len(fused.lines),
        "topics": topic_count,
        "partial_topics": len(fused.partial),
        "disagreeing": fused.disagreeing,
        "imputed": fused.imputed,
        "left_out": fused.left_out,
    }
    print_result(output, f"run: {file} ({len(fused.lines):,} lines, {topic_count:,} topics)", row)


def _report_exceptions(fused: FusedRun, task: Task | None, output: Format) -> None:
    """Print how many topics lack a run, and how many documents have no or several stances."""
    unknown_stance = "" if task is None else task.unknown_stance
    counts = {
        f"topics that only some of the runs have ({shorten(fused.partial)})": len(fused.partial),
        "documents with different stances, the first run's kept": fused.disagreeing,
        f"documents without a stance, labelled {unknown_stance}": fused.imputed,
        "documents without a stance, left out because the task has no label for them": fused.left_out,
    }
    for description, count in counts.items():
        if count > 0:
            say(output, f"{description}: {count:,}")
