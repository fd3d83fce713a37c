"""The command that says how good runs are, topic by topic too, and where they would stand among published ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from touche_llm.cli import figures as f
from touche_llm.cli import options as o
from touche_llm.cli.standings import show_standings, standings
from touche_llm.errors import UsageError

if TYPE_CHECKING:
    from pandas import DataFrame

    from touche_llm.evaluation.measures import Evaluation


def evaluate(
    runs: f.RunsArgument,
    task: f.TaskOption,
    relevance: f.RelevanceOption = None,
    quality: f.QualityOption = None,
    stance: f.StanceOption = None,
    coherence: f.CoherenceOption = None,
    output: f.FormatOption = f.Format.TABLE,
    per_topic: Annotated[
        bool, typer.Option("--per-topic", help="A row for each topic instead, a column for each measure.")
    ] = False,
    leaderboard: Annotated[
        bool, typer.Option("--leaderboard", help="Where each run would stand among the published ones instead.")
    ] = False,
    depth: f.DepthOption = None,
) -> None:
    """Measure runs by judgments of people, with 95 % intervals from a bootstrap over topics.

    Beside the run of a folder stands its first stage, candidates.run.txt.

    Notes on standard error: missing topics, qrels that disagree, imputed stances, what unjudged documents could change.
    """
    if per_topic and leaderboard:
        raise UsageError("--per-topic and --leaderboard are two tables; ask for one of them")
    qrels = f.given_qrels(task, relevance=relevance, quality=quality, stance=stance, coherence=coherence)
    evaluations = f.evaluate_runs(f.given_runs(runs, qrels, first_stages=True), qrels, depth)
    if per_topic:
        frame = _by_topic(evaluations)
    else:
        frame = _summary(evaluations)
        if leaderboard:
            frame = standings(task, frame)
    if output is not f.Format.TABLE:
        f.print_frame(frame, output)
    elif per_topic:
        _show_topics(frame)
    elif leaderboard:
        show_standings(task, frame)
    else:
        _show_summary(frame)
    f.tell(qrels, evaluations, runs)


def _summary(evaluations: Sequence[Evaluation]) -> DataFrame:
    """The figures of all runs, measure by measure."""
    import pandas as pd

    frame = pd.concat([evaluation.summary() for evaluation in evaluations], ignore_index=True)
    # The order is that of the run, since its first stage has fewer measures.
    places = {measure: place for place, measure in enumerate(evaluations[-1].figures)}
    return frame.sort_values("measure", key=lambda names: names.map(places), kind="stable", ignore_index=True)


def _by_topic(evaluations: Sequence[Evaluation]) -> DataFrame:
    """A row for each run and topic, with the columns `run`, `topic` and the measures."""
    import pandas as pd

    rows: dict[tuple[str, str], dict[str, str | float]] = {}
    for evaluation in evaluations:
        for measure, figure in evaluation.figures.items():
            for topic, value in zip(figure.topics, figure.by_topic().tolist(), strict=True):
                row = rows.setdefault((evaluation.name, topic), {"run": evaluation.name, "topic": topic})
                row[measure] = value
    return pd.DataFrame(list(rows.values()), columns=["run", "topic", *evaluations[-1].figures])


def _show_summary(frame: DataFrame) -> None:
    runs = list(frame["run"].unique())
    for aspect, rows in f.by_aspect(frame):
        figures = [(f.spelled(row.value), f.spelled_interval(row.low, row.high), f"{row.n:,}") for row in rows]
        measures = [f.short(row.measure) for row in rows]
        columns = ("value", "95 % interval", "n")
        if len(runs) == 1:
            f.show_figures(f"{aspect}: {runs[0]}", columns, list(zip(measures, figures, strict=True)))
        else:
            names = [row.run for row in rows]
            f.show_figures(aspect, columns, f.grouped(zip(measures, names, figures, strict=True)))


def _show_topics(frame: DataFrame) -> None:
    measures = list(frame.columns[2:])
    for aspect in dict.fromkeys(measure.split(" ", 1)[0] for measure in measures):
        chosen = [measure for measure in measures if measure.startswith(f"{aspect} ")]
        for run, rows in frame.groupby("run", sort=False):
            table = f.plain_table()
            table.add_column("topic")
            for measure in chosen:
                table.add_column(f.short(measure), justify="right", min_width=6)
            for topic, *values in rows[["topic", *chosen]].itertuples(index=False, name=None):
                if not all(map(math.isnan, values)):
                    table.add_row(o.plain(topic), *map(f.spelled, values))
            f.show(f"{aspect}: {run}", table)
