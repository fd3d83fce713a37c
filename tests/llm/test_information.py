"""Information of labels about documents."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from touche_llm.data.records import Reading
from touche_llm.llm.logprobs import MIN_READINGS, LabelInformation

LABELS = ("0", "1", "2", "3")


def compute_information(readings: list[Reading]) -> float | None:
    information = LabelInformation()
    for one in readings:
        if one.probabilities is not None:
            information.add(one.probabilities)
    return information.bits


def reading(*shares: float) -> Reading:
    return Reading(answered=0, probabilities=dict(zip(LABELS, shares, strict=False)))


def test_certain_labels_carry_the_entropy_of_their_distribution() -> None:
    readings = [reading(1.0, 0.0, 0.0, 0.0), reading(0.0, 1.0, 0.0, 0.0), *[reading(0.0, 0.0, 1.0, 0.0)] * 2] * 25
    assert compute_information(readings) == pytest.approx(1.5)


def test_the_same_answer_for_all_documents_carries_nothing() -> None:
    assert compute_information([reading(0.1, 0.2, 0.3, 0.4)] * 60) == pytest.approx(0.0, abs=1e-12)


def test_a_hand_computed_value() -> None:
    # H(0.5) - H(0.9), with H the binary entropy.
    expected = 1.0 + 0.9 * math.log2(0.9) + 0.1 * math.log2(0.1)
    assert compute_information([reading(0.9, 0.1), reading(0.1, 0.9)] * 25) == pytest.approx(expected, abs=1e-6)


def test_too_few_readings_with_probabilities_give_none() -> None:
    few = [reading(1.0, 0.0)] * (MIN_READINGS - 1)
    assert compute_information([*few, *[Reading(answered=1)] * 10]) is None
    assert compute_information([*few, reading(0.0, 1.0)]) is not None


@given(st.lists(st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4), min_size=50, max_size=60))
def test_information_is_between_zero_and_the_entropy_of_the_labels(weights: list[list[float]]) -> None:
    readings = [reading(*(value / sum(row) for value in row)) for row in weights]
    found = compute_information(readings)
    assert found is not None and 0.0 <= found <= 2.0
