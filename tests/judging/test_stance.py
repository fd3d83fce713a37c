from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.expect import raises_at
from touche_llm.errors import UsageError
from touche_llm.judging.labels import StanceSettings, choose_stance, choose_stances, read_settings, write_thresholds
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.task import Task

TASK = get_task("comparative")


def shares(first: int, second: int, neutral: int, no: int) -> dict[str, float]:
    """Probabilities in 64ths, so that sums and products are exact."""
    return {"FIRST": first / 64, "SECOND": second / 64, "NEUTRAL": neutral / 64, "NO": no / 64}


PROBABILITIES = st.lists(st.integers(0, 64), min_size=3, max_size=3).map(
    lambda cuts: shares(*np.diff([0, *sorted(cuts), 64]).tolist())
)
THRESHOLDS = st.dictionaries(st.sampled_from(["NO", "NEUTRAL"]), st.integers(0, 64).map(lambda n: n / 64))


@pytest.mark.parametrize("task", [task for task in TASKS.values() if task.stances], ids=lambda task: task.name)
def test_the_labels_without_a_side_are_labels_of_the_task_and_not_all(task: Task) -> None:
    assert set(task.no_stances) < set(task.stances)


@given(PROBABILITIES)
def test_without_thresholds_the_most_probable_label_is_chosen(probabilities: dict[str, float]) -> None:
    chosen = choose_stance(probabilities, {}, TASK)
    assert probabilities[chosen] == max(probabilities.values())


def test_of_equally_probable_labels_the_first_of_the_task_is_chosen() -> None:
    assert choose_stance(shares(16, 16, 16, 16), {}, TASK) == "FIRST"
    assert choose_stance(shares(0, 16, 32, 16), {"NEUTRAL": 0.9}, TASK) == "SECOND"


def test_a_threshold_takes_a_label_that_is_not_the_most_probable() -> None:
    assert choose_stance(shares(40, 4, 0, 20), {}, TASK) == "FIRST"
    assert choose_stance(shares(40, 4, 0, 20), {"NO": 0.3}, TASK) == "NO"


def test_a_threshold_rules_a_label_out_that_is_the_most_probable() -> None:
    assert choose_stance(shares(4, 20, 0, 40), {"NO": 0.7}, TASK) == "SECOND"


def test_a_threshold_that_is_just_reached_is_reached() -> None:
    assert choose_stance(shares(40, 8, 0, 16), {"NO": 0.25}, TASK) == "NO"
    assert choose_stance(shares(41, 8, 0, 15), {"NO": 0.25}, TASK) == "FIRST"


def test_the_second_threshold_is_one_of_the_share_that_the_first_left() -> None:
    probabilities = shares(12, 4, 16, 32)
    # NEUTRAL has a quarter of all, and half of what is left without NO.
    assert choose_stance(probabilities, {"NO": 0.75, "NEUTRAL": 0.5}, TASK) == "NEUTRAL"
    assert choose_stance(probabilities, {"NO": 0.75, "NEUTRAL": 0.51}, TASK) == "FIRST"
    # Without a threshold NO stays in, and so does its probability.
    assert choose_stance(probabilities, {"NEUTRAL": 0.3}, TASK) == "NO"


def test_a_label_without_a_threshold_is_chosen_where_it_is_the_most_probable_of_those_left() -> None:
    assert choose_stance(shares(8, 4, 12, 40), {"NO": 0.9}, TASK) == "NEUTRAL"


def test_a_label_that_is_ruled_out_is_not_taken_where_the_others_have_nothing() -> None:
    assert choose_stance(shares(0, 0, 64, 0), {"NO": 0.0001, "NEUTRAL": 1.0}, TASK) == "NEUTRAL"
    assert choose_stance(shares(0, 0, 0, 64), {"NO": 1.0, "NEUTRAL": 0.0}, TASK) == "NO"


@given(PROBABILITIES, THRESHOLDS)
def test_the_rule_is_the_one_that_is_described(probabilities: dict[str, float], thresholds: dict[str, float]) -> None:
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


@given(st.lists(PROBABILITIES, min_size=1, max_size=5), st.lists(st.integers(0, 64), min_size=1, max_size=5))
def test_many_documents_and_thresholds_at_once_are_decided_one_by_one(
    documents: list[dict[str, float]], grid: list[int]
) -> None:
    probabilities = np.array([[each[label] for label in TASK.stances] for each in documents])
    before = probabilities.copy()
    table = choose_stances(probabilities, {"NO": 0.5, "NEUTRAL": np.array(grid)[:, None] / 64}, TASK)
    assert (probabilities == before).all()
    assert [[TASK.stances[place] for place in row] for row in table] == [
        [choose_stance(each, {"NO": 0.5, "NEUTRAL": n / 64}, TASK) for each in documents] for n in grid
    ]


@pytest.mark.parametrize("label", ["FIRST", "PRO"])
def test_a_threshold_of_a_label_that_cannot_have_one_is_told(label: str) -> None:
    with raises_at(UsageError, "stance.thresholds", f"'{label}'", "comparative", "NO, NEUTRAL"):
        choose_stance(shares(16, 16, 16, 16), {label: 0.5}, TASK)


@pytest.mark.parametrize(
    "values", [{"thresholds": {"NO": 1.1}}, {"thresholds": {"NO": float("nan")}}, {"depth": -1}, {"order": True}]
)
def test_settings_out_of_range_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        StanceSettings.model_validate(values)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    write_thresholds(
        path, {"NO": 0.377541, "NEUTRAL": 0.000335}, ["2", "12", "on", "0x1f"], "comparative/stance@1-0123"
    )
    settings = read_settings(path)
    assert settings.thresholds == {"NO": 0.377541, "NEUTRAL": 0.000335}
    assert settings.calibrated_on == ("2", "12", "on", "0x1f")


def test_thresholds_written_by_hand_need_no_quotation_marks(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text("stance: {thresholds: {NO: 0.4, NEUTRAL: 0.2}, calibrated_on: [2, 12]}\n")
    settings = read_settings(path)
    assert settings.thresholds == {"NO": 0.4, "NEUTRAL": 0.2}
    assert settings.calibrated_on == ("2", "12")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", ["stance: missing", "calibrate"]),
        ("- 1", ["names and values"]),
        ("stance: 0.5", ["stance: must be names and values"]),
        ("stance: {thresholds: {NO: 2}}", ["stance.thresholds.NO", "1.0", "not 2"]),
        ("stance: {thresholds: {NO: 0.1, 'NO': 0.2}}", ["stance.thresholds: NO"]),
        ("stance: {threshold: {}}", ["stance.threshold: "]),
        ("stance: {calibrated_on: 12}", ["stance.calibrated_on: "]),
        ("stance: [", ["YAML"]),
        ("a: \x07", ["YAML"]),
        ("#" * (2**20 + 1), ["1,048,576 bytes"]),
    ],
)
def test_a_bad_file_of_thresholds_is_told_with_its_name_and_place(tmp_path: Path, text: str, values: list[str]) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text(text)
    with raises_at(UsageError, path, *values):
        read_settings(path)


def test_a_file_of_thresholds_that_is_not_there_is_told(tmp_path: Path) -> None:
    with raises_at(UsageError, tmp_path / "none.yaml"):
        read_settings(tmp_path / "none.yaml")
