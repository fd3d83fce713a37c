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
    overviews = [read_overview(path) for path in find_runs(folder)]
    # By folder, and within a folder by date: sorting keeps the order of equal ones.
    overviews.sort(key=lambda run: run.changed, reverse=True)
    overviews.sort(key=lambda run: run.directory.path.parent)

    measures = list_measures(run.evaluation for run in overviews)
    rows = [_make_row(run, folder, measures) for run in overviews]
    if rows or output is not Format.TABLE:
        emit(output, rows, _list_columns(rows, measures), _list_names(measures))
    else:
        print(f"{folder}: no runs")
    if output is Format.TABLE:
        show_lines(f"{row['run']}: {row['problem']}" for row in rows if row["problem"])


def _list_names(measures: Iterable[Measure]) -> list[str]:
    """Return the names of the values of a row, in the order of the output for programs."""
    names = ["run", "state", "problem", "task", "model", "prompt", "steps", "topics"]
    names += [str(measure) for measure in measures]
    names += [f"{measure} judged" for measure in measures]
    return [*names, *TOTALS, "date"]


def _make_row(overview: RunOverview, root: Path, measures: Iterable[Measure]) -> dict[str, Any]:
    """Return the row of a run, with the names of `_list_names`; None for what is unknown."""
    row: dict[str, Any] = dict.fromkeys(_list_names(measures))
    row.update(overview.totals)
    row["run"] = overview.directory.path.relative_to(root)
    row["state"] = overview.state
    row["problem"] = overview.problem or None
    row["model"] = overview.model or None
    row["prompt"] = overview.prompt or None
    row["topics"] = overview.topics
    row["date"] = overview.changed.isoformat(timespec="seconds")
    if overview.config is not None:
        row["task"] = overview.config.task
        row["steps"] = ",".join(overview.config.rank)

    evaluation = overview.evaluation
    recorded_measures = {} if evaluation is None else evaluation.measures
    for measure in measures:
        recorded = recorded_measures.get(measure)
        if recorded is not None:
            row[str(measure)] = recorded.value
            row[f"{measure} judged"] = recorded.judged
    return row


def _list_columns(rows: Sequence[Mapping[str, Any]], titles: Mapping[Measure, str]) -> list[Column]:
    """Return the columns of the table, without those that say nothing.

    Args:
        rows: Rows of the runs.
        titles: Titles of the measures.
    """
    columns = [Column("run", is_text=True)]
    if any(row["state"] != COMPLETE for row in rows):
        columns.append(Column("state", is_text=True))
    tasks = {row["task"] for row in rows if row["task"]}
    if len(tasks) > 1:
        columns.append(Column("task", is_text=True, value=_shorten_task))
    for measure, title in titles.items():
        if any(row[str(measure)] is not None for row in rows):
            columns.append(Column(title, value=str(measure)))

    columns.append(Column("topics", drop=5))
    columns.append(Column("date", drop=2, value=lambda row: row["date"][:10]))
    columns.append(Column("model", drop=1, is_cut=True, value=_shorten_model))
    columns.append(Column("prompt", drop=3, is_cut=True, value=_shorten_prompt))
    columns.append(Column("requests", drop=4))
    return columns


def _shorten_task(row: Mapping[str, Any]) -> str:
    """Return the name of a run's task; that of its folder if it is a folder."""
    return Path(row["task"] or "").name


def _shorten_model(row: Mapping[str, Any]) -> str:
    """Return the name of a run's model without the organisation or folder before it."""
    model: str = row["model"] or ""
    return model.rpartition("/")[2]


def _shorten_prompt(row: Mapping[str, Any]) -> str:
    """Return the label of a run's prompt without the hash at its end."""
    prompt: str = row["prompt"] or ""
    return prompt.rpartition("-")[0]


# Number of documents per topic shown with text.
_TOP = 20


RunDirArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
OutOption = Annotated[
    Path | None,
    typer.Option("-o", "--out", help=f"The page to write (default: {REPORT} in the run's folder)."),
]
ShouldOpenOption = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


@s.takes_settings("dataset", "topics", "corpus", "index")
@o.takes_qrels
def report(
    given: s.GivenSettings,
    qrels_files: o.QrelsFiles,
    run_dir: RunDirArgument,
    out: OutOption = None,
    config_file: s.FolderConfigOption = None,
    should_open: ShouldOpenOption = False,
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

    own_page = run_dir / REPORT
    target = out or own_page
    # An earlier page in the run's folder is one of the run's own files, so it is replaced.
    is_own_page = target == own_page and is_page(target)
    if not is_own_page:
        check_output(target, overwrite, qrels_files.values())

    user_options = s.make_user_options(given, config_file)
    task = get_task(RunDirectory(run_dir).read_with_origins(user_options).config.task)
    used_qrels = m.find_qrels_files(task, [run_dir], qrels_files, given.get("dataset"))
    qrels = read_qrels(used_qrels, task) if used_qrels else None
    content = gather_report(run_dir, qrels, _TOP, user_options)
    for note in content.notes:
        CommandProgress().warn(note)

    size = write_page(render(content), target)
    topic_count = len(content.topics)
    sentence = f"report: {target} ({topic_count:,} topics, {size:,} bytes)"
    print_result(output, sentence, {"file": target, "topics": topic_count, "bytes": size})
    if should_open and not webbrowser.open(target.absolute().as_uri()):
        CommandProgress().warn(
            f"{target}: found no browser on this machine; open the page in one yourself"
        )


_OF_LAB = (*s.INPUTS, "prompts.folder", "engine", "sampling", "cache")


FolderArgument = Annotated[
    Path | None,
    typer.Argument(metavar="FOLDER|RUN", help="Where to look for runs (default: here)."),
]
PortOption = Annotated[
    int, typer.Option("--port", min=0, metavar="N", help="Port (default: a free one).")
]
StayClosedOption = Annotated[bool, typer.Option("--no-open", help="Open no browser.")]


@s.takes_settings(*_OF_LAB)
@o.takes_qrels
def lab(
    given: s.GivenSettings,
    qrels_files: o.QrelsFiles,
    folder: FolderArgument = None,
    config_file: s.ConfigOption = None,
    assigned: s.SetOption = None,
    port: PortOption = 0,
    stay_closed: StayClosedOption = False,
) -> None:
    """Serve a page to look at runs and to improve prompts. Ctrl-C ends it.

    The page shows all runs of a folder, their documents with answers and labels of your own, and a
    bench on which judge prompts are edited: answers change while you type. The settings given here
    override those of the runs; with --config or --topics there is the bench alone.

    Only programs of this machine that know the token in the printed address can read it.
    """
    # Only here: the libraries of a web server are slow to load.
    from touche_llm.lab.runs_of_lab import LabInputs, Workplace

    if folder is not None and config_file is not None:
        raise UsageError(
            f"--config {config_file}: for work without a run; leave out {folder}, or the file"
        )
    names_topics = "topics" in given or "dataset" in given
    root = folder
    if root is None and config_file is None and not names_topics:
        root = Path()
    if root is None:
        # Errors of the settings come before the server starts.
        s.load_settings("lab", given, config_file, assigned)

    settings = given | s.set_values(assigned or [], "lab")
    inputs = LabInputs(root, config_file, settings, qrels_files)
    workplace = Workplace(inputs, CommandProgress().warn)
    run_until_interrupted(_serve(workplace, port, should_open=not stay_closed))


async def _serve(workplace: Workplace, port: int, *, should_open: bool) -> None:
    """Serve the pages of the lab until the program is interrupted.

    Args:
        workplace: Runs and prompts of the lab.
        port: Port; 0 for a free one.
        should_open: Whether to open a browser, if the output is a terminal.
    """
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
