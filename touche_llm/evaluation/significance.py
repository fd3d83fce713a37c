"""Estimates and their significance: confidence intervals and tests of differences."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from touche_llm.data.measure import Measure
from touche_llm.evaluation.intervals import (
    SHARE,
    TIE,
    Array,
    Bounds,
    Formula,
    compute_jackknife_interval,
)
from touche_llm.evaluation.randomisation import compute_p, sum_swapped

if TYPE_CHECKING:
    from pandas import DataFrame

# Minimum topics of an interval, and the topics from which intervals hold whatever the shape of the
# values; docs/reference/measures.md has the simulated coverage behind them.
MIN_TOPICS = 5
HOLDING_TOPICS = 25


@dataclass(frozen=True, slots=True)
class Estimate:
    """The value of a measure, as a function of sums over topics.

    Attributes:
        topics: Topics that contribute.
        counts: Contribution of each topic, of shape (topics, counts).
        formula: Computes the value from sums over topics, (…, counts) to (…).
        documents: Number of pooled documents behind the value; None if the value is the mean of the
            values by topic.
        bounds: Range of the value; None if it has none.
    """

    topics: tuple[str, ...]
    counts: Array
    formula: Formula
    documents: int | None = None
    bounds: Bounds | None = SHARE

    @property
    def is_mean(self) -> bool:
        """Whether the value is the mean of the values by topic."""
        return self.documents is None

    @property
    def n(self) -> int:
        """Number of documents, or of topics if the value is a mean over topics."""
        return len(self.topics) if self.documents is None else self.documents

    @property
    def value(self) -> float:
        """Value over all topics; NaN without topics."""
        if not self.topics:
            return math.nan
        return float(self.formula(self.counts.sum(axis=0)))

    def by_topic(self) -> Array:
        """Return the value of each topic alone, of shape (topics,)."""
        return self.formula(self.counts)

    def values_by_topic(self) -> dict[str, float]:
        """Return the value of each topic alone, by topic."""
        return dict(zip(self.topics, self.by_topic().tolist(), strict=True))

    def restrict_to(self, topics: Collection[str]) -> Estimate:
        """Return the estimate over these topics alone, in their order; all must contribute to it."""
        rows = {topic: row for row, topic in enumerate(self.topics)}
        counts = self.counts[[rows[topic] for topic in topics]]
        return replace(self, topics=tuple(topics), counts=counts)


class EstimatePair(NamedTuple):
    """Estimates of a run and of the baseline that it is compared with."""

    run: Estimate
    baseline: Estimate


def list_common_topics(one: Estimate, other: Estimate) -> list[str]:
    """Return the topics that contribute to both estimates, in the order of the first."""
    others = set(other.topics)
    return [topic for topic in one.topics if topic in others]


def subtract_estimates(one: Estimate, other: Estimate) -> Estimate:
    """Return the estimate of the difference of two values over the same topics.

    Each topic contributes the counts of the first estimate, followed by those of the second; the
    formula takes them apart again.
    """
    counts_of_one = one.counts.shape[1]
    return Estimate(
        topics=one.topics,
        counts=np.concatenate([one.counts, other.counts], axis=1),
        formula=_subtract_formulas(one.formula, other.formula, counts_of_one),
        documents=one.documents,
        bounds=None if one.bounds is None else one.bounds.of_difference,
    )


def _subtract_formulas(one: Formula, other: Formula, counts_of_one: int) -> Formula:
    """Return a formula that computes the value of the first formula minus that of the second.

    Args:
        one: First formula.
        other: Second formula.
        counts_of_one: How many of the counts are for the first formula; the others, which follow
            them, are for the second.
    """

    def compute_difference(counts: Array) -> Array:
        value = one(counts[..., :counts_of_one])
        other_value = other(counts[..., counts_of_one:])
        return np.asarray(value - other_value)

    return compute_difference


def estimate_mean(values: Mapping[str, float], bounds: Bounds | None = SHARE) -> Estimate:
    """Estimate the mean of values by topic, which are within the bounds.

    Each topic contributes two counts, its value and a 1. Over all topics, the sum of the values
    divided by the sum of the ones is the mean.
    """
    ones = np.ones(len(values))
    counts = np.column_stack([list(values.values()), ones])
    return Estimate(topics=tuple(values), counts=counts, formula=ratio, bounds=bounds)


def ratio(counts: Array) -> Array:
    """Divide the first count by the second, (…, 2) to (…)."""
    return np.asarray(counts[..., 0] / counts[..., 1])


def compute_interval(estimate: Estimate) -> tuple[float, float]:
    """Compute the 95 % interval over topics, see `compute_jackknife_interval`.

    Both ends are NaN for fewer than `MIN_TOPICS` topics, and if the value is undefined.
    """
    if len(estimate.topics) < MIN_TOPICS:
        return math.nan, math.nan
    return compute_jackknife_interval(estimate.counts, estimate.formula, estimate.bounds)


def describe_intervals(rows: Iterable[Mapping[str, float]]) -> list[str]:
    """Return notes on values that have too few topics for an interval, or for a reliable one.

    Args:
        rows: Rows with the columns `value`, `low` (NaN without an interval) and `topics`; if a row
            has no column `topics`, its column `n` is the number of topics.
    """
    defined_rows = [row for row in rows if not math.isnan(row["value"])]
    rows_with_interval = [row for row in defined_rows if not math.isnan(row["low"])]

    notes: list[str] = []
    if len(rows_with_interval) < len(defined_rows):
        notes.append(f"no 95 % interval where topics are few: it needs {MIN_TOPICS}")

    topic_counts = [_count_topics(row) for row in rows_with_interval]
    too_low_counts = [topics for topics in topic_counts if topics < HOLDING_TOPICS]
    if too_low_counts:
        notes.append(describe_few_topics(min(too_low_counts)))
    return notes


def _count_topics(row: Mapping[str, float]) -> int:
    """Return the number of topics behind a row of `describe_intervals`."""
    return int(row["topics"] if "topics" in row else row["n"])


def describe_few_topics(topics: int) -> str:
    """Return a note on 95 % intervals over so many topics, fewer than `HOLDING_TOPICS`."""
    return (
        f"95 % intervals over {topics} topics are too narrow where values are skewed; they hold from "
        f"{HOLDING_TOPICS} topics on"
    )


def compare(
    baseline: str,
    runs: Mapping[str, Mapping[Measure, Estimate]],
    *,
    common: Mapping[str, Mapping[Measure, EstimatePair]] | None = None,
) -> DataFrame:
    """Compare each run with the baseline by each measure, over the topics that contribute to both.

    Args:
        baseline: Name of the run that the others are compared with.
        runs: Estimates by run and measure; all runs have the same measures.
        common: By run and measure, the run's and the baseline's estimates over their common
            documents; they replace those in `runs`.

    Returns:
        A row for each other run and measure. Undefined values, as for too few topics, are NaN.
        Columns:

        - `run`, `baseline`, `measure`: What is compared.
        - `value`, `baseline_value`: Values over the common topics, so they may differ from those of
          each run alone.
        - `difference`: `value` minus `baseline_value`.
        - `low`, `high`: 95 % interval of the difference, see `compute_interval`.
        - `p`: P-value of a two-sided paired randomisation test, which swaps the two results of each
          topic at random; exact for few topics.
        - `p_holm`: `p` with Holm's correction over the runs that are compared by this measure.
        - `wins`, `ties`, `losses`: Number of topics in which the run is better, equal, and worse.
        - `n`: Number of topics.
        - `documents`: Number of documents of the estimates in `common`; NaN without these.
    """
    # Imported in the functions, since commands that print notes alone import this module, and
    # pandas is slow.
    import pandas as pd

    if common is None:
        common = {}
    rows: list[dict[str, object]] = []
    for measure in runs[baseline]:
        rows_of_measure = _compare_by_measure(measure, baseline, runs, common)
        rows += _add_corrected_p(rows_of_measure)
    return pd.DataFrame(rows, columns=_COLUMNS)


_COLUMNS = (
    "run",
    "baseline",
    "measure",
    "value",
    "baseline_value",
    "difference",
    "low",
    "high",
    "p",
    "p_holm",
    "wins",
    "ties",
    "losses",
    "n",
    "documents",
)


def _compare_by_measure(
    measure: Measure,
    baseline: str,
    runs: Mapping[str, Mapping[Measure, Estimate]],
    common: Mapping[str, Mapping[Measure, EstimatePair]],
) -> list[dict[str, object]]:
    """Compare each run with the baseline by one measure; return rows of `compare` without `p_holm`.

    Arguments as for `compare`.
    """
    rows: list[dict[str, object]] = []
    for name, estimates in runs.items():
        if name == baseline:
            continue
        names = {"run": name, "baseline": baseline, "measure": measure}
        pair = EstimatePair(estimates[measure], runs[baseline][measure])
        common_pair = common.get(name, {}).get(measure)
        rows.append({**names, **_compare_runs(pair, common_pair)})
    return rows


def _compare_runs(pair: EstimatePair, common_pair: EstimatePair | None) -> dict[str, float | None]:
    """Compare a run with the baseline by a measure; return columns of `compare`.

    Args:
        pair: Estimates of the run and of the baseline over the documents of each.
        common_pair: Estimates over the documents that both have in common, which replace `pair`;
            None to compare over the documents of each.
    """
    if common_pair is None:
        return {**_compare_pair(pair), "documents": math.nan}
    return {**_compare_pair(common_pair), "documents": common_pair.run.documents}


def _add_corrected_p(rows: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return rows with an additional column, `p_holm`: their p, corrected for the number of rows."""
    corrected = correct_holm(np.array([row["p"] for row in rows]))
    return [{**row, "p_holm": p} for row, p in zip(rows, corrected.tolist(), strict=True)]


def _compare_pair(pair: EstimatePair) -> dict[str, float]:
    """Compare two estimates of a measure over their common topics; return columns of `compare`."""
    topics = list_common_topics(pair.run, pair.baseline)
    run = pair.run.restrict_to(topics)
    baseline = pair.baseline.restrict_to(topics)
    difference = subtract_estimates(run, baseline)

    low, high = compute_interval(difference)
    # The randomisation test needs the sums of each run over the topics that a resample swaps.
    swap_sums = sum_swapped(run.counts)
    baseline_swap_sums = sum_swapped(baseline.counts)
    return {
        "value": run.value,
        "baseline_value": baseline.value,
        "difference": difference.value,
        "low": low,
        "high": high,
        "p": compute_p(run.formula, swap_sums, baseline_swap_sums),
        "n": len(topics),
        **_count_wins(difference),
    }


def _count_wins(difference: Estimate) -> dict[str, float]:
    """Count topics by which of two runs is better; return the columns `wins`, `ties` and `losses`.

    Args:
        difference: Estimate of the value of the run minus that of the baseline.
    """
    differences_by_topic = difference.by_topic()
    # Equal values can differ by rounding errors, which are smaller than `TIE`.
    wins = int((differences_by_topic > TIE).sum())
    losses = int((differences_by_topic < -TIE).sum())
    ties = len(difference.topics) - wins - losses
    return {"wins": wins, "ties": ties, "losses": losses}


def correct_holm(p: Array) -> Array:
    """Apply Holm's step-down correction to p-values of shape (tests,).

    The smallest p is multiplied by the number of tests, the next one by one less, and so on; a
    corrected value is at least as large as those of smaller p. For example, 0.01, 0.04 and 0.03
    become 0.03, 0.06 and 0.06. Undefined values stay NaN and do not count as tests.
    """
    defined = np.flatnonzero(~np.isnan(p))
    tests = len(defined)
    if tests < 2:
        return p

    # `multipletests` of statsmodels does the same, with a collection of all garbage that takes
    # longer than the test.
    order = np.argsort(p[defined])
    # Indices of the defined values, the smallest value first.
    ascending = defined[order]
    factors = np.arange(tests, 0, -1)
    never_falling = np.maximum.accumulate(p[ascending] * factors)

    corrected = np.full_like(p, np.nan)
    corrected[ascending] = np.minimum(never_falling, 1.0)
    return corrected
