"""Paired randomisation tests over topics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from touche_llm.evaluation.intervals import Array, Formula

RESAMPLES = 10_000
SEED = 0
# Maximum number of swaps that are multiplied at a time: 16 MiB.
_BATCH_CELLS = 2**21
# Differences are rounded, so that equal ones compare equal despite the rounding errors of sums.
_DIGITS = 12

Swaps = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class SwapSums:
    """Sums of a system's counts, as a test of pairs needs them.

    Attributes:
        total: Sum over all topics, of shape (counts,).
        swapped: Sum over the topics that each resample swaps, of shape (resamples, counts).
        topics: Number of topics.
    """

    total: Array
    swapped: Array
    topics: int


def sum_swapped(counts: Array) -> SwapSums:
    """Sum the counts of a system over the topics that each resample swaps.

    All systems with the same number of topics have the same resamples, so that the sums of each
    can be used in the tests of all its pairs.

    Args:
        counts: Contribution of each topic, of shape (topics, counts).
    """
    topics = len(counts)
    swaps = _draw_swaps(topics, RESAMPLES)

    # A batch at a time, since the product needs a copy of the swaps that is eight times as large.
    batch_size = max(_BATCH_CELLS // max(topics, 1), 1)
    sums: list[Array] = []
    for start in range(0, len(swaps), batch_size):
        batch = swaps[start : start + batch_size].astype(np.float64)
        sums.append(batch @ counts)
    return SwapSums(total=counts.sum(axis=0), swapped=np.concatenate(sums), topics=topics)


def compute_p(formula: Formula, one: SwapSums, other: SwapSums) -> float:
    """Return p of the two-sided paired randomisation test of two systems; NaN for fewer than two topics.

    Under the null hypothesis the results of a topic could as well be exchanged (M. Smucker et al.,
    A comparison of statistical significance tests for information retrieval evaluation, CIKM 2007).
    p is twice the smaller one of both one-sided values, as in `scipy.stats.permutation_test`.

    Args:
        formula: Computes the value from sums over topics, (…, counts) to (…).
        one: Sums of a system.
        other: Sums of the other over the same topics.
    """
    if one.topics < 2:
        return math.nan
    observed = round(float(formula(one.total) - formula(other.total)), _DIGITS)
    if math.isnan(observed):
        return math.nan

    # What a resample swaps moves from one sum to the other.
    moved = other.swapped - one.swapped
    differences = formula(one.total + moved) - formula(other.total - moved)
    extremes = _count_extremes(np.round(differences, _DIGITS), observed)

    if is_exact(one.topics):
        one_sided_p = extremes / len(differences)
    else:
        # The observed result is one of the possible ones.
        one_sided_p = (extremes + 1) / (len(differences) + 1)
    return min(2.0 * one_sided_p, 1.0)


def _count_extremes(differences: Array, observed: float) -> int:
    """Count the differences that are as extreme as the observed one, on the side with fewer.

    Undefined ones count on both sides, so they never lower p.
    """
    not_lower = ~(differences < observed)
    not_higher = ~(differences > observed)
    return min(int(not_lower.sum()), int(not_higher.sum()))


def is_exact(topics: int) -> bool:
    """Return whether the test of so many topics uses all swaps rather than a sample of them."""
    return topics < RESAMPLES.bit_length() and 2**topics <= RESAMPLES


@lru_cache(maxsize=4)
def _draw_swaps(topics: int, resamples: int) -> Swaps:
    """Draw which topics each resample swaps, 1 for a swap, of shape (resamples, topics).

    With few topics these are all subsets of the topics, else a random sample of them.
    """
    if is_exact(topics):
        # The bits of the numbers from 0 to 2**topics - 1 are all subsets.
        numbers = np.arange(2**topics)[:, np.newaxis]
        bits = (numbers >> np.arange(topics)) & 1
        all_swaps: Swaps = bits.astype(np.int8)
        return all_swaps

    generator = np.random.default_rng(SEED)
    return generator.integers(0, 2, (resamples, topics), dtype=np.int8)
