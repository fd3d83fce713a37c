"""The commands that make a run: all stages, or one of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from touche_llm.cli import options as s
from touche_llm.cli import shared_options as o
from touche_llm.cli.costs import show_cost
from touche_llm.cli.failures import FAILURES_EXIT, print_failures
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import Format, FormatOption, print_rows, say, show_lines
from touche_llm.cli.requests import run_requests
from touche_llm.config.configuration import Config
from touche_llm.data.records import Failure
from touche_llm.runs import directory as run_directory
from touche_llm.runs import stages as pipeline
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.facts import format_seconds
from touche_llm.runs.overview import read_overview
from touche_llm.tasks import get_task


@s.configured(*s.OF_STAGE["retrieve"])
def retrieve(
    config: Config,
    out: o.OutOption,
    dry_run: o.DryRunOption = False,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Retrieve the candidates of each topic.

    They are written to candidates.run.txt, or to sentences.run.txt for pairs of sentences. Only
    `--query-expansion` needs the model.
    """
    if dry_run:
        show_cost(output, config, out, ("retrieve",), overwrite=overwrite)
        return
    found = run_requests(
        config, pipeline.run_retrieve(config, out, CommandProgress(), overwrite=overwrite)
    )
    _report(output, "candidates", RunDirectory(out).first_stage_file(found.task), found.failures)


@s.configured(*s.OF_STAGE["judge"])
def judge(
    config: Config,
    out: o.OutOption,
    dry_run: o.DryRunOption = False,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Judge the candidates of a run with the model. Exit code 3 if some have no usable answer."""
    if dry_run:
        show_cost(output, config, out, ("judge",))
        return
    outcome = run_requests(
        config, pipeline.run_judge(config, out, CommandProgress(), overwrite=overwrite)
    )
    _report(output, "judgments", out / run_directory.JUDGMENTS, outcome.failures)


@s.configured(*s.OF_STAGE["rank"])
def rank(
    config: Config,
    out: o.OutOption,
    dry_run: o.DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write run.txt from the candidates and judgments of a run. Exit code 3 if some are missing.

    Needs the model only if a step of `--rank` compares documents.
    """
    if dry_run:
        show_cost(output, config, out, ("rank",))
        return
    ranking = run_requests(config, pipeline.run_rank(config, out, CommandProgress()))
    _report(output, "run", out / run_directory.RUN, ranking.failures, imputed=ranking.imputed)
    if ranking.imputed:
        raise typer.Exit(FAILURES_EXIT)


@s.configured(*s.OF_RUN)
def run(
    config: Config,
    out: o.OutOption,
    dry_run: o.DryRunOption = False,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Run the pipeline: retrieve, judge, rank. A stopped run resumes.

    Exit codes: 0 all judged; 1 data, prompt or engine error; 2 wrong usage; 3 some answers
    unusable, see failures.jsonl; 130 interrupted.
    """
    task = get_task(config.task)
    show_lines([f"task: {task.name} ({task.title})"], sys.stderr)
    if dry_run:
        show_cost(output, config, out, ("retrieve", "judge", "rank"), overwrite=overwrite)
        return
    run_all_stages(output, config, out, overwrite=overwrite)


def run_all_stages(output: Format, config: Config, out: Path, *, overwrite: bool) -> None:
    """Run all stages, and print what they took and what came out."""
    started = time.monotonic()
    work = pipeline.run_all(config, out, CommandProgress(), overwrite=overwrite)
    outcome = run_requests(config, work)
    seconds = format_seconds(time.monotonic() - started)

    totals = read_overview(out).totals
    say(
        output,
        f"{seconds}, {totals['requests']:,} requests, {totals['cached']:,} answers from the cache, "
        f"{totals['prompt_tokens']:,} prompt and {totals['completion_tokens']:,} answer tokens; "
        f"next: touche-llm show {out}",
    )
    overruled = totals["overruled"]
    if overruled:
        reason = "the probabilities of all labels decide"
        say(
            output,
            f"stances that differ from the answers as written: {overruled:,}, since {reason}",
        )
    _report(
        output,
        "run",
        out / run_directory.RUN,
        outcome.failures,
        judgments=outcome.judgments.requested,
    )


def _report(
    output: Format, name: str, file: Path, failures: Sequence[Failure], **counts: int
) -> None:
    """Print the file that a stage has written, with counts, and its failures.

    Exit with code 3 if there are any.

    Args:
        output: Form of the output.
        name: Name of the output of the stage.
        file: File that the stage has written.
        failures: Failures of the stage.
        counts: Other numbers, by what they count.
    """
    counts["failures"] = len(failures)
    if output is Format.TABLE:
        shown = ", ".join(f"{count:,} {noun}" for noun, count in counts.items() if count)
        print(f"{name}: {file} ({shown})" if shown else f"{name}: {file}")
    else:
        print_rows(output, [{"file": file, **counts}])

    if failures:
        files = " and ".join(_list_failure_files(file.parent))
        print_failures(output, failures, f"the answers of all attempts are in {files}")
        raise typer.Exit(FAILURES_EXIT)


def _list_failure_files(folder: Path) -> list[str]:
    """Return the files of failures in the folder of a run that are not empty."""
    files: list[str] = []
    for name in run_directory.ALL_FAILURES:
        path = folder / name
        if path.exists() and path.stat().st_size > 0:
            files.append(str(path))
    return files
