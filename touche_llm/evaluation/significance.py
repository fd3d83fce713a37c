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
    """Return the estimate of the difference of two values over the same topics."""
    return Estimate(
        topics=one.topics,
        counts=np.concatenate([one.counts, other.counts], axis=1),
        formula=_subtract_formulas(one.formula, other.formula, one.counts.shape[1]),
        documents=one.documents,
        bounds=None if one.bounds is None else one.bounds.of_difference,
    )


def _subtract_formulas(one: Formula, other: Formula, width: int) -> Formula:
    """Return the formula of a difference, whose first `width` counts are those of the first."""

    def compute_difference(counts: Array) -> Array:
        value = one(counts[..., :width])
        other_value = other(counts[..., width:])
        return np.asarray(value - other_value)

    return compute_difference


def estimate_mean(values: Mapping[str, float], bounds: Bounds | None = SHARE) -> Estimate:
    """Estimate the mean of values by topic, which are within the bounds.

    Each topic contributes its value and a 1; the mean is the sum of the values divided by that of
    the ones.
    """
    counts = np.ones((len(values), 2))
    counts[:, 0] = list(values.values())
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
    """Return notes on values whose topics are too few for an interval, or for one that holds.

    Args:
        rows: Rows with the columns `value`, `low` and `topics`; without the latter `n` is the
            number of topics.
    """
    defined_rows = [row for row in rows if not math.isnan(row["value"])]
    rows_with_interval = [row for row in defined_rows if not math.isnan(row["low"])]

    notes: list[str] = []
    if len(rows_with_interval) < len(defined_rows):
        notes.append(f"no 95 % interval where topics are few: it needs {MIN_TOPICS}")

    topic_counts = [_count_topics(row) for row in rows_with_interval]
    fewest_topics = min(topic_counts, default=HOLDING_TOPICS)
    if fewest_topics < HOLDING_TOPICS:
        notes.append(describe_few_topics(fewest_topics))
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
        A row for each other run and measure, with the columns `run`, `baseline`, `measure`, `value`
        and `baseline_value` (over the common topics, so they may differ from those of each run
        alone), `difference` (the first minus the second), `low` and `high` (95 % interval of the
        difference, see `compute_interval`), `p` (two-sided paired randomisation test, which swaps
        the two results of each topic at random; exact for few topics), `p_holm` (Holm's correction
        over the runs that are compared by this measure), `wins`, `ties` and `losses` (topics), `n`
        (topics) and `documents` (of the estimates in `common`, else NaN). Undefined values, as for
        too few topics, are NaN.
    """
    # Imported in the functions, since commands that print notes alone import this module, and
    # pandas is slow.
    import pandas as pd

    others = [name for name in runs if name != baseline]
    rows: list[dict[str, object]] = []
    for measure, baseline_estimate in runs[baseline].items():
        rows_of_measure: list[dict[str, object]] = []
        for name in others:
            names = {"run": name, "baseline": baseline, "measure": measure}
            pair = EstimatePair(runs[name][measure], baseline_estimate)
            common_pair = None if common is None else common.get(name, {}).get(measure)
            rows_of_measure.append({**names, **_compare_runs(pair, common_pair)})
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


def _compare_runs(pair: EstimatePair, common_pair: EstimatePair | None) -> dict[str, float | None]:
    """Compare two runs by a measure; return columns of `compare`.

    Args:
        pair: Estimates of both.
        common_pair: Estimates over their common documents, which come first; None if all count.
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
    p = compute_p(run.formula, sum_swapped(run.counts), sum_swapped(baseline.counts))
    differences_by_topic = difference.by_topic()
    wins = int((differences_by_topic > TIE).sum())
    losses = int((differences_by_topic < -TIE).sum())
    return {
        "value": run.value,
        "baseline_value": baseline.value,
        "difference": difference.value,
        "low": low,
        "high": high,
        "p": p,
        "wins": wins,
        "ties": len(topics) - wins - losses,
        "losses": losses,
        "n": len(topics),
    }


def correct_holm(p: Array) -> Array:
    """Apply Holm's step-down correction to the defined values.

    The smallest p is multiplied by the number of tests, the next one by one less, and so on; a
    corrected value is at least as large as those of smaller p. Undefined ones stay NaN and do not
    count as tests.
    """
    is_defined = ~np.isnan(p)
    tests = int(is_defined.sum())
    if tests < 2:
        return p

    # `multipletests` of statsmodels does the same, with a collection of all garbage that takes
    # longer than the test.
    ascending = np.flatnonzero(is_defined)[np.argsort(p[is_defined])]
    factors = np.arange(tests, 0, -1)
    never_falling = np.maximum.accumulate(p[ascending] * factors)

    corrected = np.full_like(p, np.nan)
    corrected[ascending] = np.minimum(never_falling, 1.0)
    return corrected
