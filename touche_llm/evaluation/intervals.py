"""Confidence intervals over topics that stay within the range of a measure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Formula = Callable[[Array], Array]

CONFIDENCE = 0.95
# Smaller differences are rounding errors of sums of a few terms.
TIE = 1e-9


class Bounds(NamedTuple):
    """Lowest and highest possible value of a measure."""

    lowest: float
    highest: float

    @property
    def width(self) -> float:
        """Difference of the highest and the lowest value."""
        return self.highest - self.lowest

    @property
    def of_difference(self) -> Bounds:
        """Bounds of the difference of two values."""
        return Bounds(-self.width, self.width)


# Bounds of shares and of means of shares, such as nDCG.
SHARE = Bounds(0.0, 1.0)


def compute_jackknife_interval(
    counts: Array, formula: Formula, bounds: Bounds | None
) -> tuple[float, float]:
    """Compute the 95 % interval of a value over topics; its ends lie within the bounds.

    The standard error is that of the jackknife that leaves out one topic at a time (B. Efron and
    R. Tibshirani, An Introduction to the Bootstrap, 1993, chapter 11), which keeps a topic's
    documents together. The interval is Student's on the scale of log-odds between the bounds. That
    scale stretches the ends of the range, so no end lies beyond them, and the interval of a value
    near a bound is skewed as the values are. Fisher's z is the same for bounds of -1 and 1.
    `benchmarks.interval_coverage` compares it with others.

    Args:
        counts: Contribution of each topic, of shape (topics, counts), two topics or more.
        formula: Computes the value from sums over topics, (…, counts) to (…).
        bounds: Range of the value; None if it has none, then the interval is Student's on the
            scale of the value.

    Returns:
        Both ends: NaN if the value is undefined with or without one of the topics; both the value
        if no topic changes it.

    Raises:
        ValueError: The value is outside the bounds.
    """
    sums = counts.sum(axis=0)
    value = float(formula(sums))
    values_without_topic = formula(sums - counts)
    error = compute_jackknife_error(values_without_topic)
    if math.isnan(value) or math.isnan(error):
        return math.nan, math.nan

    degrees = len(counts) - 1
    if bounds is None:
        half_width = find_student_quantile(degrees) * error
        return value - half_width, value + half_width

    if not bounds.lowest - TIE <= value <= bounds.highest + TIE:
        raise ValueError(
            f"{value}: outside the bounds of its measure, {bounds}; declare its bounds"
        )
    return _compute_bounded_interval(value, error, degrees, bounds)


def _compute_bounded_interval(
    value: float, error: float, degrees: int, bounds: Bounds
) -> tuple[float, float]:
    """Compute the 95 % interval of a value on the scale of log-odds between its bounds.

    Args:
        value: Value within the bounds.
        error: Standard error of the value.
        degrees: Degrees of freedom of Student's t.
        bounds: Range of the value.
    """
    share = (value - bounds.lowest) / bounds.width
    is_at_bound = min(share, 1.0 - share) <= TIE
    if is_at_bound or error <= TIE:
        return value, value

    # The derivative of the log-odds is 1 / (share * (1 - share)).
    log_odds = math.log(share / (1.0 - share))
    log_odds_error = error / bounds.width / (share * (1.0 - share))
    half_width = find_student_quantile(degrees) * log_odds_error
    low = _from_log_odds(log_odds - half_width, bounds)
    high = _from_log_odds(log_odds + half_width, bounds)
    return low, high


def compute_jackknife_error(values_without_topic: Array) -> float:
    """Compute the standard error of a value from its values without each topic, (topics,)."""
    topics = len(values_without_topic)
    deviations = values_without_topic - values_without_topic.mean()
    variance = (topics - 1) / topics * float(np.square(deviations).sum())
    return math.sqrt(variance)


def find_student_quantile(degrees: int) -> float:
    """Return the upper quantile of Student's t for a two-sided 95 % interval."""
    # Imported here, since only an interval needs it.
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1.0 + CONFIDENCE) / 2.0))


def _from_log_odds(log_odds: float, bounds: Bounds) -> float:
    """Return the value between the bounds that has these log-odds; 0 is halfway."""
    # Two forms of the logistic function, since exp overflows for large numbers.
    if log_odds < 0.0:
        odds = math.exp(log_odds)
        share = odds / (1.0 + odds)
    else:
        share = 1.0 / (1.0 + math.exp(-log_odds))
    return bounds.lowest + share * bounds.width
