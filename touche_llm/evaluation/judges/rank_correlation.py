"""Correlation of two orders of systems."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from touche_llm.evaluation.intervals import Array


def compute_kendall_tau(values: Sequence[float], others: Sequence[float]) -> float:
    """Compute Kendall's tau-b of two lists of values of the same systems.

    NaN if there are fewer than two systems, or all of them have the same value.
    """
    signs = _compare_pairs(values)
    other_signs = _compare_pairs(others)
    agreement = float((signs * other_signs).sum())
    untied = float(np.abs(signs).sum())
    other_untied = float(np.abs(other_signs).sum())
    if untied == 0.0 or other_untied == 0.0:
        return math.nan
    return agreement / math.sqrt(untied * other_untied)


def compute_tau_ap(values: Sequence[float], truth: Sequence[float]) -> float:
    """Compute the AP correlation of an order with the true one (E. Yilmaz et al., SIGIR 2008).

    tau_ap weighs errors at the top more than tau. At each rank but the first, it compares the
    system with those above it: 1 if all are truly better, -1 if all are truly worse. The result is
    the mean over these ranks. Systems with the same value have no order; the result is then the
    mean over all their orders, tau_AP,a of J. Urbano and M. Marrero, The treatment of ties in AP
    correlation, ICTIR 2017.

    Args:
        values: Value of each system, the higher the better.
        truth: True value of each system.

    Returns:
        From -1 to 1; NaN for fewer than two systems.
    """
    systems = len(values)
    if systems < 2:
        return math.nan

    value_array = np.array(values)
    true_signs = _compare_pairs(truth)
    total = 0.0
    for value in np.unique(value_array):
        above = np.flatnonzero(value_array > value)
        tied = np.flatnonzero(value_array == value)
        # Of shape (tied, above): 1 where the system above is truly better, -1 where it is worse.
        comparisons = -true_signs[np.ix_(tied, above)]
        total += _sum_over_tied_ranks(comparisons)
    return total / (systems - 1)


def _sum_over_tied_ranks(comparisons: Array) -> float:
    """Sum the mean comparison with the systems above over the ranks that tied systems share.

    Each of the tied systems is as likely as the others at each of these ranks. At the second rank
    one of them is above as well, and so on; over all orders these comparisons cancel out.

    Args:
        comparisons: Comparison of each tied system with each system of a higher value, 1 if the
            latter is truly better, of shape (tied, above).
    """
    tied_count, above_count = comparisons.shape
    sum_at_each_rank = float(comparisons.sum(axis=1).mean())
    # The number of systems above each of the ranks, by which the sum there is divided.
    systems_above = above_count + np.arange(tied_count, dtype=np.float64)
    weights = 1.0 / systems_above[systems_above > 0.0]
    return sum_at_each_rank * float(weights.sum())


def _compare_pairs(values: Sequence[float]) -> Array:
    """Return 1 where the first of two systems is better, -1 where the second is, 0 for ties."""
    column = np.array(values, dtype=np.float64)
    return np.sign(column[:, np.newaxis] - column)
