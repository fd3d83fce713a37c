"""The command that compares runs with one of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.output import Format, FormatOption, say
from touche_llm.cli.progress import CommandProgress
from touche_llm.cli.tables import Column, format_interval, format_value, show_lines, show_table
from touche_llm.data.files import check_output
from touche_llm.errors import UsageError
from touche_llm.evaluation.measures import describe_coverage
from touche_llm.evaluation.notes import describe_missing_intervals
from touche_llm.pipeline.run_lookup import find_run_file, find_task
from touche_llm.prompt_lab.holdout import record_evaluations

if TYPE_CHECKING:
    from pandas import DataFrame

    from touche_llm.evaluation.measures import Evaluation


@s.takes_settings("dataset")
@o.takes_qrels
def compare(
    given: s.Given,
    qrels_files: o.QrelsFiles,
    runs: m.RunsArgument,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline", metavar="RUN", help="The run that the others are compared with (default: the first)."
        ),
    ] = None,
    task: m.TaskOption = None,
    output: FormatOption = Format.TABLE,
    depth: m.DepthOption = None,
    run_topics: m.RunTopicsOption = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page as well, with 2 to 8 runs side by side (report.html, say)."),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, help="With --html: number of documents of each run and topic.")
    ] = 20,
    overwrite: o.OverwriteOption = False,
) -> None:
    """Compare runs with the first: differences, intervals and tests.

    The table has 95 % intervals, and the topics won, tied and lost. p is that of a two-sided paired randomisation test
    over topics; p Holm is corrected for the number of runs compared with the baseline, measure by measure.

    Only topics that --limit-topics or --topic left in all runs count; one of these that a run lacks counts 0.

    Without qrels, those of the last evaluation or the runs' dataset are used. Stances are compared over the documents
    that both runs label (@5: over the first 5 of each). Notes on standard error are those of `evaluate`.
    """
    from touche_llm.evaluation.comparison import compare_runs

    baseline = baseline or runs[0]
    if baseline not in runs:
        runs = [baseline, *runs]
    if len(runs) < 2:
        raise UsageError(f"{baseline} alone cannot be compared; name another run")
    known = find_task(task, runs, given.get("dataset"))
    files, qrels = m.require_qrels(known, runs, qrels_files, given.get("dataset"))
    measured = m.given_runs(runs, qrels, known)
    kept = [each for each in measured if not each.first_stage]
    if html is not None:
        from touche_llm.report.comparison_page import render_comparison
        from touche_llm.report.page import write_page
        from touche_llm.report.run_comparison import NamedRun, check_runs, gather_comparison

        inputs = (*map(find_run_file, runs), *files.values())
        check_output(html, overwrite, inputs)
        sides = [NamedRun(each.name, each.run, each.folder) for each in kept]
        check_runs(sides, known)
    qrels = m.select_common_topics(qrels, kept, shared=run_topics)
    evaluations = m.evaluate_runs(kept, qrels, depth or m.find_recall_depth(measured))
    record_evaluations((each.folder for each in kept), qrels, CommandProgress().warn)
    number = runs.index(baseline)
    shown = kept
    # The page names runs by their paths.
    if output is Format.TABLE and html is None:
        shown, evaluations = m.use_labels(kept, evaluations)
    frame, remarks = compare_runs(evaluations[number], [*evaluations[:number], *evaluations[number + 1 :]])
    notes = [*m.list_fitted(shown, qrels), *remarks]
    page = ""
    if html is not None:
        found = gather_comparison(sides, known, files, evaluations, frame, notes, top)
        size = write_page(render_comparison(found), html)
        page = f"page: {html} ({len(found.topics):,} topics, {size:,} bytes)"
    if output is Format.TABLE:
        labels = {each.name: each.label for each in kept}
        _show(frame.replace({"run": labels, "baseline": labels}), m.use_labels(kept, evaluations)[1])
        m.show_legend(kept)
        show_lines(m.describe_qrels(files))
    else:
        m.print_frame(frame, files, output)
    m.print_notes(qrels, evaluations, shown, *notes, *describe_missing_intervals(frame.to_dict("records")))
    if page:
        say(output, page)


def _show(frame: DataFrame, evaluations: Sequence[Evaluation]) -> None:
    columns = (
        *(Column(name, is_text=True) for name in ("measure", "run")),
        *(Column("value", drop=2), Column("baseline", drop=3), Column("change"), Column("95 % interval")),
        *(Column("p Holm"), Column("+/=/-", drop=1), Column("judged@k", drop=4)),
    )
    baseline = frame["baseline"].iloc[0]
    for aspect, rows in frame.groupby(frame["measure"].str.partition(" ")[0], sort=False):
        cells = (
            (
                *(m.strip_aspect(row.measure), row.run, format_value(row.value), format_value(row.baseline_value)),
                *(format_value(row.difference, sign="+"), format_interval(row.low, row.high, sign="+")),
                *(format_value(row.p_holm), f"{row.wins}/{row.ties}/{row.losses}"),
                f"{format_value(row.judged, digits=3)}/{format_value(row.baseline_judged, digits=3)}",
            )
            for row in rows.itertuples()
        )
        title, below = f"{aspect}, change from the baseline {baseline}", describe_coverage(evaluations, aspect)
        show_table(columns, m.blank_repeats(cells), title=title, below=below)
        print()
    show_lines(
        (
            "value, baseline: over the topics that both runs have; for stances over the documents that both label, "
            "but for @5 over the first 5 of each",
            "p Holm: paired randomisation test, corrected for the number of runs; --format json has the uncorrected p",
            "+/=/-: topics in which the run is better than the baseline, equal, and worse",
            f"{m.JUDGED_LEGEND}; of the run and of the baseline",
        )
    )
