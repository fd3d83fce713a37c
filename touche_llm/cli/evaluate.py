"""The command that measures runs, by topic too, and places them among published ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from touche_llm.cli import measured_runs as m
from touche_llm.cli import options as o
from touche_llm.cli import setting_options as s
from touche_llm.cli.output import Format, FormatOption
from touche_llm.cli.progress import CommandProgress
from touche_llm.cli.standings import show_standings, standings
from touche_llm.cli.tables import Column, format_interval, format_value, show_lines, show_table
from touche_llm.errors import DataError, UsageError, describe_os_error
from touche_llm.evaluation.measures import describe_coverage
from touche_llm.evaluation.notes import describe_missing_intervals
from touche_llm.evaluation.qrels import STANCE
from touche_llm.pipeline.recorded_evaluation import record_evaluation
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.run_lookup import find_task
from touche_llm.prompt_lab.holdout import record_evaluations
from touche_llm.tasks.base import Task

if TYPE_CHECKING:
    from pandas import DataFrame

    from touche_llm.evaluation.measures import Evaluation

_NO_FIRST_STAGE = (
    "no first stage to compare with: the runs are not folders of this program; name the run that they rerank with "
    "--first-stage"
)


@s.takes_settings("dataset")
@o.takes_qrels
def evaluate(
    given: s.Given,
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
    shown = measured
    if output is Format.TABLE:
        shown, evaluations = m.use_labels(measured, evaluations)
    notes = [*m.list_fitted(shown, qrels), *_describe_judging(shown, evaluations)]
    if per_topic:
        frame, show = _by_topic(evaluations), _show_topics
    elif confusion:
        frame, show = _confusion(evaluations), _show_confusion
    else:
        frame, show = _summary(evaluations), _show_summary
        if leaderboard:
            frame, unplaced = standings(known, frame, evaluations)
            show = partial(show_standings, known)
            notes += unplaced
        notes += describe_missing_intervals(frame.to_dict("records"))
    if output is Format.TABLE:
        show(frame, evaluations)
        m.show_legend(measured)
        show_lines(m.describe_qrels(files))
    else:
        m.print_frame(frame, files, output)
    alone = [] if any(each.first_stage for each in measured) or not qrels.grades else [_NO_FIRST_STAGE]
    m.print_notes(qrels, evaluations, shown, *notes, *alone)


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
    from touche_llm.evaluation.comparison import describe_judging

    notes: list[str] = []
    baseline = None
    for each, evaluation in zip(given, evaluations, strict=True):
        if each.first_stage:
            baseline = evaluation
        elif baseline is not None:
            notes += describe_judging(evaluation, baseline)
    return notes


def _summary(evaluations: Sequence[Evaluation]) -> DataFrame:
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
        (evaluation.name, true, chosen, int(documents))
        for evaluation in evaluations
        if evaluation.qrels.stances
        for (true, chosen), documents in count_confusion(evaluation.run, evaluation.qrels).stack().items()
    ]
    return pd.DataFrame(rows, columns=["run", "true", "chosen", "documents"])


def _show_summary(frame: DataFrame, evaluations: Sequence[Evaluation]) -> None:
    columns = (
        Column("measure", is_text=True),
        Column("run", is_text=True),
        *(Column("value"), Column("95 % interval"), Column("n", drop=1), Column("judged@k")),
    )
    for aspect, rows in frame.groupby(frame["measure"].str.partition(" ")[0], sort=False):
        cells = (
            (
                m.strip_aspect(row.measure),
                row.run,
                format_value(row.value),
                format_interval(row.low, row.high),
                f"{row.n:,}",
                format_value(row.judged, digits=3),
            )
            for row in rows.itertuples()
        )
        show_table(columns, m.blank_repeats(cells), title=aspect, below=describe_coverage(evaluations, aspect))
        print()
    show_lines((m.JUDGED_LEGEND,))


def _show_confusion(frame: DataFrame, evaluations: Sequence[Evaluation]) -> None:
    found = {evaluation.name: evaluation for evaluation in evaluations}
    for run, rows in frame.groupby("run", sort=False):
        labels = rows["true"].unique()
        columns = (Column("true \N{DOWNWARDS ARROW} run \N{RIGHTWARDS ARROW}", is_text=True), *map(Column, labels))
        cells = (
            (str(true), *(f"{documents:,}" for documents in of_label["documents"]))
            for true, of_label in rows.groupby("true", sort=False)
        )
        show_table(columns, cells, title=f"stance: {run}", below=describe_coverage([found[str(run)]], STANCE))
        print()


def _show_topics(frame: DataFrame, evaluations: Sequence[Evaluation]) -> None:
    found = {evaluation.name: evaluation for evaluation in evaluations}
    measures = list(frame.columns[2:])
    for aspect in dict.fromkeys(measure.split(" ", 1)[0] for measure in measures):
        chosen = [measure for measure in measures if measure.startswith(f"{aspect} ")]
        # The first measures are the usual ones.
        columns = (Column("topic"), *(Column(m.strip_aspect(each), drop) for drop, each in enumerate(chosen)))
        for run, rows in frame.groupby("run", sort=False):
            below = describe_coverage([found[str(run)]], aspect)
            if not below:
                continue  # a first stage labels nothing
            cells = (
                (topic, *map(format_value, values))
                for topic, *values in rows[["topic", *chosen]].itertuples(index=False, name=None)
                if not all(map(math.isnan, values))
            )
            show_table(columns, cells, title=f"{aspect}: {run}", below=below)
            print()
