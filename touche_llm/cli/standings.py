"""Places of runs among published ones."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING, Any

from touche_llm.cli.tables import TEXT_WIDTH, Column, format_interval, format_value, show_lines, show_table
from touche_llm.errors import UsageError
from touche_llm.evaluation.measures import describe_coverage
from touche_llm.tasks.base import Task
from touche_llm.tasks.leaderboard import LEADERBOARD_FILE, PublishedRun, Table, find_place, read_tables

if TYPE_CHECKING:
    from pandas import DataFrame

    from touche_llm.evaluation.measures import Evaluation

# Published runs that are shown before and after each of ours, besides the best one.
_NEIGHBOURS = 2
_GAP = ("\N{HORIZONTAL ELLIPSIS}", "", "", "", "", "")


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

    bounds = evaluation.bounds[evaluation.bounds["measure"] == _ours(table, task)]
    known = not bounds.empty
    share = evaluation.estimates.get(f"{table.measure} {JUDGED}")
    return {
        "best_place": find_place(table, bounds["highest"].mean()) if known else nan,
        "worst_place": find_place(table, bounds["lowest"].mean()) if known else nan,
        JUDGED: nan if share is None else share.value,
    }


def show_standings(task: Task, places: DataFrame, evaluations: Sequence[Evaluation]) -> None:
    """Print each table around the runs, with the source; published values have three decimals."""
    columns = [Column("place"), Column("run", cut=TEXT_WIDTH), Column("value"), Column("95 % interval")]
    columns += [Column("n", drop=1), Column("if judged", drop=2)]
    for table in read_tables(task):
        ours = list(places[places["measure"] == _ours(table, task)].sort_values("value", ascending=False).itertuples())
        if not ours:
            continue
        names = {row.run for row in ours}
        near = range(-1 - _NEIGHBOURS, _NEIGHBOURS - 1)
        shown = {0} | {row.place + offset for row in ours for offset in near}
        rows: list[Sequence[str]] = []
        before = -1
        for number, run in enumerate(table.runs):
            while ours and ours[0].place == number + 1:
                rows.append(_format_row(ours.pop(0)))
            if number in shown:
                if number > before + 1:
                    rows.append(_GAP)
                at, interval = find_place(table, run.value), format_interval(*_interval(run), digits=3)
                judged = "" if run.judged is None else f"{run.judged:,}"
                rows.append((str(at), _name(run) or "", f"{run.value:.3f}", interval, judged, ""))
                before = number
        rows += [_GAP] * (before < len(table.runs) - 1) + [_format_row(row) for row in ours]
        title = f"{_ours(table, task)} among the {len(table.runs)} published runs, {table.published_as}"
        placed = [found for found in evaluations if found.name in names]
        below = [table.url, *describe_coverage(placed, table.measure)]
        show_table(columns, rows, title=title, below=below)
        print()
    official = dict.fromkeys(places["measure"].str.split(" ").str[1])
    ndcg = [name for name in official if name.startswith("nDCG")]
    show_lines(
        (
            *(
                f"{name}: the official measure, in which unjudged documents count 0. touche_nDCG@5 drops them, as the "
                "organisers' script does, and has no place."
                for name in ndcg
            ),
            "n: topics (for the stance: documents) judged here; the published values are over all topics of the task.",
            "if judged: the places that are possible if the unjudged documents were judged. A place is rough: other "
            "topics, other documents and unjudged ones move it. The published runs were judged.",
        )
    )


def _format_row(row: Any) -> Sequence[str]:
    reach = f"{row.best_place:.0f} to {row.worst_place:.0f}" if row.worst_place > row.best_place else ""
    value, interval = format_value(row.value), format_interval(row.low, row.high)
    return (f"\N{RIGHTWARDS ARROW} {row.place}", row.run, value, interval, f"{row.n:,}", reach)


def _ours(table: Table, task: Task) -> str:
    """Return the name of our measure for a published table."""
    return f"{table.measure} {task.definition.measures[table.measure]}"


def _name(run: PublishedRun | None) -> str | None:
    return None if run is None else f"{run.team}: {run.tag}"


def _interval(run: PublishedRun) -> tuple[float, float]:
    return (float("nan"),) * 2 if run.low is None or run.high is None else (run.low, run.high)
