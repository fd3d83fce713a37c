"""Estimates and their significance: confidence intervals and tests of differences."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    def bounds_of_difference(self) -> Bounds | None:
        """Range of the difference of two values; None if it has none."""
        return None if self.bounds is None else self.bounds.of_difference

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
        return self.compute_value(self.topics)

    def by_topic(self) -> Array:
        """Return the value of each topic alone, of shape (topics,)."""
        return self.formula(self.counts)

    def values_by_topic(self) -> dict[str, float]:
        """Return the value of each topic alone, by topic."""
        return dict(zip(self.topics, self.by_topic().tolist(), strict=True))

    def select(self, topics: Collection[str]) -> Array:
        """Return the counts of these topics, in their order, (topics, counts).

        All must contribute to the estimate.
        """
        places = {topic: place for place, topic in enumerate(self.topics)}
        return self.counts[[places[topic] for topic in topics]]

    def compute_value(self, topics: Collection[str]) -> float:
        """Return the value over these topics, as for `select`; NaN without topics."""
        if not topics:
            return math.nan
        sums = self.select(topics).sum(axis=0)
        return float(self.formula(sums))


def list_common_topics(one: Estimate, other: Estimate) -> list[str]:
    """Return the topics that contribute to both estimates, in the order of the first."""
    others = set(other.topics)
    return [topic for topic in one.topics if topic in others]


def estimate_mean(values: Mapping[str, float], bounds: Bounds | None = SHARE) -> Estimate:
    """Estimate the mean of values by topic, which are within the bounds."""
    counts = np.array([(value, 1.0) for value in values.values()], dtype=np.float64)
    return Estimate(tuple(values), counts.reshape(len(values), 2), ratio, bounds=bounds)


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
    has_missing = False
    topic_counts: list[int] = []
    for row in rows:
        if math.isnan(row["value"]):
            continue
        if math.isnan(row["low"]):
            has_missing = True
        else:
            topic_counts.append(int(row["topics"] if "topics" in row else row["n"]))

    notes: list[str] = []
    if has_missing:
        notes.append(f"no 95 % interval where topics are few: it needs {MIN_TOPICS}")
    fewest = min(topic_counts, default=HOLDING_TOPICS)
    if fewest < HOLDING_TOPICS:
        notes.append(describe_few_topics(fewest))
    return notes


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
    common: Mapping[str, Mapping[Measure, tuple[Estimate, Estimate]]] | None = None,
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

    common = common or {}
    others = [name for name in runs if name != baseline]
    rows: list[dict[str, object]] = []
    for measure, baseline_estimate in runs[baseline].items():
        measure_rows: list[dict[str, object]] = []
        for name in others:
            row: dict[str, object] = {
                "run": name,
                "baseline": baseline,
                "measure": measure,
            }
            pair = common.get(name, {}).get(measure)
            if pair is None:
                row |= _compare_estimates(runs[name][measure], baseline_estimate)
                row["documents"] = math.nan
            else:
                row |= _compare_estimates(*pair)
                row["documents"] = pair[0].documents
            measure_rows.append(row)
        rows += _add_corrected_p(measure_rows)
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


def _add_corrected_p(rows: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the rows of one measure with `p_holm`."""
    corrected = correct_holm(np.array([row["p"] for row in rows]))
    return [{**row, "p_holm": p} for row, p in zip(rows, corrected.tolist(), strict=True)]


def _compare_estimates(run: Estimate, baseline: Estimate) -> dict[str, float]:
    """Compare two estimates of a measure over their common topics; return columns of `compare`."""
    topics = list_common_topics(run, baseline)
    counts = run.select(topics)
    baseline_counts = baseline.select(topics)
    width = counts.shape[1]

    def subtract(joined: Array) -> Array:
        value = run.formula(joined[..., :width])
        return np.asarray(value - baseline.formula(joined[..., width:]))

    difference = Estimate(
        topics=tuple(topics),
        counts=np.concatenate([counts, baseline_counts], axis=1),
        formula=subtract,
        documents=run.documents,
        bounds=run.bounds_of_difference,
    )
    low, high = compute_interval(difference)
    by_topic = difference.by_topic()
    wins = int((by_topic > TIE).sum())
    losses = int((by_topic < -TIE).sum())
    return {
        "value": run.compute_value(topics),
        "baseline_value": baseline.compute_value(topics),
        "difference": difference.value,
        "low": low,
        "high": high,
        "p": compute_p(run.formula, sum_swapped(counts), sum_swapped(baseline_counts)),
        "wins": wins,
        "ties": len(topics) - wins - losses,
        "losses": losses,
        "n": len(topics),
    }


def correct_holm(p: Array) -> Array:
    """Apply Holm's step-down correction to the defined values.

    Undefined ones stay NaN and do not count as tests.
    """
    is_defined = ~np.isnan(p)
    if is_defined.sum() < 2:
        return p
    # `multipletests` of statsmodels does the same, with a collection of all garbage that takes
    # longer than the test.
    ascending = np.flatnonzero(is_defined)[np.argsort(p[is_defined])]
    hypotheses_left = np.arange(len(ascending), 0, -1)
    adjusted = np.maximum.accumulate(p[ascending] * hypotheses_left)
    corrected = np.full_like(p, np.nan)
    corrected[ascending] = np.minimum(adjusted, 1.0)
    return corrected
