"""Estimates and their significance: confidence intervals and tests of differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from touche_llm.data.measure import Measure

if TYPE_CHECKING:
    from pandas import DataFrame

Array = NDArray[np.float64]
# Minimum topics of an interval of a mean, and of a measure of pooled documents;
# docs/reference/measures.md has the simulated coverage behind them.
MIN_TOPICS = 5
MIN_TOPICS_POOLED = 20
CONFIDENCE = 0.95
_LOWER_QUANTILE = (1.0 - CONFIDENCE) / 2.0
_UPPER_QUANTILE = (1.0 + CONFIDENCE) / 2.0
RESAMPLES = 10_000
SEED = 0
# Number of resamples in memory at a time.
_BATCH = 500
# Values that differ by less are ties: they are sums of a few terms, added in any order.
TIE = 1e-9

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The value of a measure, as a function of sums over topics.

    Attributes:
        topics: Topics that contribute.
        counts: Contribution of each topic, of shape (topics, counts).
        formula: Computes the value from sums over topics, (…, counts) to (…).
        documents: Number of pooled documents behind the value; None if the value is the mean of the
            values by topic.
    """

    topics: tuple[str, ...]
    counts: Array
    formula: Callable[[Array], Array]
    documents: int | None = None

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


def estimate_mean(values: Mapping[str, float]) -> Estimate:
    """Estimate the mean of values by topic."""
    counts = np.array([(value, 1.0) for value in values.values()], dtype=np.float64)
    return Estimate(tuple(values), counts.reshape(len(values), 2), ratio)


def ratio(counts: Array) -> Array:
    """Divide the first count by the second, (…, 2) to (…)."""
    return np.asarray(counts[..., 0] / counts[..., 1])


def compute_interval(estimate: Estimate) -> tuple[float, float]:
    """Compute the 95 % interval over topics.

    That of a mean of values by topic is Student's t; its ends may lie beyond the range of the
    measure. That of a measure of pooled documents is the percentile bootstrap over topics, which
    keeps a topic's documents together.

    Both ends are NaN for fewer than `MIN_TOPICS` or `MIN_TOPICS_POOLED` topics, and if the value is
    undefined.
    """
    min_topics = MIN_TOPICS if estimate.is_mean else MIN_TOPICS_POOLED
    if len(estimate.topics) < min_topics:
        return math.nan, math.nan
    if not estimate.is_mean:
        return compute_bootstrap(estimate.counts, estimate.formula)

    value = estimate.value
    half_width = compute_half_width(estimate.by_topic())
    return value - half_width, value + half_width


def describe_missing_intervals(rows: Iterable[Mapping[str, float]]) -> list[str]:
    """Return a note if a row with the columns `value` and `low` has a value without an interval, else nothing."""
    has_missing = any(math.isnan(row["low"]) and not math.isnan(row["value"]) for row in rows)
    if not has_missing:
        return []
    return [
        f"no 95 % interval where topics are few: a mean needs {MIN_TOPICS}, a measure of pooled documents "
        f"{MIN_TOPICS_POOLED}"
    ]


def compute_half_width(values: Array) -> float:
    """Compute half the width of Student's 95 % interval of a mean of two values or more.

    0 if all are equal.
    """
    # Imported here, since only an interval needs it.
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, _UPPER_QUANTILE))
    deviation = float(values.std(ddof=1))
    return quantile * deviation / math.sqrt(len(values))


def compute_bootstrap(counts: Array, formula: Callable[[Array], Array]) -> tuple[float, float]:
    """Compute the 95 % percentile bootstrap interval over topics, see `Estimate` for counts and formula."""
    # scipy.stats.bootstrap draws the same resamples (a test compares the intervals) in as many
    # lines. It makes `evaluate` of 50 topics of 1,000 documents 1.8 times as expensive: 2.24 s of
    # processor time, not 1.26 s.
    times = _draw(len(counts))
    batches = np.split(times, range(_BATCH, RESAMPLES, _BATCH))
    values = np.concatenate([formula(batch @ counts) for batch in batches])
    low, high = np.quantile(values, (_LOWER_QUANTILE, _UPPER_QUANTILE))
    return float(low), float(high)


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
    corrected = _correct_holm(np.array([row["p"] for row in rows]))
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
        "p": _test_randomisation(run, counts, baseline_counts),
        "wins": wins,
        "ties": len(topics) - wins - losses,
        "losses": losses,
        "n": len(topics),
    }


@lru_cache(maxsize=4)
def _draw(rows: int) -> NDArray[np.int32]:
    """Count how often each row is drawn with replacement in each resample, of shape (resamples, rows)."""
    generator = np.random.default_rng(SEED)
    batches: list[NDArray[np.int32]] = []
    for _ in range(RESAMPLES // _BATCH):
        drawn = generator.integers(0, rows, (_BATCH, rows))
        batches.append(_count_drawn(drawn, rows).astype(np.int32))
    return np.concatenate(batches)


def _count_drawn(drawn: Indices, rows: int) -> NDArray[np.intp]:
    """Count how often each row is drawn: (draws, rows drawn) to (draws, rows)."""
    draws = len(drawn)
    # Each draw counts in cells of its own.
    cells = drawn + rows * np.arange(draws)[:, np.newaxis]
    return np.bincount(cells.ravel(), minlength=draws * rows).reshape(draws, rows)


def _sum_rows(counts: Array, drawn: Indices) -> Array:
    """Sum the drawn rows: (…, rows drawn) of `(rows, counts)` to (…, counts).

    Multiplying the rows by how often they are drawn is several times faster than selecting and
    adding them.
    """
    times = _count_drawn(drawn.reshape(-1, drawn.shape[-1]), len(counts))
    return (times @ counts).reshape(*drawn.shape[:-1], counts.shape[1])


def _test_randomisation(estimate: Estimate, counts: Array, baseline_counts: Array) -> float:
    """Return p of the two-sided paired randomisation test over topics; NaN for fewer than two.

    Args:
        estimate: Estimate whose formula gives the value.
        counts: Counts of the run, a row for each topic.
        baseline_counts: Counts of the baseline for the same topics.
    """
    topics = len(counts)
    if topics < 2:
        return math.nan
    # Imported here, since it takes a second to import and only a comparison needs it.
    from scipy.stats import permutation_test

    all_counts = np.concatenate([counts, baseline_counts])

    def subtract(rows: Indices, baseline_rows: Indices, axis: int) -> Array:
        value = estimate.formula(_sum_rows(all_counts, np.moveaxis(rows, axis, -1)))
        baseline = estimate.formula(_sum_rows(all_counts, np.moveaxis(baseline_rows, axis, -1)))
        # Rounded, so that equal differences compare equal despite the rounding errors of sums.
        return np.round(value - baseline, 12)

    rows = np.arange(len(all_counts))
    result = permutation_test(
        (rows[:topics], rows[topics:]),
        subtract,
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=_BATCH,
        rng=np.random.default_rng(SEED),
    )
    return float(result.pvalue)


def _correct_holm(p: Array) -> Array:
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
