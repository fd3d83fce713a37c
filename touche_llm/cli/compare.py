"""The commands that compare runs, and that fit stance thresholds on judged data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.emit import (
    Column,
    Format,
    FormatOption,
    emit,
    format_value,
    print_rows,
    say,
    show_lines,
)
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.data.io import check_output
from touche_llm.errors import UsageError, shorten
from touche_llm.evaluation.qrels import STANCE, read_qrels, select_topics
from touche_llm.evaluation.significance import describe_missing_intervals
from touche_llm.evaluation.stances import fit_thresholds, label_held_out, read_calibration_set, score_labels
from touche_llm.judging.labels import choose_stances, write_thresholds
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.runs import find_run_file, find_task
from touche_llm.prompt_lab.holdout import record_evaluations
from touche_llm.tasks import get_task

if TYPE_CHECKING:
    from touche_llm.evaluation.measures import Evaluation


@s.takes_settings("dataset")
@o.takes_qrels
def compare(
    given: s.GivenSettings,
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
    from touche_llm.evaluation.measures import compare_runs

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
        from touche_llm.report.page import write_page
        from touche_llm.report.run_comparison import check_number, gather_comparison, render_comparison

        check_output(html, overwrite, (*map(find_run_file, runs), *files.values()))
        check_number(len(kept))
    qrels = select_topics(qrels, [each.run for each in kept])
    evaluations = m.evaluate_runs(kept, qrels, depth or m.find_recall_depth(measured))
    record_evaluations((each.folder for each in kept), qrels, CommandProgress().warn)
    number = runs.index(baseline)
    frame, remarks = compare_runs(evaluations[number], [*evaluations[:number], *evaluations[number + 1 :]])
    notes = [*m.list_fitted(kept, qrels), *remarks]
    page = ""
    if html is not None:
        folders = [each.folder for each in kept]
        found = gather_comparison(evaluations, folders, known, files, frame, notes, top)
        size = write_page(render_comparison(found), html)
        page = f"page: {html} ({len(found.topics):,} topics, {size:,} bytes)"
    rows = frame.to_dict("records")
    if output is Format.TABLE:
        _show(rows, evaluations)
        show_lines(m.describe_qrels(files))
    else:
        print_rows(output, rows)
    m.print_notes(qrels, evaluations, kept, *notes, *describe_missing_intervals(rows))
    if page:
        say(output, page)


_COMPARED = (
    m.MEASURE,
    m.RUN_COLUMN,
    Column("value", drop=2),
    Column("baseline", drop=3, value="baseline_value"),
    *m.CHANGE_COLUMNS,
    Column(
        "judged@k",
        value=lambda row: f"{format_value(row['judged'], digits=3)}/{format_value(row['baseline_judged'], digits=3)}",
    ),
)


def _show(rows: Sequence[Mapping[str, Any]], evaluations: Sequence[Evaluation]) -> None:
    m.show_aspects(rows, _COMPARED, evaluations, f", change from the baseline {rows[0]['baseline']}")
    show_lines(
        (
            "value, baseline: over the topics that both runs have; for stances over the documents that both label, "
            "but for @5 over the first 5 of each",
            "p Holm: paired randomisation test, corrected for the number of runs; --format json has the uncorrected p",
            "+/=/-: topics in which the run is better than the baseline, equal, and worse",
            f"{m.JUDGED_LEGEND}; of the run and of the baseline",
        )
    )


def calibrate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run that was judged with log-probabilities.")
    ],
    stance: Annotated[Path, typer.Option("--stance", help="The stance qrels: qid 0 doc LABEL.")],
    out: Annotated[Path, typer.Option("--out", help="The YAML file to write, for --config of a run.")],
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Fit the thresholds of stance labels that take no side, and measure them on other topics.

    The table compares labels by thresholds with the most probable ones. Each document is labelled with thresholds that
    were fitted on other topics, in a cross-validation of five parts; the file holds those fitted on all topics.
    """
    check_output(out, overwrite, [stance])
    directory, warn = RunDirectory(run), CommandProgress().warn
    directory.check_finished("judge")
    task = get_task(directory.read_config().task)
    if not task.no_stances:
        stances = "all its stances take a side" if task.stances else "it has no stances"
        raise UsageError(f"{task.name}: {stances}, so it has no thresholds")
    truth = read_qrels({STANCE: stance}, task).stances
    examples = read_calibration_set(directory.judgments_file, directory.stances_file, truth, task)
    if examples.without:
        warn(
            f"judged documents without probabilities in the run, not used: {len(examples.without):,} "
            f"(topic and document): {shorten(examples.without)}"
        )
    topics = list(dict.fromkeys(examples.topics))
    ways = {
        "by thresholds, held out": label_held_out(examples, task),
        "most probable": choose_stances(examples.probabilities, {}, task),
    }
    scores = {name: score_labels(labels, examples.truth, task) for name, labels in ways.items()}
    thresholds = fit_thresholds(examples.probabilities, examples.truth, task)
    write_thresholds(out, thresholds, topics, examples.prompt)
    rows = [
        {"labels": name, "topics": len(topics), "documents": len(examples.topics), "macro_f1": f1, "accuracy": accuracy}
        for name, (f1, accuracy) in scores.items()
    ]
    columns = [Column("labels", is_text=True), Column("topics"), Column("documents")]
    emit(output, rows, [*columns, Column("macro-F1", value="macro_f1", digits=3), Column("accuracy", digits=3)])
    held_out, most_probable = scores.values()
    if held_out[0] <= most_probable[0]:
        say(output, "the thresholds do not help on held-out topics; leave them out")
    fitted = ", ".join(f"{label} {value:.3g}" for label, value in thresholds.items())
    say(output, f"thresholds fitted on all {len(topics)} topics, for other topics, in {out}: {fitted}")
