"""Information of labels about documents."""

from __future__ import annotations

import pytest

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


def test_too_few_readings_with_probabilities_give_none() -> None:
    few = [reading(1.0, 0.0)] * (MIN_READINGS - 1)
    assert compute_information([*few, *[Reading(answered=1)] * 10]) is None
    assert compute_information([*few, reading(0.0, 1.0)]) is not None
