"""The command that writes the page of a run."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.output import Format, FormatOption, print_result
from touche_llm.cli.progress import CommandProgress
from touche_llm.data.files import check_output
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.pipeline.run_directory import RunDirectory, is_page
from touche_llm.pipeline.run_files import REPORT
from touche_llm.prompt_lab.holdout import record_evaluations
from touche_llm.tasks import get_task

_TOP = 20


@s.takes_settings("dataset")
@o.takes_qrels
def report(
    given: s.Given,
    qrels_files: o.QrelsFiles,
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help=f"The page to write (default: {REPORT} in the run's folder).")
    ] = None,
    run_topics: m.RunTopicsOption = False,
    top: Annotated[int, typer.Option("--top", min=1, help="Number of documents per topic shown with text.")] = _TOP,
    should_open: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write an HTML page about a run.

    The page shows measures, costs, documents and answers in one self-contained file. Without qrels, given here or to
    `evaluate` before, it has no measures.
    """
    # Only here: matplotlib and pandas take a second to load.
    from touche_llm.report.page import write_page
    from touche_llm.report.run_page import render_report
    from touche_llm.report.run_report import gather_report

    target = out or run_dir / REPORT
    # The page that an earlier call wrote into the run's folder is one of the run's own files.
    if target != run_dir / REPORT or not is_page(target):
        check_output(target, overwrite, qrels_files.values())
    task = get_task(RunDirectory(run_dir).read_config().task)
    known = m.find_qrels_files(task, [run_dir], qrels_files, given.get("dataset"))
    qrels = read_qrels(known, task) if known else None
    found = gather_report(run_dir, qrels, top, run_topics=run_topics)
    if qrels is not None:
        record_evaluations([run_dir], qrels, CommandProgress().warn)
    for note in found.notes:
        CommandProgress().warn(note)
    size = write_page(render_report(found), target)
    sentence = f"report: {target} ({len(found.topics):,} topics, {size:,} bytes)"
    print_result(output, sentence, {"file": target, "topics": len(found.topics), "bytes": size})
    if should_open and not webbrowser.open(target.absolute().as_uri()):
        CommandProgress().warn(f"{target}: found no browser on this machine; open the page in one yourself")
