from __future__ import annotations

import random

import numpy as np
import pytest
from statsmodels.stats.inter_rater import cohens_kappa

from touche_llm.evaluation.stance_measures import estimate_kappa, round_grade


def random_pairs(seed: int, documents: int) -> list[tuple[float, float]]:
    chance = random.Random(seed)
    return [(chance.randrange(4), chance.randrange(4)) for _ in range(documents)]


@pytest.mark.parametrize("seed", range(5))
def test_kappa_is_that_of_the_whole_table(seed: int) -> None:
    topics = {str(topic): random_pairs(seed * 10 + topic, 7) for topic in range(5)}
    table = np.zeros((4, 4))
    for one, other in (pair for pairs in topics.values() for pair in pairs):
        table[int(one), int(other)] += 1
    expected = cohens_kappa(table, wt="quadratic", return_results=False)
    figure = estimate_kappa(topics)
    assert figure.value == pytest.approx(expected)
    assert figure.n == 35


def test_expected_grades_are_rounded_and_there_is_none_below_0() -> None:
    assert [round_grade(grade) for grade in (-2.0, 0.49, 0.5, 1.5, 2.49, 2.5, 3.0)] == [0, 0, 1, 2, 2, 3, 3]
    assert estimate_kappa({"a": [(0.4, -2.0), (2.6, 3.0), (1.4, 1.0)]}).value == 1.0
