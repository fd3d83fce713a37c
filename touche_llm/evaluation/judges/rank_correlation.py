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

    tau_ap weighs errors at the top more than tau. Systems with the same value have no order; the
    result is then the mean over all their orders, tau_AP,a of J. Urbano and M. Marrero, The
    treatment of ties in AP correlation, ICTIR 2017.

    Args:
        values: Value of each system, the higher the better.
        truth: True value of each system.

    Returns:
        From -1 to 1; NaN for fewer than two systems.
    """
    systems = len(values)
    if systems < 2:
        return math.nan

    signs = _compare_pairs(values)
    true_signs = _compare_pairs(truth)
    total = 0.0
    for value in np.unique(np.array(values)):
        group = np.flatnonzero(np.array(values) == value)
        is_above = signs[group[0]] < 0.0
        count_above = int(is_above.sum())
        # Systems above that are truly better, minus those that are truly worse, for each of the group.
        agreements = -true_signs[np.ix_(group, np.flatnonzero(is_above))].sum(axis=1)
        places_above = count_above + np.arange(len(group), dtype=np.float64)
        weights = 1.0 / places_above[places_above > 0.0]
        total += float(agreements.mean()) * float(weights.sum())
    return total / (systems - 1)


def _compare_pairs(values: Sequence[float]) -> Array:
    """Return 1 where the first of two systems is better, -1 where the second is, 0 for ties."""
    column = np.array(values, dtype=np.float64)
    return np.sign(column[:, np.newaxis] - column)
