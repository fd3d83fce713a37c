"""The command that measures runs, by topic too, and places them among published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.emit import (
    TEXT_WIDTH,
    Column,
    Format,
    FormatOption,
    format_interval,
    show_lines,
    show_table,
)
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.errors import DataError, UsageError, describe_os_error
from touche_llm.evaluation.measures import describe_coverage
from touche_llm.evaluation.qrels import STANCE
from touche_llm.evaluation.significance import describe_missing_intervals
from touche_llm.pipeline.run import find_task
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.run_overview import record_evaluation
from touche_llm.prompt_lab.holdout import record_evaluations
from touche_llm.tasks.published import LEADERBOARD_FILE, PublishedRun, Table, find_place, read_tables
from touche_llm.tasks.task import Task

if TYPE_CHECKING:
    from pandas import DataFrame

    from touche_llm.evaluation.measures import Evaluation


_INTERVAL = Column("95 % interval", value=lambda row: format_interval(row["low"], row["high"]))


def standings(task: Task, summary: DataFrame, evaluations: Sequence[Evaluation]) -> tuple[DataFrame, list[str]]:
    """Return the place of each run that has a value over all judged topics, by each measure with a published table.

    Returns:
        The rows of `summary` that can be compared with a table, with the additional columns `place` (from 1; the better
        place of a tie), `best_place` and `worst_place` (the bounds if the unjudged documents among the first 5 were
        judged; only for nDCG@5), `judged@5` (the share of judged documents; not for the stance), `published` (number of
        runs in the table), `ahead` and `ahead_value` (the published run before it), `behind` and `behind_value` (the
        one after it, or with the same value), and `source`; and a line for each run without a place, which was
        measured on some of the judged topics only.

    Raises:
        UsageError: Nothing is published for the task or these measures, or no run has a place.
    """
    import pandas as pd

    found = {evaluation.name: evaluation for evaluation in evaluations}
    rows = []
    unplaced: dict[str, None] = {}
    for each in read_tables(task):
        for row in summary[summary["measure"] == _ours(each, task)].dropna(subset="value").to_dict(orient="records"):
            covered = found[row["run"]].coverage(each.measure)
            if covered.left_out:
                unplaced[f"{row['run']}: no place, since it was measured on {covered}"] = None
                continue
            at = find_place(each, row["value"])
            ahead = each.runs[at - 2] if at > 1 else None
            behind = each.runs[at - 1] if at <= len(each.runs) else None
            rows.append(
                row
                | {"place": at}
                | _reach(each, task, found[row["run"]])
                | {"published": len(each.runs)}
                | {"ahead": _name(ahead), "ahead_value": ahead and ahead.value}
                | {"behind": _name(behind), "behind_value": behind and behind.value}
                | {"source": each.url}
            )
    if not rows and unplaced:
        raise UsageError(
            f"--leaderboard: {'; '.join(unplaced)}; the published runs are over all topics: rank all of them, or leave "
            "--leaderboard out"
        )
    if not rows:
        measures = ", ".join(_ours(each, task) for each in read_tables(task))
        if not measures:
            raise UsageError(
                f"--leaderboard: {task.name} has no published results; write them into "
                f"{task.folder / LEADERBOARD_FILE}, or leave --leaderboard out"
            )
        raise UsageError(
            f"--leaderboard: no value to compare with the published tables of {task.name}; they have {measures}"
        )
    return pd.DataFrame(rows), list(unplaced)


def _reach(table: Table, task: Task, evaluation: Evaluation) -> dict[str, float]:
    """Return the range of places that unjudged documents leave open; NaN if unknown."""
    from touche_llm.evaluation.measures import JUDGED

    bounds = evaluation.bounds.get(_ours(table, task))
    share = evaluation.estimates.get(f"{table.measure} {JUDGED}")
    return {
        "best_place": nan if bounds is None else find_place(table, bounds.highest),
        "worst_place": nan if bounds is None else find_place(table, bounds.lowest),
        JUDGED: nan if share is None else share.value,
    }


def _show_standings(frame: DataFrame, evaluations: Sequence[Evaluation]) -> None:
    """Print the places, each with its neighbours among the published runs."""

    def name(row: Mapping[str, Any], side: str) -> str:
        return f"{row[side]} {row[f'{side}_value']:.3f}" if row[side] else ""

    def describe_reach(row: Mapping[str, Any]) -> str:
        is_open = row["worst_place"] > row["best_place"]
        return f"{row['best_place']:.0f} to {row['worst_place']:.0f}" if is_open else ""

    columns = [Column("measure", is_text=True), m.RUN_COLUMN]
    columns += [Column("place", value=lambda row: f"{row['place']} of {row['published'] + 1}"), Column("value")]
    columns += [_INTERVAL, Column("n", drop=1), Column("if judged", drop=2, value=describe_reach)]
    columns += [Column(side, drop=3, cut=TEXT_WIDTH, value=partial(name, side=side)) for side in ("ahead", "behind")]
    show_table(columns, frame.to_dict("records"), blanks_repeats=True)
    show_lines(
        (
            *frame["source"].unique(),
            "nDCG: the official measure, where unjudged documents count 0; touche_nDCG@5 drops them and has no place",
            "n: topics (for the stance: documents) judged here; the published values are over all topics of the task",
            "if judged: the places that are possible if the unjudged documents were judged; the published runs were",
        )
    )


def _ours(table: Table, task: Task) -> str:
    """Return the name of our measure for a published table."""
    return f"{table.measure} {task.measures[table.measure]}"


def _name(run: PublishedRun | None) -> str | None:
    return None if run is None else f"{run.team}: {run.tag}"


_NO_FIRST_STAGE = (
    "no first stage to compare with: the runs are not folders of this program; name the run that they rerank with "
    "--first-stage"
)


@s.takes_settings("dataset")
@o.takes_qrels
def evaluate(
    given: s.GivenSettings,
    qrels_files: o.QrelsFiles,
    runs: m.RunsArgument,
    task: m.TaskOption = None,
    output: FormatOption = Format.TABLE,
    per_topic: Annotated[
        bool, typer.Option("--per-topic", help="A row for each topic instead, a column for each measure.")
    ] = False,
    leaderboard: Annotated[
        bool, typer.Option("--leaderboard", help="The place of each run among the published ones instead.")
    ] = False,
    confusion: Annotated[
        bool, typer.Option("--confusion", help="Counts of true stances and stances of the run instead.")
    ] = False,
    first_stage: Annotated[
        Path | None,
        typer.Option("--first-stage", metavar="RUN", help="The first stage of the runs, if another program made them."),
    ] = None,
    depth: m.DepthOption = None,
    run_topics: m.RunTopicsOption = False,
) -> None:
    """Measure runs with qrels, with 95 % intervals over topics.

    A judged topic that a run lacks counts 0. A run made with --limit-topics or --topic is measured by the topics that
    were chosen, and one that it lost counts 0.

    A run of this program is shown with its first stage, candidates.run.txt in its folder. The folder keeps the qrels'
    paths and the values (evaluation.yaml), so that evaluate, compare and report need no qrels later.

    Notes on standard error: missing topics, qrels that disagree, imputed stances, what unjudged documents could change.
    """
    if per_topic + leaderboard + confusion > 1:
        raise UsageError("--per-topic, --leaderboard, --confusion: each prints its own table; give one of them")
    known = find_task(task, runs, given.get("dataset"))
    files, qrels = m.require_qrels(known, runs, qrels_files, given.get("dataset"))
    if confusion and not qrels.stances:
        raise UsageError("--confusion: needs true stances; give their qrels with --stance")
    measured = m.given_runs(runs, qrels, known, first_stage)
    if run_topics:
        qrels = m.select_common_topics(qrels, measured, shared=True)
    evaluations = m.evaluate_runs(measured, qrels, depth or m.find_recall_depth(measured))
    record_evaluations((run.folder for run in measured), qrels, CommandProgress().warn)
    if not run_topics or len(runs) == 1:
        _record(measured, evaluations, known, files)
    notes = [*m.list_fitted(measured, qrels), *_describe_judging(measured, evaluations)]
    if per_topic:
        frame, show = _by_topic(evaluations), _show_topics
    elif confusion:
        frame, show = _confusion(evaluations), _show_confusion
    else:
        frame, show = summarize(evaluations), show_summary
        if leaderboard:
            frame, unplaced = standings(known, frame, evaluations)
            show = _show_standings
            notes += unplaced
        notes += describe_missing_intervals(frame.to_dict("records"))
    if output is Format.TABLE:
        show(frame, evaluations)
        show_lines(m.describe_qrels(files))
    else:
        m.print_frame(frame, files, output)
    alone = [] if any(each.first_stage for each in measured) or not qrels.grades else [_NO_FIRST_STAGE]
    m.print_notes(qrels, evaluations, measured, *notes, *alone)


def _record(given: Sequence[m.Given], evaluations: Sequence[Evaluation], task: Task, files: Mapping[str, Path]) -> None:
    """Keep qrels and values in the folders of the runs, for later commands."""
    for run, evaluation in zip(given, evaluations, strict=True):
        if run.folder is None or run.first_stage:
            continue
        directory, warn = RunDirectory(run.folder), CommandProgress().warn
        try:
            with directory.lock("evaluate", warn):
                record_evaluation(directory, task, files, evaluation)
        except (OSError, DataError, UsageError) as error:
            problem = describe_os_error(error) if isinstance(error, OSError) else error
            warn(f"the evaluation is not kept for later commands: {problem}")


def _describe_judging(given: Sequence[m.Given], evaluations: Sequence[Evaluation]) -> list[str]:
    """Return notes on unjudged documents behind differences from the first stage, which comes before its runs."""
    from touche_llm.evaluation.measures import describe_judging

    notes: list[str] = []
    baseline = None
    for each, evaluation in zip(given, evaluations, strict=True):
        if each.first_stage:
            baseline = evaluation
        elif baseline is not None:
            notes += describe_judging(evaluation, baseline)
    return notes


def summarize(evaluations: Sequence[Evaluation]) -> DataFrame:
    """Return the estimates of all runs, measure by measure."""
    import pandas as pd

    frame = pd.concat([evaluation.summary() for evaluation in evaluations], ignore_index=True)
    # The order is that of the run, since its first stage has fewer measures.
    places = {measure: place for place, measure in enumerate(evaluations[-1].estimates | evaluations[-1].labels)}
    return frame.sort_values("measure", key=lambda names: names.map(places), kind="stable", ignore_index=True)


def _by_topic(evaluations: Sequence[Evaluation]) -> DataFrame:
    """Return a row for each run and topic, with the columns `run`, `topic`, the measures and their judged@k."""
    import pandas as pd

    from touche_llm.evaluation.measures import name_judged

    rows: dict[tuple[str, str], dict[str, str | float]] = {}
    for evaluation in evaluations:
        for each in evaluation.per_topic().itertuples(index=False):
            row = rows.setdefault((evaluation.name, each.topic), {"run": evaluation.name, "topic": each.topic})
            row |= {name_judged(each.measure): each.judged, each.measure: each.value}
    measures = list(evaluations[-1].estimates)
    columns = dict.fromkeys(["run", "topic", *measures, *map(name_judged, measures)])
    return pd.DataFrame(list(rows.values()), columns=list(columns))


def _confusion(evaluations: Sequence[Evaluation]) -> DataFrame:
    """Return a row for each run, true label and label of the run, with the number of `documents`."""
    import pandas as pd

    from touche_llm.evaluation.stance_measures import count_confusion

    rows = [
        (evaluation.name, true, chosen, documents)
        for evaluation in evaluations
        if evaluation.qrels.stances
        for true, row in zip(
            evaluation.qrels.labels, count_confusion(evaluation.run, evaluation.qrels).tolist(), strict=True
        )
        for chosen, documents in zip(evaluation.qrels.labels, row, strict=True)
    ]
    return pd.DataFrame(rows, columns=["run", "true", "chosen", "documents"])


def show_summary(frame: DataFrame, evaluations: Sequence[Evaluation]) -> None:
    """Print the rows of `summarize`."""
    columns = [m.MEASURE, m.RUN_COLUMN, Column("value"), _INTERVAL, Column("n", drop=1)]
    columns.append(Column("judged@k", value="judged", digits=3))
    m.show_aspects(frame.to_dict("records"), columns, evaluations)
    show_lines((m.JUDGED_LEGEND,))


def _show_confusion(frame: DataFrame, evaluations: Sequence[Evaluation]) -> None:
    found = {evaluation.name: evaluation for evaluation in evaluations}
    head = "true \N{DOWNWARDS ARROW} run \N{RIGHTWARDS ARROW}"
    for run, rows in frame.groupby("run", sort=False):
        table = rows.pivot(index="true", columns="chosen", values="documents")
        labels = rows["true"].unique()
        cells = [{head: label, **table.loc[label].to_dict()} for label in labels]
        below = describe_coverage([found[str(run)]], STANCE)
        show_table([Column(head, is_text=True), *map(Column, labels)], cells, title=f"stance: {run}", below=below)
        print()


def _show_topics(frame: DataFrame, evaluations: Sequence[Evaluation]) -> None:
    found = {evaluation.name: evaluation for evaluation in evaluations}
    measures = list(frame.columns[2:])
    for aspect in dict.fromkeys(measure.split(" ", 1)[0] for measure in measures):
        chosen = [measure for measure in measures if measure.startswith(f"{aspect} ")]
        # The first measures are the usual ones.
        columns = [Column("topic"), *(Column(m.strip_aspect(name), drop) for drop, name in enumerate(chosen))]
        for run, rows in frame.groupby("run", sort=False):
            if below := describe_coverage([found[str(run)]], aspect):  # a first stage labels nothing
                kept = rows[["topic", *chosen]].dropna(how="all", subset=chosen)
                kept.columns = [column.name for column in columns]
                show_table(columns, kept.to_dict("records"), title=f"{aspect}: {run}", below=below)
                print()
