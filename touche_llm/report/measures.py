"""Measures on a page: values, differences and plots of runs that were measured with the same qrels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from pandas import DataFrame

from touche_llm.data.measure import Measure
from touche_llm.evaluation.measures import Evaluation, describe_coverage, list_headline
from touche_llm.evaluation.significance import describe_missing_intervals

# Fewer topics have no plot: their values are in their headings.
_MIN_PLOTTED = 3


def plot_topics(values: Sequence[Mapping[str, float]]) -> dict[str, dict[int, float]]:
    """Return the values of a measure by topic and place of the run, best topic of the first run first.

    It is empty for too few topics. Topics that the first run lacks come last.
    """
    topics = dict.fromkeys(topic for of_run in values for topic in of_run)
    if len(topics) < _MIN_PLOTTED:
        return {}
    return {
        topic: {place: of_run[topic] for place, of_run in enumerate(values) if topic in of_run}
        for topic in sorted(topics, key=lambda topic: -values[0].get(topic, -1.0))
    }


def tabulate_measures(evaluations: Sequence[Evaluation], differences: DataFrame) -> SimpleNamespace:
    """Return what pages show about the measures of runs, all by the same qrels.

    The first run has all measures.

    These are the `measures`, and the `headline` ones, at the top of a page; the
    `rows` of `Evaluation.summary` and the `changes`, rows of `significance.compare`, both by run
    and measure; for headline measures of all runs their values `by_topic`, run by run, and their
    `plots`; `coverage` and `notes`.
    """
    rows: list[dict[str, Any]] = []
    for evaluation in evaluations:
        rows += evaluation.summary().to_dict("records")
    changes = differences.to_dict("records")

    headline = list_headline(evaluations[0].qrels)
    by_topic: dict[Measure, list[dict[str, float]]] = {}
    plots: dict[Measure, dict[str, dict[int, float]]] = {}
    for measure in headline:
        if not all(measure in evaluation.estimates for evaluation in evaluations):
            continue
        estimates = [evaluation.estimates[measure] for evaluation in evaluations]
        by_topic[measure] = [estimate.values_by_topic() for estimate in estimates]
        plot = plot_topics(by_topic[measure])
        if plot:
            plots[measure] = plot

    coverage: list[str] = []
    for measure in headline:
        lines = describe_coverage(evaluations, measure.aspect)
        coverage += [f"{measure.aspect}: {line}" for line in lines]

    return SimpleNamespace(
        measures=list(dict.fromkeys(row["measure"] for row in rows)),
        headline=headline,
        rows={(row["run"], row["measure"]): SimpleNamespace(**row) for row in rows},
        changes={(row["run"], row["measure"]): SimpleNamespace(**row) for row in changes},
        by_topic=by_topic,
        plots=plots,
        coverage=coverage,
        notes=describe_missing_intervals([*rows, *changes]),
    )
