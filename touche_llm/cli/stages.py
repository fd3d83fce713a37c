"""What the commands do that make a run: all stages, or one of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import typer

from touche_llm.cli.failures import FAILURES_EXIT, print_failures
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import Format, print_rows, say
from touche_llm.cli.requests import run_requests
from touche_llm.config.configuration import Config
from touche_llm.data.records import Failure
from touche_llm.runs import directory as run_directory
from touche_llm.runs import stages as pipeline
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.facts import format_seconds


def retrieve_candidates(output: Format, config: Config, out: Path, *, overwrite: bool) -> None:
    """Retrieve the candidates of each topic, and report the outcome."""
    found = run_requests(
        config, pipeline.run_retrieve(config, out, CommandProgress(), overwrite=overwrite)
    )
    _report(output, "candidates", RunDirectory(out).first_stage_file(found.task), found.failures)


def judge_candidates(output: Format, config: Config, out: Path, *, overwrite: bool) -> None:
    """Judge the candidates of a run, and report the outcome."""
    outcome = run_requests(
        config, pipeline.run_judge(config, out, CommandProgress(), overwrite=overwrite)
    )
    _report(output, "judgments", out / run_directory.JUDGMENTS, outcome.failures)


def rank_candidates(output: Format, config: Config, out: Path) -> None:
    """Rank the candidates of a run, and report the outcome; exit with code 3 if judgments are missing."""
    ranking = run_requests(config, pipeline.run_rank(config, out, CommandProgress()))
    _report(output, "run", out / run_directory.RUN, ranking.failures, imputed=ranking.imputed)
    if ranking.imputed:
        raise typer.Exit(FAILURES_EXIT)


def run_all_stages(output: Format, config: Config, out: Path, *, overwrite: bool) -> None:
    """Run all stages, and print what they took and what came out."""
    # Imported here because overviews are slow to load, and the commands of one stage read none.
    from touche_llm.runs.overview import read_overview

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
