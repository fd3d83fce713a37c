"""Measures on a page: values, differences and plots of runs with the same qrels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from pandas import DataFrame

from touche_llm.data.measure import Measure
from touche_llm.evaluation.measures import Evaluation, describe_coverage, list_headline
from touche_llm.evaluation.significance import describe_intervals

# Fewer topics have no plot: their values are in their headings.
_MIN_PLOTTED = 3
# A topic without a value comes after those with a value of 0.
_NO_VALUE = -1.0


@dataclass(frozen=True, slots=True)
class Interval:
    """95 % interval over topics; both ends are NaN if it is unknown."""

    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether there are enough topics for an interval."""
        return not math.isnan(self.low)


@dataclass(frozen=True, slots=True)
class Change:
    """Difference of a run from the baseline by one measure.

    Attributes:
        difference: Value of the run minus that of the baseline.
        interval: Interval of the difference.
        p: P-value of the paired randomisation test; NaN if there was none.
        p_holm: P-value with Holm's correction.
        wins: Number of topics with a higher value.
        ties: Number of topics with the same value.
        losses: Number of topics with a lower value.
        topics: Number of topics that both runs have.
        documents: Number of documents that both runs label; None for a mean over topics.
    """

    difference: float
    interval: Interval
    p: float
    p_holm: float
    wins: int
    ties: int
    losses: int
    topics: int
    documents: int | None

    @property
    def is_tested(self) -> bool:
        """Whether there is a p-value."""
        return not math.isnan(self.p)


@dataclass(frozen=True, slots=True)
class RunMeasure:
    """Value of a run by one measure.

    Attributes:
        value: Value over all topics or documents; NaN if it is undefined.
        interval: Interval of the value.
        n: Number of topics, or of documents for stances.
        judged: Share of judged documents at the measure's cutoff.
        change: Difference from the baseline; None for the baseline and for measures without a test.
    """

    value: float
    interval: Interval
    n: int
    judged: float
    change: Change | None

    @property
    def is_defined(self) -> bool:
        """Whether there is a value."""
        return not math.isnan(self.value)


@dataclass(frozen=True, slots=True)
class MeasureRow:
    """Values of the runs by one measure; None for a run without the measure."""

    measure: Measure
    runs: list[RunMeasure | None]


@dataclass(frozen=True, slots=True)
class PlottedTopic:
    """Values of one topic in a plot, by the index of the run.

    Runs without the topic are left out.
    """

    topic_id: str
    values: dict[int, float]


@dataclass(frozen=True, slots=True)
class TopicPlot:
    """Plot of a measure by topic."""

    measure: Measure
    topics: list[PlottedTopic]


@dataclass(frozen=True, slots=True)
class MeasureTable:
    """What a page shows about the measures of its runs.

    Attributes:
        headline: Rows at the top of the page.
        rows: Rows of all measures.
        by_topic: Values by topic of each run, for the headline measures that all runs have.
        plots: Plots of these values.
        coverage: Lines on the judged topics.
        notes: Limitations of the numbers.
    """

    headline: list[MeasureRow]
    rows: list[MeasureRow]
    by_topic: dict[Measure, list[dict[str, float]]]
    plots: list[TopicPlot]
    coverage: list[str]
    notes: list[str]


def tabulate_measures(evaluations: Sequence[Evaluation], differences: DataFrame) -> MeasureTable:
    """Return what a page shows about the measures of runs.

    Args:
        evaluations: Evaluations with the same qrels; the first one has all measures.
        differences: Rows of `significance.compare`.
    """
    summaries = [evaluation.summary() for evaluation in evaluations]
    values = _read_values(summaries, _read_changes(differences))
    # A row for each measure, with a column for each run; None in the column of a run without a
    # value.
    rows: dict[Measure, MeasureRow] = {}
    for measure, values_by_run in values.items():
        columns = [values_by_run.get(evaluation.name) for evaluation in evaluations]
        rows[measure] = MeasureRow(measure, columns)

    headline = list_headline(evaluations[0].qrels)
    by_topic = _collect_topic_values(evaluations, headline)
    records = [frame.to_dict("records") for frame in (*summaries, differences)]
    return MeasureTable(
        headline=[rows[measure] for measure in headline],
        rows=list(rows.values()),
        by_topic=by_topic,
        plots=_plot_measures(by_topic),
        coverage=_list_coverage(evaluations, headline),
        notes=describe_intervals(chain.from_iterable(records)),
    )


def _read_changes(differences: DataFrame) -> dict[tuple[str, Measure], Change]:
    """Return the differences in the rows of `significance.compare`, by run and measure."""
    rows = differences.to_dict("records")
    return {(row["run"], row["measure"]): read_change(row) for row in rows}


def _read_values(
    summaries: Iterable[DataFrame], changes: Mapping[tuple[str, Measure], Change]
) -> dict[Measure, dict[str, RunMeasure]]:
    """Return the values in the rows of `Evaluation.summary`, by measure and run.

    Args:
        summaries: Rows of each run.
        changes: Differences from the baseline, by run and measure.
    """
    values: dict[Measure, dict[str, RunMeasure]] = {}
    for summary in summaries:
        for row in summary.to_dict("records"):
            name = row["run"]
            measure = row["measure"]
            values_of_measure = values.setdefault(measure, {})
            values_of_measure[name] = _read_value(row, changes.get((name, measure)))
    return values


def read_change(row: Mapping[str, float]) -> Change:
    """Return the difference in a row of `significance.compare`."""
    documents = row["documents"]
    return Change(
        difference=row["difference"],
        interval=Interval(row["low"], row["high"]),
        p=row["p"],
        p_holm=row["p_holm"],
        wins=int(row["wins"]),
        ties=int(row["ties"]),
        losses=int(row["losses"]),
        topics=int(row["n"]),
        documents=None if math.isnan(documents) else int(documents),
    )


def _read_value(row: Mapping[str, float], change: Change | None) -> RunMeasure:
    """Return the value in a row of `Evaluation.summary`, with its difference."""
    return RunMeasure(
        value=row["value"],
        interval=Interval(row["low"], row["high"]),
        n=int(row["n"]),
        judged=row["judged"],
        change=change,
    )


def _collect_topic_values(
    evaluations: Sequence[Evaluation], measures: Sequence[Measure]
) -> dict[Measure, list[dict[str, float]]]:
    """Return the values by topic of each run, by measure; without measures that a run lacks."""
    by_topic: dict[Measure, list[dict[str, float]]] = {}
    for measure in measures:
        if all(measure in evaluation.estimates for evaluation in evaluations):
            estimates = [evaluation.estimates[measure] for evaluation in evaluations]
            by_topic[measure] = [estimate.values_by_topic() for estimate in estimates]
    return by_topic


def _plot_measures(by_topic: Mapping[Measure, list[dict[str, float]]]) -> list[TopicPlot]:
    """Return a plot for each measure with enough topics."""
    plots: list[TopicPlot] = []
    for measure, values in by_topic.items():
        topics = plot_topics(values)
        if topics:
            plots.append(TopicPlot(measure, topics))
    return plots


def plot_topics(runs: Sequence[Mapping[str, float]]) -> list[PlottedTopic]:
    """Return the topics of a plot, by descending value of the first run.

    Args:
        runs: Values by topic of each run.

    Returns:
        Topics with their values; those that the first run lacks come last. Empty for too few.
    """
    topic_ids = dict.fromkeys(topic_id for values in runs for topic_id in values)
    if len(topic_ids) < _MIN_PLOTTED:
        return []

    first_values = {topic_id: runs[0].get(topic_id, _NO_VALUE) for topic_id in topic_ids}
    ordered = sorted(topic_ids, key=lambda topic_id: -first_values[topic_id])
    return [_plot_topic(topic_id, runs) for topic_id in ordered]


def _plot_topic(topic_id: str, runs: Sequence[Mapping[str, float]]) -> PlottedTopic:
    """Return the values of one topic, by the index of the run."""
    values = {index: run[topic_id] for index, run in enumerate(runs) if topic_id in run}
    return PlottedTopic(topic_id, values)


def _list_coverage(evaluations: Sequence[Evaluation], headline: Sequence[Measure]) -> list[str]:
    """Return lines on the judged topics of each aspect that is measured."""
    coverage: list[str] = []
    for measure in headline:
        for line in describe_coverage(evaluations, measure.aspect):
            coverage.append(f"{measure.aspect}: {line}")
    return coverage
