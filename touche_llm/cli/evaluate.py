"""Commands that measure runs, compare them, and fit stance thresholds on judged data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isnan, nan
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as s
from touche_llm.cli import shared_options as o
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import (
    Column,
    Format,
    FormatOption,
    emit,
    format_value,
    print_rows,
    say,
    show_lines,
    show_table,
)
from touche_llm.data.files import check_output
from touche_llm.data.measure import Measure, MeasureName
from touche_llm.errors import ToucheError, UsageError, describe_os_error, shorten
from touche_llm.evaluation.agreement import Labels
from touche_llm.evaluation.calibration import (
    CalibrationSet,
    fit_thresholds,
    label_held_out,
    read_calibration_set,
    score_labels,
)
from touche_llm.evaluation.comparisons import RunComparison, compare_runs
from touche_llm.evaluation.measures import Evaluation, describe_coverage, describe_judging
from touche_llm.evaluation.qrels import STANCE, read_qrels, select_topics
from touche_llm.evaluation.significance import describe_intervals
from touche_llm.judging.stance_labels import choose_stances, write_thresholds
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.overview import find_run_file, find_task, record_evaluation
from touche_llm.tasks import get_task
from touche_llm.tasks.published import LEADERBOARD_FILE, Table, find_place, read_tables
from touche_llm.tasks.task import Task

Rows = Sequence[Mapping[str, Any]]
# Number of documents of each run and topic on a page.
_TOP = 20


def rank_among_published(
    task: Task, rows: Rows, evaluations: Sequence[Evaluation]
) -> list[dict[str, Any]]:
    """Return the rows of runs that can be compared with published runs, with their places.

    The place is from 1, the better of a tie; `behind` is the published run after it, or with the
    same value.

    Args:
        task: Task with tables of published runs.
        rows: Rows of `summarize`.
        evaluations: Evaluations of the rows.

    Raises:
        UsageError: Nothing is published, or no row is a published measure over all judged topics.
    """
    tables = {task.official_measures[table.measure]: table for table in read_tables(task)}
    if not tables:
        raise UsageError(
            f"--leaderboard: {task.name} has no published results; write {task.folder / LEADERBOARD_FILE}"
        )

    evaluations_by_run = {evaluation.name: evaluation for evaluation in evaluations}
    placed: list[dict[str, Any]] = []
    for measure, table in tables.items():
        rows_of_measure = [row for row in rows if row["measure"] == measure]
        for row in rows_of_measure:
            evaluation = evaluations_by_run[row["run"]]
            if _can_place(row["value"], evaluation, table):
                placed.append({**row, **_describe_place(table, row["value"])})
    if not placed:
        raise UsageError(
            f"--leaderboard: published are {', '.join(map(str, tables))} over all judged topics, not measured here"
        )
    return placed


def _can_place(value: float, evaluation: Evaluation, table: Table) -> bool:
    """Return whether a value is defined, and over all judged topics as the published ones are."""
    return not isnan(value) and not evaluation.coverage(table.measure).left_out


def _describe_place(table: Table, value: float) -> dict[str, Any]:
    """Return the place of a value in a published table, and the published runs around it."""
    place = find_place(table, value)
    ahead = table.runs[place - 2] if place > 1 else None
    behind = table.runs[place - 1] if place <= len(table.runs) else None
    return {
        "place": place,
        "published": len(table.runs),
        "ahead": None if ahead is None else f"{ahead.team}: {ahead.tag}",
        "ahead_value": None if ahead is None else ahead.value,
        "behind": None if behind is None else f"{behind.team}: {behind.tag}",
        "behind_value": None if behind is None else behind.value,
        "source": table.url,
    }


def _show_places(rows: Rows) -> None:
    """Print the rows of `rank_among_published`."""
    show_table(_PLACES, rows)
    sources = list(dict.fromkeys(row["source"] for row in rows))
    show_lines(
        (
            *sources,
            "nDCG: the official measure, where unjudged documents count 0; touche_nDCG@5 drops them and has no place",
            "n: topics (for the stance: documents) judged here; the published values are over all topics of the task",
        )
    )


def _format_neighbour(row: Mapping[str, Any], side: str) -> str:
    """Format the published run on one side of a place, `ahead` or `behind`; empty without one."""
    if row[side] is None:
        return ""
    return f"{row[side]} {row[f'{side}_value']:.3f}"


_PLACES = (
    Column("measure", is_text=True),
    m.RUN_COLUMN,
    Column("place", value=lambda row: f"{row['place']} of {row['published'] + 1}"),
    Column("value"),
    m.INTERVAL,
    Column("n", drop=1),
    Column("ahead", drop=3, is_text=True, value=partial(_format_neighbour, side="ahead")),
    Column("behind", drop=3, is_text=True, value=partial(_format_neighbour, side="behind")),
)


PerTopicOption = Annotated[
    bool,
    typer.Option("--per-topic", help="A row for each topic instead, a column for each measure."),
]
LeaderboardOption = Annotated[
    bool,
    typer.Option("--leaderboard", help="The place of each run among the published ones instead."),
]


@s.takes_settings("dataset")
@o.takes_qrels
def evaluate(
    given: s.GivenSettings,
    qrels_files: o.QrelsFiles,
    runs: m.RunsArgument,
    task: m.TaskOption = None,
    output: FormatOption = Format.TABLE,
    per_topic: PerTopicOption = False,
    leaderboard: LeaderboardOption = False,
) -> None:
    """Measure runs with qrels, with 95 % intervals over topics.

    A judged topic that a run lacks counts 0. A run made with --limit-topics or --topic is measured
    by the topics that were chosen, and one that it lost counts 0.

    A run of this program is shown with its first stage, candidates.run.txt in its folder. The
    folder keeps the qrels' paths and the values (evaluation.yaml), so that evaluate, compare and
    report need no qrels later.

    Notes on standard error: missing topics, imputed stances and much different shares of judged
    documents.
    """
    if per_topic and leaderboard:
        raise UsageError("--per-topic, --leaderboard: each prints its own table; give one of them")
    known_task = find_task(task, runs, given.get("dataset"))
    files, qrels = m.require_qrels(known_task, runs, qrels_files, given.get("dataset"))
    measured = m.given_runs(runs, qrels, known_task)
    evaluations = m.evaluate_runs(measured, qrels, m.find_recall_depth(measured))
    _record(measured, evaluations, known_task, files)

    notes = [*m.list_fitted(measured, qrels), *_describe_judging(measured, evaluations)]
    if per_topic:
        rows = _list_topics(evaluations)
        show = partial(_show_topics, rows, evaluations)
    else:
        rows = summarize(evaluations)
        notes += describe_intervals(rows)
        show = partial(show_summary, rows, evaluations)
    if leaderboard:
        rows = rank_among_published(known_task, rows, evaluations)
        show = partial(_show_places, rows)

    if output is Format.TABLE:
        show()
        show_lines(m.describe_qrels(files))
    else:
        print_rows(output, rows)
    m.print_notes(qrels, evaluations, measured, *notes)


def _record(
    given: Sequence[m.Given],
    evaluations: Sequence[Evaluation],
    task: Task,
    files: Mapping[str, Path],
) -> None:
    """Keep qrels and values in the folders of the runs, for later commands.

    A folder that cannot be written is no error: the values are printed in any case.
    """
    warn = CommandProgress().warn
    for run, evaluation in zip(given, evaluations, strict=True):
        if run.folder is None or run.first_stage:
            continue

        directory = RunDirectory(run.folder)
        try:
            with directory.lock("evaluate", warn):
                record_evaluation(directory, task, files, evaluation)
        except (OSError, ToucheError) as error:
            problem = describe_os_error(error) if isinstance(error, OSError) else error
            warn(f"the evaluation is not kept for later commands: {problem}")


def _describe_judging(given: Sequence[m.Given], evaluations: Sequence[Evaluation]) -> list[str]:
    """Return notes on runs with another share of judged documents than their first stage."""
    notes: list[str] = []
    for place, run in enumerate(given):
        if run.first_stage:
            first_stage = evaluations[place]
            reranked = evaluations[place + 1]
            notes += describe_judging(reranked, first_stage)
    return notes


def summarize(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Return the estimates of all runs, measure by measure.

    Measures are in the order of the last evaluation: a first stage, which comes before its run, has
    fewer.
    """
    measures = list(evaluations[-1].estimates | evaluations[-1].labels)
    rows: list[dict[str, Any]] = []
    for evaluation in evaluations:
        rows.extend(evaluation.summary().to_dict("records"))
    return sorted(rows, key=lambda row: measures.index(row["measure"]))


def _list_topics(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Return a row for each run and topic, with `run`, `topic`, the measures and their judged@k."""
    measures = list(evaluations[-1].estimates)
    shares = [measure.judged for measure in measures]
    unmeasured = dict.fromkeys(map(str, [*measures, *shares]), nan)

    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for evaluation in evaluations:
        for measured in evaluation.per_topic().itertuples(index=False):
            empty_row = {"run": evaluation.name, "topic": measured.topic, **unmeasured}
            row = rows.setdefault((evaluation.name, measured.topic), empty_row)
            row[str(measured.measure.judged)] = measured.judged
            row[str(measured.measure)] = measured.value
    return list(rows.values())


def show_summary(rows: Rows, evaluations: Sequence[Evaluation]) -> None:
    """Print the rows of `summarize`."""
    columns = [m.MEASURE, m.RUN_COLUMN, Column("value"), m.INTERVAL, Column("n", drop=1)]
    columns.append(Column("judged@k", value=_get_judged_share, digits=3))
    # Their shares are in the column beside the other measures.
    shown = [row for row in rows if row["measure"].name != MeasureName.JUDGED]
    m.show_aspects(shown, columns, evaluations)
    show_lines((m.JUDGED_LEGEND,))


def _get_judged_share(row: Mapping[str, Any]) -> float | None:
    """Return judged@k of a row of `summarize`; None for a measure of one label."""
    return row["judged"] if row["measure"].label is None else None


# As many as fit beside each other; rows for other programs have all measures.
_MAX_SHOWN_MEASURES = 6


def _show_topics(rows: Rows, evaluations: Sequence[Evaluation]) -> None:
    """Print the rows of `_list_topics`, in a table for each aspect and run."""
    measures = list(evaluations[-1].estimates)
    for aspect in dict.fromkeys(measure.aspect for measure in measures):
        of_aspect = [measure for measure in measures if measure.aspect == aspect]
        for evaluation in evaluations:
            rows_of_run = [row for row in rows if row["run"] == evaluation.name]
            _show_topics_of_run(rows_of_run, evaluation, of_aspect)


def _show_topics_of_run(rows: Rows, evaluation: Evaluation, measures: Sequence[Measure]) -> None:
    """Print the rows of a run by the measures of one aspect; name measures that do not fit."""
    aspect = measures[0].aspect
    below = describe_coverage([evaluation], aspect)
    if not below:
        # A first stage labels nothing.
        return

    shown = measures[:_MAX_SHOWN_MEASURES]
    left_out = measures[_MAX_SHOWN_MEASURES:]
    if left_out:
        names = ", ".join(measure.short_text for measure in left_out)
        below.append(f"further measures, with --format json or tsv: {names}")

    columns = [Column(measure.short_text, value=str(measure)) for measure in shown]
    show_table(
        [Column("topic"), *columns],
        [row for row in rows if not isnan(row[str(shown[0])])],
        title=f"{aspect}: {evaluation.name}",
        below=below,
    )
    print()


HtmlOption = Annotated[
    Path | None,
    typer.Option(
        "--html", help="Write a page as well, with 2 to 8 runs side by side (report.html, say)."
    ),
]


@s.takes_settings("dataset")
@o.takes_qrels
def compare(
    given: s.GivenSettings,
    qrels_files: o.QrelsFiles,
    runs: m.RunsArgument,
    task: m.TaskOption = None,
    output: FormatOption = Format.TABLE,
    html: HtmlOption = None,
    overwrite: o.OverwriteOption = False,
) -> None:
    """Compare runs with the first: differences, intervals and tests.

    The table has 95 % intervals, and the topics won, tied and lost. p is that of a two-sided paired
    randomisation test over topics; p Holm is corrected for the number of runs compared with the
    baseline, measure by measure.

    Only topics that --limit-topics or --topic left in all runs count; one of these that a run lacks
    counts 0.

    Without qrels, those of the last evaluation or the runs' dataset are used. Stances are compared
    over the documents that both runs label (@5: over the first 5 of each). Notes on standard error
    are those of `evaluate`.
    """
    if len(runs) < 2:
        raise UsageError(f"{runs[0]} alone cannot be compared; name another run")
    known = find_task(task, runs, given.get("dataset"))
    files, qrels = m.require_qrels(known, runs, qrels_files, given.get("dataset"))
    measured = m.given_runs(runs, qrels, known)
    compared = [run for run in measured if not run.first_stage]
    if html is not None:
        _check_page(html, overwrite, runs, files, len(compared))

    qrels = select_topics(qrels, [run.run for run in compared])
    evaluations = m.evaluate_runs(compared, qrels, m.find_recall_depth(measured))
    comparison = compare_runs(evaluations[0], evaluations[1:])
    notes = [*m.list_fitted(compared, qrels), *comparison.notes]

    # Errors of the page are raised before anything is printed.
    page_note: str | None = None
    if html is not None:
        page_note = _write_page(
            html,
            evaluations=evaluations,
            folders=[run.folder for run in compared],
            task=known,
            files=files,
            comparison=replace(comparison, notes=notes),
        )

    rows = comparison.rows.to_dict("records")
    if output is Format.TABLE:
        _show_changes(rows, evaluations)
        show_lines(m.describe_qrels(files))
    else:
        print_rows(output, rows)
    m.print_notes(qrels, evaluations, compared, *notes, *describe_intervals(rows))
    if page_note is not None:
        say(output, page_note)


def _check_page(
    page: Path,
    overwrite: bool,
    runs: Sequence[Path],
    qrels_files: Mapping[str, Path],
    run_count: int,
) -> None:
    """Raise an error if a page must not be written there, or cannot show so many runs."""
    # Imported here, as below, since only pages need what makes them.
    from touche_llm.report.comparison_page import check_number

    run_files = [find_run_file(run) for run in runs]
    check_output(page, overwrite, (*run_files, *qrels_files.values()))
    check_number(run_count)


def _write_page(
    page: Path,
    *,
    evaluations: Sequence[Evaluation],
    folders: Sequence[Path | None],
    task: Task,
    files: Mapping[str, Path],
    comparison: RunComparison,
) -> str:
    """Write the page of a comparison, and return a line about it."""
    from touche_llm.report.comparison_page import gather_comparison
    from touche_llm.report.page import render, write_page

    content = gather_comparison(
        evaluations=evaluations,
        paths=folders,
        task=task,
        judged_by=files,
        comparison=comparison,
        top=_TOP,
    )
    size = write_page(render(content), page)
    return f"page: {page} ({len(content.topics):,} topics, {size:,} bytes)"


_COMPARED = (
    m.MEASURE,
    m.RUN_COLUMN,
    Column("value", drop=2),
    Column("baseline", drop=3, value="baseline_value"),
    *m.CHANGE_COLUMNS,
    Column(
        "judged@k",
        value=lambda row: (
            f"{format_value(row['judged'], digits=3)}/{format_value(row['baseline_judged'], digits=3)}"
        ),
    ),
)


def _show_changes(rows: Rows, evaluations: Sequence[Evaluation]) -> None:
    m.show_aspects(
        rows, _COMPARED, evaluations, f", change from the baseline {rows[0]['baseline']}"
    )
    show_lines(
        (
            "value, baseline: over the topics that both runs have; for stances over the documents that both label, "
            "but for @5 over the first 5 of each",
            "p Holm: paired randomisation test, corrected for the number of runs; --format json has the uncorrected p",
            "+/=/-: topics in which the run is better than the baseline, equal, and worse",
            f"{m.JUDGED_LEGEND}; of the run and of the baseline",
        )
    )


RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="The folder of a run that was judged with log-probabilities."
    ),
]
StanceOption = Annotated[Path, typer.Option("--stance", help="The stance qrels: qid 0 doc LABEL.")]
OutOption = Annotated[
    Path, typer.Option("--out", help="The YAML file to write, for --config of a run.")
]


def calibrate(
    run: RunArgument,
    stance: StanceOption,
    out: OutOption,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Fit the thresholds of stance labels that take no side, and measure them on other topics.

    The table compares labels by thresholds with the most probable ones. Each document is labelled
    with thresholds that were fitted on other topics, in a cross-validation of five parts; the file
    holds those fitted on all topics.
    """
    check_output(out, overwrite, [stance])
    directory = RunDirectory(run)
    directory.check_finished("judge")
    task = get_task(directory.read_config().task)
    if not task.no_stances:
        stances = "all its stances take a side" if task.stances else "it has no stances"
        raise UsageError(f"{task.name}: {stances}, so it has no thresholds")

    examples = _read_examples(directory, stance, task)
    labels_by_method = {
        "by thresholds, held out": label_held_out(examples, task),
        "most probable": choose_stances(examples.probabilities, {}, task),
    }
    rows: list[dict[str, Any]] = []
    for method, labels in labels_by_method.items():
        rows.append(_make_calibration_row(method, labels, examples, task))
    topics = list(dict.fromkeys(examples.topics))
    thresholds = fit_thresholds(examples.probabilities, examples.truth, task)
    write_thresholds(out, thresholds, topics, examples.prompt)

    emit(output, rows, _CALIBRATION)
    held_out, most_probable = rows
    if held_out["macro_f1"] <= most_probable["macro_f1"]:
        say(output, "the thresholds do not help on held-out topics; leave them out")
    fitted = ", ".join(f"{label} {value:.3g}" for label, value in thresholds.items())
    say(
        output,
        f"thresholds fitted on all {len(topics)} topics, for other topics, in {out}: {fitted}",
    )


def _read_examples(directory: RunDirectory, stance_file: Path, task: Task) -> CalibrationSet:
    """Read the judged documents of a run whose stance people labelled; warn of unusable ones."""
    examples = read_calibration_set(
        judgments=directory.judgments_file,
        readings=directory.stances_file,
        truth=read_qrels({STANCE: stance_file}, task).stances,
        task=task,
    )
    if examples.without:
        CommandProgress().warn(
            f"judged documents without probabilities in the run, not used: {len(examples.without):,} "
            f"(topic and document): {shorten(examples.without)}"
        )
    return examples


_CALIBRATION = (
    Column("labels", is_text=True),
    Column("topics"),
    Column("documents"),
    Column("macro-F1", value="macro_f1", digits=3),
    Column("accuracy", digits=3),
)


def _make_calibration_row(
    method: str, labels: Labels, examples: CalibrationSet, task: Task
) -> dict[str, Any]:
    """Return the row of one way of labelling, with its scores by the labels of people.

    Args:
        method: Name of the way of labelling.
        labels: Its label of each example.
        examples: Examples, with the labels of people.
        task: Task of the labels.
    """
    macro_f1, accuracy = score_labels(labels, examples.truth, task)
    return {
        "labels": method,
        "topics": len(set(examples.topics)),
        "documents": len(examples.topics),
        "macro_f1": macro_f1,
        "accuracy": accuracy,
    }
