"""The command that says how good runs are, topic by topic too, and where they would stand among published ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from touche_llm.cli import figures as f
from touche_llm.cli.output import Format, FormatOption, plain
from touche_llm.cli.standings import show_standings, standings
from touche_llm.errors import UsageError
from touche_llm.evaluation.measures import describe_coverage
from touche_llm.evaluation.qrels import STANCE
from touche_llm.pipeline.run_folder import find_task

if TYPE_CHECKING:
    from pandas import DataFrame

    from touche_llm.evaluation.measures import Evaluation

_NO_FIRST_STAGE = (
    "no first stage is known to stand beside the runs; name a run's folder, or the run that it was made from with "
    "--first-stage"
)


def evaluate(
    runs: f.RunsArgument,
    task: f.TaskOption = None,
    relevance: f.RelevanceOption = None,
    quality: f.QualityOption = None,
    stance: f.StanceOption = None,
    coherence: f.CoherenceOption = None,
    output: FormatOption = Format.TABLE,
    per_topic: Annotated[
        bool, typer.Option("--per-topic", help="A row for each topic instead, a column for each measure.")
    ] = False,
    leaderboard: Annotated[
        bool, typer.Option("--leaderboard", help="Where each run would stand among the published ones instead.")
    ] = False,
    confusion: Annotated[
        bool, typer.Option("--confusion", help="How many documents of each true stance have which in the run instead.")
    ] = False,
    first_stage: Annotated[
        Path | None,
        typer.Option("--first-stage", help="The first stage of the runs, where they are of another program."),
    ] = None,
    depth: f.DepthOption = None,
    run_topics: f.RunTopicsOption = False,
) -> None:
    """Measure runs by judgments of people, with 95 % intervals from a bootstrap over topics.

    A judged topic that a run lacks counts 0. A run made with --limit-topics or --topic is measured by its own topics.

    Beside a run of this program stands its first stage, candidates.run.txt of its folder.

    Notes on standard error: missing topics, qrels that disagree, imputed stances, what unjudged documents could change.
    """
    if per_topic + leaderboard + confusion > 1:
        raise UsageError("--per-topic, --leaderboard and --confusion are tables of their own; ask for one of them")
    known = find_task(task, runs)
    qrels = f.given_qrels(known.name, relevance=relevance, quality=quality, stance=stance, coherence=coherence)
    if confusion and not qrels.stances:
        raise UsageError("--confusion is about stances; give --stance with their qrels")
    given = f.given_runs(runs, qrels, known, first_stage)
    if run_topics:
        qrels = f.of_all_runs(qrels, given)
    evaluations = f.evaluate_runs(given, qrels, depth or f.recall_depth(given))
    unplaced: list[str] = []
    if per_topic:
        frame = _by_topic(evaluations)
    elif confusion:
        frame = _confusion(evaluations)
    else:
        frame = _summary(evaluations)
        if leaderboard:
            frame, unplaced = standings(known.name, frame, evaluations)
    if output is not Format.TABLE:
        f.print_frame(frame, output)
    elif per_topic:
        _show_topics(frame, evaluations)
    elif confusion:
        _show_confusion(frame, evaluations)
    elif leaderboard:
        show_standings(known.name, frame, evaluations)
    else:
        _show_summary(frame, evaluations)
    alone = [] if any(each.first_stage for each in given) or not qrels.grades else [_NO_FIRST_STAGE]
    f.tell(qrels, evaluations, given, *f.limits(given), *f.fitted(given, qrels), *unplaced, *alone)


def _summary(evaluations: Sequence[Evaluation]) -> DataFrame:
    """The figures of all runs, measure by measure."""
    import pandas as pd

    frame = pd.concat([evaluation.summary() for evaluation in evaluations], ignore_index=True)
    # The order is that of the run, since its first stage has fewer measures.
    places = {measure: place for place, measure in enumerate(evaluations[-1].estimates | evaluations[-1].labels)}
    return frame.sort_values("measure", key=lambda names: names.map(places), kind="stable", ignore_index=True)


def _by_topic(evaluations: Sequence[Evaluation]) -> DataFrame:
    """A row for each run and topic, with the columns `run`, `topic` and the measures."""
    import pandas as pd

    rows: dict[tuple[str, str], dict[str, str | float]] = {}
    for evaluation in evaluations:
        for each in evaluation.per_topic().itertuples(index=False):
            row = rows.setdefault((evaluation.name, each.topic), {"run": evaluation.name, "topic": each.topic})
            row[each.measure] = each.value
    return pd.DataFrame(list(rows.values()), columns=["run", "topic", *evaluations[-1].estimates])


def _confusion(evaluations: Sequence[Evaluation]) -> DataFrame:
    """A row for each run, true label and label of the run, with the number of `documents`."""
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
    runs = list(frame["run"].unique())
    for aspect, rows in f.by_aspect(frame):
        figures = [(f.spelled(row.value), f.spelled_interval(row.low, row.high), f"{row.n:,}") for row in rows]
        measures = [f.short(row.measure) for row in rows]
        columns = ("value", "95 % interval", "n")
        below = describe_coverage(evaluations, aspect)
        if len(runs) == 1:
            f.show_figures(f"{aspect}: {runs[0]}", columns, list(zip(measures, figures, strict=True)), below)
        else:
            names = [row.run for row in rows]
            f.show_figures(aspect, columns, f.grouped(zip(measures, names, figures, strict=True)), below)


def _show_confusion(frame: DataFrame, evaluations: Sequence[Evaluation]) -> None:
    found = {evaluation.name: evaluation for evaluation in evaluations}
    for run, rows in frame.groupby("run", sort=False):
        labels = list(rows["true"].unique())
        table = f.plain_table()
        table.add_column("true \N{DOWNWARDS ARROW} run \N{RIGHTWARDS ARROW}")
        for label in labels:
            table.add_column(label, justify="right")
        for true, of_label in rows.groupby("true", sort=False):
            table.add_row(str(true), *(f"{documents:,}" for documents in of_label["documents"]))
        f.show(f"stance: {run}", table, describe_coverage([found[str(run)]], STANCE))


def _show_topics(frame: DataFrame, evaluations: Sequence[Evaluation]) -> None:
    found = {evaluation.name: evaluation for evaluation in evaluations}
    measures = list(frame.columns[2:])
    for aspect in dict.fromkeys(measure.split(" ", 1)[0] for measure in measures):
        chosen = [measure for measure in measures if measure.startswith(f"{aspect} ")]
        for run, rows in frame.groupby("run", sort=False):
            below = describe_coverage([found[str(run)]], aspect)
            if not below:
                continue  # a first stage labels nothing
            table = f.plain_table()
            table.add_column("topic")
            for measure in chosen:
                table.add_column(f.short(measure), justify="right", min_width=6)
            for topic, *values in rows[["topic", *chosen]].itertuples(index=False, name=None):
                if not all(map(math.isnan, values)):
                    table.add_row(plain(topic), *map(f.spelled, values))
            f.show(f"{aspect}: {run}", table, below)
