"""Measures of several runs, compared with a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from touche_llm.report.run_measures import MeasuredValue, by_topic, get_unjudged, read_value, select_headline

if TYPE_CHECKING:
    from pandas import DataFrame

    from touche_llm.evaluation.measures import Evaluation


@dataclass(frozen=True, slots=True)
class BaselineDifference:
    """The difference between a run and the baseline in one measure.

    Attributes:
        value: Value of the run minus that of the baseline.
        p: p-value of the paired randomisation test.
        p_holm: p-value with Holm's correction for the number of runs.
        wins: Number of topics in which the run is better.
        ties: Number of topics in which both are equal.
        losses: Number of topics in which the run is worse.
        topics: Number of compared topics, those of both runs.
        documents: Number of compared documents, those that both runs label; None for measures of the ranking.
    """

    value: MeasuredValue
    p: float
    p_holm: float
    wins: int
    ties: int
    losses: int
    topics: int
    documents: int | None


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """The value of one measure for one run.

    Attributes:
        value: Value of the measure.
        n: Number of topics, or of documents for the stance.
        difference: Difference from the baseline; None for the baseline, and for measures that are not compared.
        unjudged: Number of unjudged documents above the cutoff, over all topics.
        bounds: Lowest and highest possible value if these were judged; None where unknown.
    """

    value: MeasuredValue
    n: int
    difference: BaselineDifference | None
    unjudged: int
    bounds: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class MeasureComparison:
    """One measure of all runs.

    Attributes:
        name: Name of the measure, as in `measures.evaluate_run`.
        headline: Whether the page shows the measure at the top.
        runs: Values, one per run.
        by_topic: Values by topic, one mapping per run; empty unless the measure is a headline measure.
    """

    name: str
    headline: bool
    runs: list[MeasureResult]
    by_topic: list[dict[str, float]]

    @property
    def topics(self) -> set[str]:
        """Return the topics with a value in at least one run."""
        return {topic for of_run in self.by_topic for topic in of_run}


def compare_measures(evaluations: Sequence[Evaluation], differences: DataFrame) -> list[MeasureComparison]:
    """Combine the evaluations of several runs, measure by measure.

    Args:
        evaluations: Evaluations of the runs, all by the same qrels.
        differences: Differences from the baseline, as returned by `measures.compare_runs`.
    """
    changes = {(row["run"], row["measure"]): _difference(row) for row in differences.to_dict("records")}
    tables = [{row["measure"]: row for row in evaluation.summary().to_dict("records")} for evaluation in evaluations]
    headlines = select_headline(evaluations[0].qrels)
    measures = []
    for name in tables[0]:
        results = [
            MeasureResult(
                read_value(table[name]),
                table[name]["n"],
                changes.get((evaluation.name, name)),
                *get_unjudged(evaluation, name),
            )
            for evaluation, table in zip(evaluations, tables, strict=True)
        ]
        headline = name in headlines
        topics = [by_topic(evaluation, name) for evaluation in evaluations] if headline else []
        measures.append(MeasureComparison(name, headline, results, topics))
    return measures


def _difference(row: Mapping[Any, Any]) -> BaselineDifference:
    documents = row["documents"]
    return BaselineDifference(
        MeasuredValue(row["difference"], row["low"], row["high"]),
        row["p"],
        row["p_holm"],
        row["wins"],
        row["ties"],
        row["losses"],
        row["n"],
        None if documents != documents else int(documents),
    )
