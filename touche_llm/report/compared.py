"""The figures of several runs, held against one of them, as their page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from touche_llm.report.measured import Value, by_topic, headline_of, unjudged_of, value_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from touche_llm.evaluation.measures import Evaluation


@dataclass(frozen=True, slots=True)
class Difference:
    """How a run differs from the baseline by one measure.

    Attributes:
        value: the run's less the baseline's, with its interval.
        p: of the paired randomisation test.
        p_holm: that with Holm's correction for the number of runs.
        wins, ties, losses: topics in which the run is better, as good, and worse.
        topics: Over how many it is: those that take part in both runs.
        documents: over how many it is, where these are the documents that both runs label; else None.
    """

    value: Value
    p: float
    p_holm: float
    wins: int
    ties: int
    losses: int
    topics: int
    documents: int | None


@dataclass(frozen=True, slots=True)
class RunFigure:
    """One run's figure by one measure.

    Attributes:
        value: with its interval.
        n: topics, or documents for the stance.
        difference: None for the baseline, and for measures that are not compared.
        unjudged: documents at the top of all topics that nobody judged.
        bounds: lowest and highest value that judging these could give; None where that is not known.
    """

    value: Value
    n: int
    difference: Difference | None
    unjudged: int
    bounds: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class ComparedMeasure:
    """One measure of all runs.

    Attributes:
        name: as `measures.evaluate_run` names it.
        headline: whether it is one of those that come first.
        runs: a figure for each run, in their order.
        by_topic: of a headline measure, for each run the value of each topic that takes part; else empty.
    """

    name: str
    headline: bool
    runs: list[RunFigure]
    by_topic: list[dict[str, float]]

    @property
    def topics(self) -> set[str]:
        """The topics that have a value in some run."""
        return {topic for of_run in self.by_topic for topic in of_run}


def compared(evaluations: Sequence[Evaluation], differences: DataFrame) -> list[ComparedMeasure]:
    """All measures of some runs.

    Args:
        evaluations: of each run, by the same judgments.
        differences: of `measures.compare_runs`.
    """
    changes = {(row["run"], row["measure"]): _difference(row) for row in differences.to_dict("records")}
    tables = [{row["measure"]: row for row in each.summary().to_dict("records")} for each in evaluations]
    headlines = headline_of(evaluations[0].qrels)
    measures = []
    for name in tables[0]:
        figures = [
            RunFigure(value_of(table[name]), table[name]["n"], changes.get((each.name, name)), *unjudged_of(each, name))
            for each, table in zip(evaluations, tables, strict=True)
        ]
        headline = name in headlines
        topics = [by_topic(each, name) for each in evaluations] if headline else []
        measures.append(ComparedMeasure(name, headline, figures, topics))
    return measures


def _difference(row: Mapping[Any, Any]) -> Difference:
    documents = row["documents"]
    return Difference(
        Value(row["difference"], row["low"], row["high"]),
        row["p"],
        row["p_holm"],
        row["wins"],
        row["ties"],
        row["losses"],
        row["n"],
        None if documents != documents else int(documents),
    )
