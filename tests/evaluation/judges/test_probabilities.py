"""The Brier score is that of scikit-learn, and its parts add up."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics

from touche_llm.evaluation.judges.probabilities import (
    compute_brier_score,
    decompose_brier_score,
    list_reliability,
)


def test_the_brier_score_is_that_of_scikit_learn_and_its_parts_add_up() -> None:
    for seed in range(200):
        random = np.random.default_rng(seed)
        documents, labels = int(random.integers(1, 60)), int(random.integers(2, 5))
        probabilities = random.dirichlet(np.full(labels, 0.3), documents)
        truth = random.integers(0, labels, documents)
        if seed % 5 == 0:
            truth[:] = 0
        expected = sklearn.metrics.brier_score_loss(
            truth, probabilities, labels=list(range(labels)), scale_by_half=False
        )
        if labels == 2:
            # scikit-learn takes the probability of the second label, and counts it once.
            expected = 2.0 * sklearn.metrics.brier_score_loss(
                truth, probabilities[:, 1], labels=[0, 1], scale_by_half=True
            )
        parts = decompose_brier_score(probabilities, truth)
        assert compute_brier_score(probabilities, truth) == pytest.approx(expected, abs=1e-9)
        total = parts.reliability - parts.resolution + parts.uncertainty + parts.within_bins
        assert parts.score == pytest.approx(total, abs=1e-12)
        assert parts.reliability >= 0.0 and parts.resolution >= 0.0


def test_probabilities_of_one_value_a_bin_leave_nothing_within_bins() -> None:
    random = np.random.default_rng(1)
    first = random.choice([0.05, 0.35, 0.75], 300)
    probabilities = np.stack([first, 1.0 - first], axis=1)
    truth = (random.random(300) > first).astype(np.intp)
    parts = decompose_brier_score(probabilities, truth)
    assert parts.within_bins == pytest.approx(0.0, abs=1e-12)


def test_a_judge_that_knows_only_the_shares_of_labels_has_no_resolution() -> None:
    truth = np.array([0] * 6 + [1] * 3 + [2] * 1)
    probabilities = np.tile([0.6, 0.3, 0.1], (10, 1))
    parts = decompose_brier_score(probabilities, truth)
    assert parts.reliability == pytest.approx(0.0, abs=1e-12)
    assert parts.resolution == pytest.approx(0.0, abs=1e-12)
    assert parts.score == pytest.approx(parts.uncertainty)


def test_reliability_has_the_share_of_true_labels_in_each_bin() -> None:
    probabilities = np.array([[0.85, 0.15], [0.85, 0.15], [0.0, 1.0]])
    rows = list_reliability(probabilities, np.array([0, 1, 1]))
    by_low = {row.low: (row.count, row.mean, row.share) for row in rows}
    assert by_low[0.8] == pytest.approx((2, 0.85, 0.5))
    assert by_low[0.1] == pytest.approx((2, 0.15, 0.5))
    # 0 and 1 are in the first and in the last bin.
    assert by_low[0.0] == pytest.approx((1, 0.0, 0.0))
    assert by_low[0.9] == pytest.approx((1, 1.0, 1.0))
