"""Where runs would stand among the published ones: as rows for other programs, and as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING, Any

from touche_llm.cli import figures as f
from touche_llm.cli.output import plain
from touche_llm.errors import UsageError
from touche_llm.evaluation.leaderboard import PublishedRun, Table, find_board, find_place
from touche_llm.evaluation.measures import describe_coverage

if TYPE_CHECKING:
    from pandas import DataFrame

    from touche_llm.evaluation.measures import Evaluation

# Published runs that are shown before and after each of ours, beside the best one.
_NEIGHBOURS = 2


def standings(task: str, summary: DataFrame, evaluations: Sequence[Evaluation]) -> tuple[DataFrame, list[str]]:
    """The place of each run that has a value over all judged topics, by each measure with a published table.

    Args:
        task: the task's name.
        summary: the runs' figures, see `evaluation.evaluate`.
        evaluations: of the runs.

    Returns:
        the rows of `summary` that can be held against a table, with the further columns `place` (from 1; of the places
        of a tie the better one), `best_place` and `worst_place` (those that it could have if the unjudged documents
        among the first 5 were judged; only of nDCG@5), `judged@5` (the share of these that are; not of the stance),
        `published` (runs of the table), `ahead` and `ahead_value` (the published run before
        it), `behind` and `behind_value` (the one after it, or of the same value), and `source`; and a line for each run
        without a place, since it was measured by some of the judged topics.

    Raises:
        UsageError: nothing is published of the task, or by any of these measures, or no run has a place.
    """
    import pandas as pd

    found = {evaluation.name: evaluation for evaluation in evaluations}
    rows = []
    unplaced: dict[str, None] = {}
    for each in find_board(task).tables:
        for row in summary[summary["measure"] == _ours(each)].dropna(subset="value").to_dict(orient="records"):
            covered = found[row["run"]].coverage(each.measure)
            if covered.is_partial:
                unplaced[f"{row['run']}: no place, since it was measured by {covered}"] = None
                continue
            at = find_place(task, each.measure, row["value"])
            ahead = each.runs[at - 2] if at > 1 else None
            behind = each.runs[at - 1] if at <= len(each.runs) else None
            rows.append(
                row
                | {"place": at}
                | _reach(task, each, found[row["run"]])
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
        measures = ", ".join(_ours(each) for each in find_board(task).tables)
        raise UsageError(f"no value to hold against the published tables of {task}, which are by {measures}")
    return pd.DataFrame(rows), list(unplaced)


def _reach(task: str, table: Table, evaluation: Evaluation) -> dict[str, float]:
    """The places that unjudged documents leave open; NaN where that is not known."""
    from touche_llm.evaluation.measures import JUDGED

    bounds = evaluation.bounds[evaluation.bounds["measure"] == _ours(table)]
    known = not bounds.empty
    share = evaluation.estimates.get(f"{table.measure} {JUDGED}")
    return {
        "best_place": find_place(task, table.measure, bounds["highest"].mean()) if known else nan,
        "worst_place": find_place(task, table.measure, bounds["lowest"].mean()) if known else nan,
        JUDGED: nan if share is None else share.value,
    }


def show_standings(task: str, places: DataFrame, evaluations: Sequence[Evaluation]) -> None:
    """Print each table around the runs, with the source; published values have three decimals."""
    for each in find_board(task).tables:
        ours = list(places[places["measure"] == _ours(each)].sort_values("value", ascending=False).itertuples())
        if not ours:
            continue
        names = {row.run for row in ours}
        shown = {0} | {
            number
            for row in ours
            for number in range(row.place - 1 - _NEIGHBOURS, row.place - 1 + _NEIGHBOURS)
            if 0 <= number < len(each.runs)
        }
        table = f.plain_table()
        table.add_column("place", justify="right", no_wrap=True)
        table.add_column("run")
        for column in ("value", "95 % interval"):
            table.add_column(column, justify="right", no_wrap=True)
        before = -1
        for number, run in enumerate(each.runs):
            while ours and ours[0].place == number + 1:
                _add_ours(table, ours.pop(0))
            if number in shown:
                if number > before + 1:
                    table.add_row("…")
                at, interval = find_place(task, each.measure, run.value), f.spelled_interval(*_interval(run), digits=3)
                judged = "" if run.judged is None else f" (n = {run.judged:,})"
                table.add_row(str(at), plain(f"{_name(run)}{judged}"), f"{run.value:.3f}", interval)
                before = number
        if before < len(each.runs) - 1:
            table.add_row("…")
        for row in ours:
            _add_ours(table, row)
        title = f"{_ours(each)} among the {len(each.runs)} published runs, {each.published_as}\nsource: {each.url}"
        placed = [found for found in evaluations if found.name in names]
        f.show(title, table, describe_coverage(placed, each.measure))
    print("n: topics (for the stance: documents) judged here; the published values are over all topics of the task.")
    print("A place is rough: other topics, other documents and unjudged ones move it. The published runs were judged.")


def _add_ours(table: Any, row: Any) -> None:
    reach = f", judged: {row.best_place:.0f} to {row.worst_place:.0f}" if row.worst_place > row.best_place else ""
    cells = (f"→ {row.place}", plain(f"{row.run} (n = {row.n:,}{reach})"), f.spelled(row.value))
    table.add_row(*cells, f.spelled_interval(row.low, row.high), style="bold")


def _ours(table: Table) -> str:
    """The name of the figure that is held against a published table."""
    return table.ours if table.measure == "stance" else f"{table.measure} {table.ours}"


def _name(run: PublishedRun | None) -> str | None:
    return None if run is None else f"{run.team}: {run.tag}"


def _interval(run: PublishedRun) -> tuple[float, float]:
    return (float("nan"),) * 2 if run.low is None or run.high is None else (run.low, run.high)
