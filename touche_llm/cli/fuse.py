"""The command that fuses runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.output import Format, FormatOption, print_result, say
from touche_llm.data.files import check_output
from touche_llm.data.lines import is_word
from touche_llm.data.trec_runs import read_run, write_run
from touche_llm.errors import UsageError, shorten
from touche_llm.pipeline.run_lookup import find_run_directory, find_run_file
from touche_llm.ranking.fusion import DEFAULT_K, FusionSettings, check_weights, fuse_runs
from touche_llm.tasks import TASK_HELP, TASKS, get_task
from touche_llm.tasks.base import Task


def fuse(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run files of this or any other program, or folders of runs; two or more."),
    ],
    out: Annotated[Path, typer.Option("--out", help="The run file to write.")],
    method: Annotated[
        str,
        typer.Option(
            "--method", metavar="NAME", help="rrf: by reciprocal ranks; interpolation: by scores scaled to 0..1."
        ),
    ] = "rrf",
    k: Annotated[float, typer.Option("--k", help="Constant of rrf; the larger, the less a first place counts.")] = (
        DEFAULT_K
    ),
    weight: Annotated[
        list[float] | None, typer.Option("--weight", help="One for each run, in their order (default: 1 each).")
    ] = None,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Lines for each topic; the runs are read whole.")] = 1000,
    tag: Annotated[str, typer.Option("--tag", help="Last column of the run, one word.")] = "touche-llm",
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME|FOLDER",
            help=f"{TASK_HELP}, for the labels and limits (default: the task of the runs' folders). Needed where "
            "some documents have a stance and others none: those get the task's label for an unknown stance, or are "
            "left out where it has none.",
        ),
    ] = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Fuse runs by reciprocal ranks or by scores.

    A document has the stance of the first run that gives it one.
    """
    known = _find_task(task, runs)
    settings = s.validate(FusionSettings, {"method": method, "k": k}, "")
    weights = weight or [1.0] * len(runs)
    if len(runs) < 2:
        raise UsageError(f"{runs[0]}: one run cannot be fused; name two or more")
    check_weights(weights, len(runs))
    if not is_word(tag):
        raise UsageError(f"--tag {tag!r:.40}: not one word; a run line has six columns")
    if known is not None and depth > known.max_per_topic:
        raise UsageError(
            f"--depth {depth}: {known.name} allows at most {known.max_per_topic} documents per topic; give less"
        )
    runs = [find_run_file(run) for run in runs]
    check_output(out, overwrite, runs)
    labels = known.stances if known is not None else None
    read = [read_run(run, labels) for run in runs]
    found = {label for run in read for label in run.stances.values()}
    every = {label for each in TASKS.values() for label in each.stances}
    if found <= every and not any(found <= set(each.stances) for each in TASKS.values()):
        raise UsageError(f"{runs[0]}, …: no task has the labels {', '.join(sorted(found))}; fuse runs of one task")
    fused = fuse_runs(read, weights, settings, task=known, depth=depth, tag=tag)
    write_run(out, fused.lines)
    topics = {line.topic_id for line in fused.lines}
    label = known.unknown_stance if known is not None else ""
    counts = {
        f"topics that only some of the runs have ({shorten(fused.partial)})": len(fused.partial),
        "documents with different stances, the first run's kept": fused.disagreeing,
        f"documents without a stance, labelled {label}": fused.imputed,
        "documents without a stance, left out because the task has no label for them": fused.left_out,
    }
    for what, count in counts.items():
        if count:
            say(output, f"{what}: {count:,}")
    made = {"file": out, "lines": len(fused.lines), "topics": len(topics), "partial_topics": len(fused.partial)}
    special = {"disagreeing": fused.disagreeing, "imputed": fused.imputed, "left_out": fused.left_out}
    print_result(output, f"run: {out} ({len(fused.lines):,} lines, {len(topics):,} topics)", made | special)


def _find_task(name: str | None, runs: Sequence[Path]) -> Task | None:
    """Return the task of this name, or without a name that of the folders among the runs; None if there are none.

    Raises:
        UsageError: There is no such task, or a folder holds a run of another one.
    """
    tasks = [(path, directory.read_task()) for path in runs if (directory := find_run_directory(path)) is not None]
    known = get_task(name) if name is not None else (tasks[0][1] if tasks else None)
    for path, task in tasks:
        if known is not None and task.name != known.name:
            raise UsageError(f"{path}: a run of {task.name}, not of {known.name}; fuse runs of one task")
    return known
