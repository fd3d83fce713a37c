"""Correlations of orders are those of scipy, and of the definition of tau_ap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest
import scipy.stats

from touche_llm.evaluation.judges.rank_correlation import compute_kendall_tau, compute_tau_ap


def define_tau_ap(order: Sequence[int], truth: Sequence[float]) -> float:
    """The definition of Yilmaz et al., 2008, of systems from the first to the last."""
    total = 0.0
    for rank in range(2, len(order) + 1):
        above = order[: rank - 1]
        correct = sum(truth[system] > truth[order[rank - 1]] for system in above)
        total += correct / (rank - 1)
    return 2.0 / (len(order) - 1) * total - 1.0


def list_orders(values: Sequence[float]) -> list[tuple[int, ...]]:
    """All orders of systems that are possible for their values, with ties in any order."""
    systems = range(len(values))
    return [
        order
        for order in permutations(systems)
        if all(values[a] >= values[b] for a, b in zip(order, order[1:], strict=False))
    ]


def test_tau_is_that_of_scipy() -> None:
    for seed in range(200):
        random = np.random.default_rng(seed)
        systems = int(random.integers(2, 30))
        # Few possible values, so that there are ties; some lists have one value only.
        levels = int(random.integers(1, 12))
        values = random.integers(0, levels, systems).astype(np.float64).tolist()
        others = random.integers(0, levels, systems).astype(np.float64).tolist()
        expected = float(scipy.stats.kendalltau(values, others).statistic)
        assert compute_kendall_tau(values, others) == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_tau_ap_is_its_definition() -> None:
    for seed in range(200):
        random = np.random.default_rng(seed)
        systems = int(random.integers(2, 40))
        values = random.permutation(systems).astype(np.float64).tolist()
        truth = random.permutation(systems).astype(np.float64).tolist()
        order = np.argsort(values)[::-1].tolist()
        assert compute_tau_ap(values, truth) == pytest.approx(define_tau_ap(order, truth), abs=1e-9)


def test_tau_ap_of_ties_is_the_mean_over_their_orders() -> None:
    for seed in range(40):
        random = np.random.default_rng(seed)
        values = random.integers(0, 3, 5).astype(np.float64).tolist()
        # A distinct truth, in which the definition knows no ties.
        truth = random.permutation(5).astype(np.float64).tolist()
        means = [define_tau_ap(order, truth) for order in list_orders(values)]
        assert compute_tau_ap(values, truth) == pytest.approx(float(np.mean(means)), abs=1e-9)


def test_tau_ap_weighs_the_top() -> None:
    truth = [5.0, 4.0, 3.0, 2.0, 1.0]
    wrong_at_the_top = [4.0, 5.0, 3.0, 2.0, 1.0]
    wrong_at_the_end = [5.0, 4.0, 3.0, 1.0, 2.0]
    assert compute_kendall_tau(wrong_at_the_top, truth) == pytest.approx(0.8)
    assert compute_kendall_tau(wrong_at_the_end, truth) == pytest.approx(0.8)
    assert compute_tau_ap(wrong_at_the_top, truth) < compute_tau_ap(wrong_at_the_end, truth)
    assert compute_tau_ap(truth, truth) == pytest.approx(1.0)
    assert compute_tau_ap([-value for value in truth], truth) == pytest.approx(-1.0)


def test_one_system_has_no_order() -> None:
    assert math.isnan(compute_tau_ap([1.0], [1.0]))
    assert math.isnan(compute_kendall_tau([1.0], [1.0]))
    assert math.isnan(compute_kendall_tau([1.0, 1.0], [1.0, 2.0]))
