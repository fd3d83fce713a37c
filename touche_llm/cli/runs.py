"""Commands to look at runs: a list of them, a page about one, and the prompt workbench."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as s
from touche_llm.cli import shared_options as o
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import Column, Format, FormatOption, emit, print_result, show_lines
from touche_llm.cli.show import list_measures
from touche_llm.data.files import check_output
from touche_llm.data.measure import Measure
from touche_llm.errors import UsageError
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.interrupts import run_until_interrupted
from touche_llm.runs.directory import REPORT, RunDirectory, is_page
from touche_llm.runs.overview import COMPLETE, TOTALS, RunOverview, find_runs, read_overview
from touche_llm.tasks import get_task

if TYPE_CHECKING:
    from touche_llm.lab.runs_of_lab import Workplace


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to look for runs.")
    ] = Path("."),
    output: FormatOption = Format.TABLE,
) -> None:
    """List the runs in a folder, with model, measures and costs.

    Folders below are searched too; the latest run of each folder comes first.

    The measures are those of the last `evaluate`: nDCG@5 of the grades, macro-F1 of the stance, and
    the share of judged documents; `show` has the qrels and the topics that they rest on. Unfinished
    and damaged runs are listed too.
    """
    latest_first = sorted(
        map(read_overview, find_runs(folder)), key=lambda run: run.changed, reverse=True
    )
    overviews = sorted(latest_first, key=lambda run: run.directory.path.parent)
    measures = list_measures(run.evaluation for run in overviews)
    rows = [_make_row(run, folder, measures) for run in overviews]
    if rows or output is not Format.TABLE:
        emit(output, rows, _list_columns(rows, measures), _list_names(measures))
    else:
        print(f"{folder}: no runs")
    if output is Format.TABLE:
        show_lines(f"{row['run']}: {row['problem']}" for row in rows if row["problem"])


def _list_names(measures: Iterable[Measure]) -> list[str]:
    names = ["run", "state", "problem", "task", "model", "prompt", "steps", "topics"]
    names += [str(measure) for measure in measures]
    names += [f"{measure} judged" for measure in measures]
    return [*names, *TOTALS, "date"]


def _make_row(overview: RunOverview, root: Path, measures: Iterable[Measure]) -> dict[str, Any]:
    config, evaluation = overview.config, overview.evaluation
    row: dict[str, Any] = dict.fromkeys(_list_names(measures))
    row |= {"run": overview.directory.path.relative_to(root), "state": overview.state}
    row |= {
        "problem": overview.problem or None,
        "model": overview.model or None,
        "prompt": overview.prompt or None,
    }
    row |= {"topics": overview.topics, "date": overview.changed.isoformat(timespec="seconds")}
    row |= overview.totals
    if config is not None:
        row |= {"task": config.task, "steps": ",".join(config.rank)}
    for measure in measures:
        if evaluation is not None and (recorded := evaluation.measures.get(measure)) is not None:
            row |= {str(measure): recorded.value, f"{measure} judged": recorded.judged}
    return row


def _list_columns(
    rows: Sequence[Mapping[str, Any]], measures: Mapping[Measure, str]
) -> list[Column]:
    columns = [Column("run", is_text=True)]
    columns += [Column("state", is_text=True)] * any(row["state"] != COMPLETE for row in rows)
    if len({row["task"] for row in rows if row["task"]}) > 1:
        columns.append(Column("task", is_text=True, value=lambda row: Path(row["task"] or "").name))
    measured = [
        measure for measure in measures if any(row[str(measure)] is not None for row in rows)
    ]
    return [
        *columns,
        *(Column(measures[measure], value=str(measure)) for measure in measured),
        Column("topics", drop=5),
        Column("date", drop=2, value=lambda row: row["date"][:10]),
        Column(
            "model", drop=1, is_cut=True, value=lambda row: (row["model"] or "").rpartition("/")[2]
        ),
        Column(
            "prompt",
            drop=3,
            is_cut=True,
            value=lambda row: (row["prompt"] or "").rpartition("-")[0],
        ),
        Column("requests", drop=4),
    ]


# Number of documents per topic shown with text.
_TOP = 20


@s.takes_settings("dataset", "topics", "corpus", "index")
@o.takes_qrels
def report(
    given: s.GivenSettings,
    qrels_files: o.QrelsFiles,
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help=f"The page to write (default: {REPORT} in the run's folder)."
        ),
    ] = None,
    config_file: s.FolderConfigOption = None,
    should_open: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write an HTML page about a run.

    The page shows measures, costs, documents and answers in one self-contained file. Without qrels,
    given here or to `evaluate` before, it has no measures.
    """
    # Only here: pandas takes half a second to load.
    from touche_llm.report.page import render, write_page
    from touche_llm.report.run_page import gather_report

    target = out or run_dir / REPORT
    # The page in the run's folder is one of the run's own files.
    if target != run_dir / REPORT or not is_page(target):
        check_output(target, overwrite, qrels_files.values())
    word = s.make_word(given, config_file)
    task = get_task(RunDirectory(run_dir).read_with_origins(word).config.task)
    known = m.find_qrels_files(task, [run_dir], qrels_files, given.get("dataset"))
    qrels = read_qrels(known, task) if known else None
    found = gather_report(run_dir, qrels, _TOP, word)
    for note in found.notes:
        CommandProgress().warn(note)
    size = write_page(render(found), target)
    sentence = f"report: {target} ({len(found.topics):,} topics, {size:,} bytes)"
    print_result(output, sentence, {"file": target, "topics": len(found.topics), "bytes": size})
    if should_open and not webbrowser.open(target.absolute().as_uri()):
        CommandProgress().warn(
            f"{target}: found no browser on this machine; open the page in one yourself"
        )


_OF_LAB = (*s.INPUTS, "prompts.folder", "engine", "sampling", "cache")


@s.takes_settings(*_OF_LAB)
@o.takes_qrels
def lab(
    given: s.GivenSettings,
    qrels_files: o.QrelsFiles,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER|RUN", help="Where to look for runs (default: here)."),
    ] = None,
    config_file: s.ConfigOption = None,
    assigned: s.SetOption = None,
    port: Annotated[
        int, typer.Option("--port", min=0, metavar="N", help="Port (default: a free one).")
    ] = 0,
    stay_closed: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
) -> None:
    """Serve a page to look at runs and to improve prompts. Ctrl-C ends it.

    The page shows all runs of a folder, their documents with answers and labels of your own, and a
    bench on which judge prompts are edited: answers change while you type. The settings given here
    override those of the runs; with --config or --topics there is the bench alone.

    Only programs of this machine that know the token in the printed address can read it.
    """
    # Only here: the libraries of a web server are slow to load.
    from touche_llm.lab.runs_of_lab import LabInputs, Workplace

    is_alone = config_file is not None or not given.keys().isdisjoint(("topics", "dataset"))
    if folder is not None and config_file is not None:
        raise UsageError(
            f"--config {config_file}: for work without a run; leave out {folder}, or the file"
        )
    root = folder or (None if is_alone else Path())
    if root is None:
        s.load_settings("lab", given, config_file, assigned)
    settings = given | s.set_values(assigned or [], "lab")
    workplace = Workplace(
        LabInputs(root, config_file, settings, qrels_files), CommandProgress().warn
    )
    run_until_interrupted(_serve(workplace, port, should_open=not stay_closed))


async def _serve(workplace: Workplace, port: int, *, should_open: bool) -> None:
    from touche_llm.lab.redirect import write_redirect
    from touche_llm.lab.server import serve_lab

    paths = await workplace.call_in_thread(workplace.describe_paths)
    async with serve_lab(workplace, port) as address:
        print(address.url)
        show_lines(f"{name}: {path}" for name, path in paths.items())
        show_lines(["Ctrl-C ends it"], sys.stderr)
        sys.stdout.flush()
        with ExitStack() as stack:
            if should_open and sys.stdout.isatty():
                page = stack.enter_context(write_redirect(address.url))
                webbrowser.open(page.as_uri())
            await asyncio.Event().wait()
