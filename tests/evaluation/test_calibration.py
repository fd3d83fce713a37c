from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.expect import raises_at
from touche_llm.data.io import write_records
from touche_llm.data.records import Judgment, Reading, StanceReading
from touche_llm.errors import DataError, UsageError
from touche_llm.evaluation import calibration
from touche_llm.evaluation.calibration import (
    GRID,
    CalibrationExample,
    cross_validate,
    fit_thresholds,
    measure_thresholds,
    read_calibration_set,
)
from touche_llm.judging.labels import choose_stance
from touche_llm.tasks import get_task

TASK = get_task("comparative")
NUMBERS = count()


def shares(first: float, second: float, neutral: float, no: float) -> dict[str, float]:
    return dict(zip(TASK.stances, (first, second, neutral, no), strict=True))


def example(topic: str, stance: str, *probabilities: float) -> CalibrationExample:
    return CalibrationExample(topic, f"d{next(NUMBERS)}", shares(*probabilities), stance)


def gated(topics: int, seed: int = 0) -> list[CalibrationExample]:
    """Documents of a model that says NO too readily and NEUTRAL too rarely.

    Those that are NO have 0.8 or more of it, the others up to 0.7; of what is left, NEUTRAL ones have 0.3 to 0.4 and
    the others up to 0.2: only thresholds between these separate all.
    """
    draw = random.Random(seed)
    found = []
    for topic in range(topics):
        for stance in TASK.stances * 4:
            no = draw.uniform(0.8, 1.0) if stance == "NO" else draw.uniform(0.4, 0.7)
            neutral = draw.uniform(0.3, 0.4) if stance == "NEUTRAL" else draw.uniform(0.0, 0.2)
            most = draw.uniform(0.8, 1.0) * (1.0 - neutral)
            sides = (most, 1.0 - neutral - most) if stance == "FIRST" else (1.0 - neutral - most, most)
            found.append(example(str(topic), stance, *((1.0 - no) * each for each in (*sides, neutral)), no))
    return found


def noisy(topics: int, seed: int = 0) -> list[CalibrationExample]:
    """Twenty documents for each topic, whose labels are drawn from their probabilities."""
    draw = np.random.default_rng(seed)
    rows = draw.dirichlet([0.5] * 4, size=20 * topics).tolist()
    return [example(str(n % topics), TASK.stances[draw.choice(4, p=row)], *row) for n, row in enumerate(rows)]


def plain_macro_f1(chosen: list[str], true: list[str]) -> float:
    found = []
    for label in set(chosen) | set(true):
        right = sum(c == t == label for c, t in zip(chosen, true, strict=True))
        precision = right / chosen.count(label) if label in chosen else 0.0
        recall = right / true.count(label) if label in true else 0.0
        found.append(2 * precision * recall / (precision + recall) if right else 0.0)
    return sum(found) / len(found)


EXAMPLES = st.lists(
    st.tuples(
        st.lists(st.integers(1, 20), min_size=4, max_size=4).map(lambda each: [n / sum(each) for n in each]),
        st.sampled_from(TASK.stances),
    ).map(lambda drawn: CalibrationExample("1", "d", shares(*drawn[0]), drawn[1])),
    min_size=1,
    max_size=12,
)


@given(EXAMPLES, st.floats(0, 1), st.floats(0, 1))
def test_scores_agree_with_the_textbook(examples: list[CalibrationExample], no: float, neutral: float) -> None:
    thresholds = {"NO": no, "NEUTRAL": neutral}
    chosen = [choose_stance(each.probabilities, thresholds, TASK) for each in examples]
    true = [each.stance for each in examples]
    scores = measure_thresholds(examples, thresholds, TASK)
    assert scores.macro_f1 == pytest.approx(plain_macro_f1(chosen, true))
    assert scores.accuracy == pytest.approx(sum(c == t for c, t in zip(chosen, true, strict=True)) / len(true))


@settings(max_examples=40)
@given(EXAMPLES)
def test_no_combination_of_the_grid_is_better_than_the_one_fitted(examples: list[CalibrationExample]) -> None:
    coarse = GRID[4::9]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "GRID", coarse)
        fitted = fit_thresholds(examples, TASK)
    every = [
        measure_thresholds(examples, {"NO": no, "NEUTRAL": neutral}, TASK).macro_f1
        for no, neutral in product(coarse, repeat=2)
    ]
    assert set(fitted.values()) <= set(coarse.tolist())
    assert measure_thresholds(examples, fitted, TASK).macro_f1 == pytest.approx(max(every))


@given(topics=st.integers(2, 12), folds=st.integers(2, 12), seed=st.integers(0, 5))
@settings(max_examples=15, deadline=None)
def test_each_topic_is_held_out_once_and_as_a_whole(topics: int, folds: int, seed: int) -> None:
    examples = [each for n, each in enumerate(gated(topics)) if n % 3 != 0]
    random.Random(1).shuffle(examples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "GRID", GRID[::8])
        if topics < folds:
            with pytest.raises(DataError, match=rf"\b{topics}\b.*\b{folds}\b"):
                cross_validate(examples, TASK, folds, seed)
            return
        report = cross_validate(examples, TASK, folds, seed)
    dealt = [topic for fold in report.folds for topic in fold.topics]
    assert sorted(dealt) == sorted(report.topics) == sorted({each.topic_id for each in examples})
    sizes = [len(fold.topics) for fold in report.folds]
    assert len(sizes) == folds and max(sizes) - min(sizes) <= 1
    for fold in report.folds:
        assert fold.scores.documents == sum(each.topic_id in fold.topics for each in examples)
    assert report.scores.documents == len(examples)


def test_a_held_out_topic_has_no_part_in_the_thresholds_it_is_measured_with() -> None:
    examples = noisy(topics=6)
    report = cross_validate(examples, TASK, 3, seed=0)
    turned = {"FIRST": "NO", "SECOND": "NEUTRAL", "NEUTRAL": "FIRST", "NO": "SECOND"}
    for number, fold in enumerate(report.folds):
        others = [
            CalibrationExample(each.topic_id, each.document_id, each.probabilities, turned[each.stance])
            if each.topic_id in fold.topics
            else each
            for each in examples
        ]
        again = cross_validate(others, TASK, 3, seed=0)
        assert again.folds[number].topics == fold.topics
        assert again.folds[number].thresholds == fold.thresholds
        assert again.folds[number].scores.accuracy < fold.scores.accuracy
        # Where they do take part, they change the thresholds.
        assert again.thresholds != report.thresholds
        assert all(again.folds[n].thresholds != report.folds[n].thresholds for n in range(3) if n != number)


@pytest.mark.parametrize(
    ("call", "pattern"),
    [
        (lambda: fit_thresholds([], TASK), "thresholds"),
        (lambda: cross_validate([], TASK, 2, 0), r"\b0\b.*\b2\b"),
        (lambda: cross_validate(gated(3), TASK, 1, 0), r"\b1\b.*\b2\b"),
        (lambda: fit_thresholds(gated(1), get_task("sentence_pairs")), "^sentence_pairs: "),
    ],
)
def test_what_cannot_be_fitted_is_told(call: Callable[[], object], pattern: str) -> None:
    with pytest.raises((DataError, UsageError), match=pattern):
        call()


def judgment(topic: str, document: str, probabilities: dict[str, float] | None) -> Judgment:
    return Judgment(
        topic_id=topic,
        document_id=document,
        grades={"relevance": 1.0, "quality": 1.0},
        stance="NO",
        readings={"stance": Reading(answered="NO", probabilities=probabilities)},
        source="probabilities" if probabilities else "value",
        prompt="judge",
    )


def stance_reading(topic: str, document: str, probabilities: dict[str, float]) -> StanceReading:
    return StanceReading(
        topic_id=topic, document_id=document, probabilities=probabilities, orders=2, prompt="stance", keys=["a", "b"]
    )


JUDGED, READ = shares(0.1, 0.2, 0.3, 0.4), shares(0.4, 0.3, 0.2, 0.1)


def test_where_the_stance_prompt_was_asked_its_documents_are_used(tmp_path: Path) -> None:
    write_records(tmp_path / "j", [judgment("1", "a", JUDGED), judgment("1", "b", JUDGED), judgment("1", "c", None)])
    truth = {"1": {"a": "NO", "b": "FIRST", "c": "NO"}}
    examples = read_calibration_set(tmp_path / "j", tmp_path / "s", truth, TASK)
    assert examples.used == [CalibrationExample("1", "a", JUDGED, "NO"), CalibrationExample("1", "b", JUDGED, "FIRST")]
    assert (examples.without, examples.elsewhere) == (["1 c"], 0)
    write_records(tmp_path / "s", [stance_reading("1", "b", READ), stance_reading("1", "c", READ)])
    examples = read_calibration_set(tmp_path / "j", tmp_path / "s", truth, TASK)
    assert examples.used == [CalibrationExample("1", "b", READ, "FIRST"), CalibrationExample("1", "c", READ, "NO")]
    assert (examples.without, examples.elsewhere) == ([], 1)
    assert examples.prompt == "stance"


def test_documents_that_cannot_be_used_are_counted_and_named(tmp_path: Path) -> None:
    write_records(
        tmp_path / "j",
        [
            judgment("1", "a", JUDGED),
            judgment("1", "plain", None),
            judgment("1", "unjudged", JUDGED),
            replace(judgment("2", "unread", JUDGED), readings={}),
        ],
    )
    truth = {"1": {"a": "NO", "plain": "NO", "gone": "NO"}, "2": {"unread": "NO"}, "3": {"a": "NO"}}
    examples = read_calibration_set(tmp_path / "j", tmp_path / "s", truth, TASK)
    assert [each.document_id for each in examples.used] == ["a"]
    assert (examples.without, examples.elsewhere) == (["1 plain", "2 unread"], 2)


@pytest.mark.parametrize(
    ("probabilities", "values"),
    [
        ({"PRO": 0.5, "CON": 0.5}, ["'CON'", "FIRST, SECOND, NEUTRAL, NO"]),
        (shares(0.0, 0.0, 0.0, 0.0), ["sum to 0"]),
        (shares(1.0, 1.0, 0.0, 0.0), ["sum to 2"]),
        (shares(-0.5, 0.5, 0.5, 0.5), ["sum to 1"]),
    ],
)
def test_probabilities_that_are_none_are_told_with_topic_and_document(
    tmp_path: Path, probabilities: dict[str, float], values: list[str]
) -> None:
    write_records(tmp_path / "j", [judgment("1", "a", probabilities)])
    with raises_at(DataError, tmp_path / "j", "topic 1, document a", *values):
        read_calibration_set(tmp_path / "j", tmp_path / "s", {"1": {"a": "NO"}}, TASK)
