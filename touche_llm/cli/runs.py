"""The command that writes the page of a run."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.emit import (
    TEXT_WIDTH,
    Column,
    Format,
    FormatOption,
    print_result,
    print_rows,
    show_lines,
    show_table,
)
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.cli.show import list_measures
from touche_llm.data.io import check_output
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.pipeline.run_directory import REPORT, RunDirectory, is_page
from touche_llm.pipeline.run_overview import (
    COMPLETE,
    Basis,
    RunOverview,
    RunUsage,
    choose_reference,
    find_runs,
    read_overview,
)
from touche_llm.prompt_lab.holdout import record_evaluations
from touche_llm.tasks import get_task

# What a value rests on: columns after the name of its measure.
_BASIS = ("topics", "judged_topics", "topic_ids", "missing_ids", "qrels_sha256", "comparable")
# The basis of the unmarked values of each measure.
References = Mapping[str, Basis | None]


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look for runs.")] = Path("."),
    output: FormatOption = Format.TABLE,
) -> None:
    """List the runs in a folder, with model, measures and costs.

    Folders below are searched too; the latest run of each folder comes first.

    The measures are those of the last `evaluate`. Values over other topics or by other qrels than most values of a
    measure cannot be compared with them and are marked. Unfinished and damaged runs are listed too.
    """
    latest_first = sorted(map(read_overview, find_runs(folder)), key=lambda each: each.changed, reverse=True)
    overviews = sorted(latest_first, key=lambda each: each.directory.path.parent)
    measures = list_measures(each.evaluation for each in overviews)
    evaluations = [each.evaluation for each in latest_first if each.evaluation is not None]
    references = {name: choose_reference(filter(None, (e.get_basis(name) for e in evaluations))) for name in measures}
    rows = [_make_row(each, folder, references) for each in overviews]
    if output is not Format.TABLE:
        print_rows(output, rows, _list_names(references))
    elif rows:
        _show_runs(rows, references, measures)
    else:
        print(f"{folder}: no runs")


def _list_names(references: References) -> list[str]:
    """Return the columns for other programs."""
    names = ["run", "state", "problem", "task", "model", "prompt", "steps", "topics", *references]
    names += [f"{name} judged" for name in references]
    names += [f"{name} {key}" for name in references for key in _BASIS]
    return [*names, *RunUsage._fields, "date"]


def _make_row(overview: RunOverview, root: Path, references: References) -> dict[str, Any]:
    config, evaluation = overview.config, overview.evaluation
    row: dict[str, Any] = dict.fromkeys(_list_names(references))
    row |= {"run": overview.directory.path.relative_to(root), "state": overview.state}
    row |= {"problem": overview.problem or None, "model": overview.model or None, "prompt": overview.prompt or None}
    row |= {"topics": overview.topics, "date": overview.changed.isoformat(timespec="seconds")}
    row |= overview.usage._asdict()
    if config is not None:
        row |= {"task": config.task, "steps": ",".join(config.rank)}
    if evaluation is None:
        return row
    for name, reference in references.items():
        if (recorded := evaluation.measures.get(name)) is not None:
            row |= {name: recorded.value, f"{name} judged": recorded.judged}
        if (basis := evaluation.get_basis(name)) is not None:
            covered = evaluation.coverage[name.split(" ", 1)[0]]
            topics = (len(covered.topics), covered.judged, " ".join(covered.topics), " ".join(covered.missing))
            values = zip(_BASIS, (*topics, basis.qrels, basis == reference), strict=True)
            row |= {f"{name} {key}": value for key, value in values}
    return row


def _show_runs(rows: Sequence[Mapping[str, Any]], references: References, measures: Mapping[str, str]) -> None:
    measured = [name for name in measures if references[name] is not None]
    mark = "*" if any(row[f"{name} comparable"] is False for row in rows for name in measured) else ""

    def format_measure(row: Mapping[str, Any], name: str) -> str:
        # Numbers stand one below the other, marked or not.
        shown = mark if row[f"{name} comparable"] is False else " " * len(mark)
        return "" if row[name] is None else f"{row[name]:.4f}{shown}"

    columns = [Column("run", is_text=True)]
    columns += [Column("state", is_text=True)] * any(row["state"] != COMPLETE for row in rows)
    if len({row["task"] for row in rows if row["task"]}) > 1:
        columns.append(Column("task", is_text=True, value=lambda row: Path(row["task"] or "").name))
    columns += [
        Column(measures[name], drop=min(number, 1), value=partial(format_measure, name=name))
        for number, name in enumerate(measured)
    ]
    columns += [
        Column("date", drop=3, value=lambda row: row["date"][:10]),
        Column("model", drop=2, cut=TEXT_WIDTH, value=lambda row: (row["model"] or "").rpartition("/")[2]),
        Column("prompt", drop=4, is_text=True, value=lambda row: (row["prompt"] or "").rpartition("-")[0]),
        Column("topics", drop=5),
        Column("requests", drop=6),
        Column("tokens", drop=7, value=lambda row: row["prompt_tokens"] + row["completion_tokens"]),
        Column("steps", drop=8, is_text=True),
    ]
    columns += [Column(f"{measures[name]} judged", drop=9, value=f"{name} judged", digits=3) for name in measured]
    show_table(columns, rows)
    if measured:
        show_lines(
            (
                "nDCG@5 of the grades, macro-F1 of the stance, from the last evaluation",
                "judged: share of judged documents among the first 5, for the stance in the whole ranking",
                *_list_bases(rows, measured),
            )
        )
    show_lines(f"{row['run']}: {row['problem']}" for row in rows if row["problem"])


def _list_bases(rows: Sequence[Mapping[str, Any]], measured: Sequence[str]) -> Iterator[str]:
    """Yield the topics and qrels behind the values of each measure, and the runs of those that are marked."""
    for name in measured:
        of_basis: dict[tuple[bool, str], list[str]] = {}
        for row in rows:
            if (comparable := row[f"{name} comparable"]) is not None:
                topics = f"{row[f'{name} topics']} of {row[f'{name} judged_topics']} judged topics"
                missing = row[f"{name} missing_ids"]
                lost = f"; not in the run, so that they count 0: {missing}" if missing else ""
                basis = f"{topics}{lost}; qrels sha256 {row[f'{name} qrels_sha256']:.12}"
                of_basis.setdefault((comparable, basis), []).append(str(row["run"]))
        for (comparable, basis), of_runs in sorted(of_basis.items(), reverse=True):
            yield f"{name}: {basis}" if comparable else f"* {name} of {', '.join(of_runs)}, not comparable: {basis}"


_TOP = 20


@s.takes_settings("dataset")
@o.takes_qrels
def report(
    given: s.GivenSettings,
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
    # Only here: pandas takes half a second to load.
    from touche_llm.report.page import write_page
    from touche_llm.report.run_report import gather_report, render_report

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
