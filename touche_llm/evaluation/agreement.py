"""Agreement of expected grades with human grades."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from touche_llm.evaluation.estimate import Array, Estimate


def round_grade(grade: float) -> int:
    """Round a grade to the nearest whole grade, halves up; grades below 0 become 0, as in nDCG."""
    return max(math.floor(grade + 0.5), 0)


def estimate_kappa(pairs: Mapping[str, Iterable[tuple[float, float]]]) -> Estimate:
    """Estimate Cohen's kappa, with quadratic weights, of two gradings of the same documents in whole grades.

    kappa = 1 - (observed disagreement) / (disagreement expected by chance), where a disagreement counts as the square
    of the difference (J. Cohen, Weighted kappa, Psychological Bulletin 70, 1968). With such weights kappa depends
    only on sums of grades, of their squares and of their products, so topics add up.

    If all grades of both are the same, kappa is 0 / 0; it counts as 1, since they agree.

    Args:
        pairs: The two grades of each document, by topic; topics without documents are left out.
    """
    kept = {topic: list(found) for topic, grades in pairs.items() if (found := list(grades))}
    counts = np.array(
        [
            _sums(np.array([(round_grade(a), round_grade(b)) for a, b in grades], dtype=np.float64))
            for grades in kept.values()
        ]
    ).reshape(len(kept), 5)
    return Estimate(tuple(kept), counts, _kappa, int(counts[:, 0].sum()))


def _sums(grades: Array) -> list[float]:
    one, other = grades[:, 0], grades[:, 1]
    return [float(len(grades)), one.sum(), other.sum(), (one**2 + other**2).sum(), (one * other).sum()]


def _kappa(counts: Array) -> Array:
    n, one, other, squares, products = np.moveaxis(counts, -1, 0)
    # Both are multiplied by the squared number of documents.
    observed, expected = n * (squares - 2.0 * products), n * squares - 2.0 * one * other
    share: Array = np.divide(observed, expected, out=np.zeros_like(observed), where=expected > 0.0)
    return np.asarray(1.0 - share)
