from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.expect import raises_at
from touche_llm.data.records import Reading
from touche_llm.errors import UsageError
from touche_llm.judging.stance_labels import (
    StanceSettings,
    choose_stance,
    choose_stances,
    read_thresholds,
    write_thresholds,
)
from touche_llm.prompts.purposes import purposes_of
from touche_llm.tasks import get_task
from touche_llm.tasks.positions import combine_position

TASK = get_task("comparative")


def shares(first: int, second: int, neutral: int, no: int) -> dict[str, float]:
    """Probabilities in 64ths, so that sums and products are exact."""
    return {"FIRST": first / 64, "SECOND": second / 64, "NEUTRAL": neutral / 64, "NO": no / 64}


PROBABILITIES = st.lists(st.integers(0, 64), min_size=3, max_size=3).map(
    lambda cuts: shares(*np.diff([0, *sorted(cuts), 64]).tolist())
)
THRESHOLDS = st.dictionaries(
    st.sampled_from(["NO", "NEUTRAL"]), st.integers(0, 64).map(lambda n: n / 64)
)


@given(PROBABILITIES, THRESHOLDS)
def test_the_rule_is_the_one_that_is_described(
    probabilities: dict[str, float], thresholds: dict[str, float]
) -> None:
    left = {label: Fraction(share) for label, share in probabilities.items()}
    expected = None
    for label in TASK.no_stances:
        if label in thresholds and expected is None:
            if left[label] >= Fraction(thresholds[label]) * sum(left.values()):
                expected = label
            del left[label]
    if expected is None:
        expected = max(left, key=lambda label: (left[label], -TASK.stances.index(label)))
    assert choose_stance(probabilities, thresholds, TASK) == expected


@given(
    st.lists(PROBABILITIES, min_size=1, max_size=5),
    st.lists(st.integers(0, 64), min_size=1, max_size=5),
)
def test_many_documents_and_thresholds_at_once_are_decided_one_by_one(
    documents: list[dict[str, float]], grid: list[int]
) -> None:
    probabilities = np.array([[each[label] for label in TASK.stances] for each in documents])
    before = probabilities.copy()
    table = choose_stances(
        probabilities, {"NO": 0.5, "NEUTRAL": np.array(grid)[:, None] / 64}, TASK
    )
    assert (probabilities == before).all()
    assert [[TASK.stances[place] for place in row] for row in table] == [
        [choose_stance(each, {"NO": 0.5, "NEUTRAL": n / 64}, TASK) for each in documents]
        for n in grid
    ]


@pytest.mark.parametrize("label", ["FIRST", "PRO"])
def test_a_threshold_of_a_label_that_cannot_have_one_is_told(label: str) -> None:
    with raises_at(UsageError, "stance.thresholds", f"'{label}'", "comparative", "NO, NEUTRAL"):
        choose_stance(shares(16, 16, 16, 16), {label: 0.5}, TASK)


@pytest.mark.parametrize(
    "values",
    [
        {"thresholds": {"NO": float("nan")}},
        {"depth": -1},
        {"order": True},
        {"prompt": "shared"},
        {"prompt": "own"},
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        StanceSettings.model_validate(values)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    write_thresholds(
        path,
        {"NO": 0.377541, "NEUTRAL": 0.000335},
        ["2", "12", "on", "0x1f"],
        "comparative/stance@1-0123",
    )
    settings = read_thresholds(path)
    assert settings.thresholds == {"NO": 0.377541, "NEUTRAL": 0.000335}
    assert settings.calibrated_on == ("2", "12", "on", "0x1f")
    # Written by hand they need no quotation marks.
    path.write_text("stance: {thresholds: {NO: 0.4, NEUTRAL: 0.2}, calibrated_on: [2, 12]}\n")
    settings = read_thresholds(path)
    assert (settings.thresholds, settings.calibrated_on) == (
        {"NO": 0.4, "NEUTRAL": 0.2},
        ("2", "12"),
    )
    with raises_at(UsageError, tmp_path / "none.yaml"):
        read_thresholds(tmp_path / "none.yaml")


def test_a_stance_is_no_position_or_a_position_times_a_side() -> None:
    position = Reading(
        answered="YES", probabilities={"YES": 0.6, "NO": 0.4}, off_label_mass=0.1, shared=0.0
    )
    side = Reading(
        answered="PRO", probabilities={"PRO": 0.75, "CON": 0.25}, off_label_mass=0.5, shared=0.2
    )
    found = combine_position(position, side, ["PRO", "CON", "NO"], "NO")
    assert found.answered == "PRO"
    assert found.probabilities == pytest.approx({"NO": 0.4, "PRO": 0.45, "CON": 0.15})
    assert found.off_label_mass == pytest.approx(0.55) and found.shared == 0.2
    for one, other in ((0.1, None), (None, 0.1)):
        half = combine_position(
            msgspec.structs.replace(position, off_label_mass=one),
            msgspec.structs.replace(side, off_label_mass=other),
            ["PRO", "CON", "NO"],
            "NO",
        )
        assert half.off_label_mass == pytest.approx(0.1)
    plain = combine_position(
        Reading(answered="NO"), Reading(answered="PRO"), ["PRO", "CON", "NO"], "NO"
    )
    assert plain == Reading(answered="NO")


def test_a_question_combines_position_and_side_if_its_own_answer_has_no_position() -> None:
    position = Reading(answered="YES", probabilities={"YES": 0.6, "NO": 0.4})
    side = Reading(answered="FIRST", probabilities={"FIRST": 0.5, "SECOND": 0.25, "NEUTRAL": 0.25})
    relevance = Reading(answered=2)
    readings = {"relevance": relevance, "position": position, "stance": side}

    combined = TASK.question.combine(readings)

    assert list(combined) == ["relevance", "stance"] and combined["relevance"] == relevance
    assert combined["stance"].probabilities == pytest.approx(
        {"NO": 0.4, "NEUTRAL": 0.15, "FIRST": 0.3, "SECOND": 0.15}
    )
    plain = {"relevance": relevance, "stance": side}
    assert TASK.question.combine(plain) == plain
    # The answer to the stance prompt is shown as it is.
    stance_question = purposes_of(TASK)["stance"].question
    assert stance_question is not None
    assert stance_question.combine(readings) == readings
