from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.expect import raises_at
from touche_llm.data.files import write_records
from touche_llm.data.records import Judgment, Reading, StanceReading
from touche_llm.errors import DataError
from touche_llm.evaluation import calibration
from touche_llm.evaluation.calibration import (
    GRID,
    CalibrationSet,
    fit_thresholds,
    label_held_out,
    read_calibration_set,
    score_labels,
)
from touche_llm.judging.stance_labels import choose_stances
from touche_llm.tasks import get_task

TASK = get_task("comparative")
NUMBERS = count()
# A topic, a document, its true label, and the probabilities of the labels.
Example = tuple[str, str, str, list[float]]


def shares(first: float, second: float, neutral: float, no: float) -> dict[str, float]:
    return dict(zip(TASK.stances, (first, second, neutral, no), strict=True))


def set_of(examples: Sequence[Example]) -> CalibrationSet:
    probabilities = np.array([given for _, _, _, given in examples])
    truth = np.array([TASK.stances.index(stance) for _, _, stance, _ in examples], dtype=np.intp)
    return CalibrationSet([topic for topic, _, _, _ in examples], probabilities, truth)


def gated(topics: int, seed: int = 0) -> list[Example]:
    """Documents of a model that says NO too readily and NEUTRAL too rarely.

    Those that are NO have 0.8 or more of it, the others up to 0.7; of what is left, NEUTRAL ones
    have 0.3 to 0.4 and the others up to 0.2: only thresholds between these separate all.
    """
    draw = random.Random(seed)
    found: list[Example] = []
    for topic in range(topics):
        for stance in TASK.stances * 4:
            no = draw.uniform(0.8, 1.0) if stance == "NO" else draw.uniform(0.4, 0.7)
            neutral = draw.uniform(0.3, 0.4) if stance == "NEUTRAL" else draw.uniform(0.0, 0.2)
            most = draw.uniform(0.8, 1.0) * (1.0 - neutral)
            sides = (
                (most, 1.0 - neutral - most) if stance == "FIRST" else (1.0 - neutral - most, most)
            )
            given = [*((1.0 - no) * each for each in (*sides, neutral)), no]
            found.append((str(topic), f"d{next(NUMBERS)}", stance, given))
    return found


def noisy(topics: int, seed: int = 0) -> CalibrationSet:
    """Twenty documents for each topic, whose labels are drawn from their probabilities."""
    draw = np.random.default_rng(seed)
    rows = draw.dirichlet([0.5] * 4, size=20 * topics).tolist()
    return set_of(
        [
            (str(n % topics), "d", TASK.stances[draw.choice(4, p=row)], row)
            for n, row in enumerate(rows)
        ]
    )


def plain_macro_f1(chosen: list[int], true: list[int]) -> float:
    found = []
    for label in set(chosen) | set(true):
        right = sum(c == t == label for c, t in zip(chosen, true, strict=True))
        precision = right / chosen.count(label) if label in chosen else 0.0
        recall = right / true.count(label) if label in true else 0.0
        found.append(2 * precision * recall / (precision + recall) if right else 0.0)
    return sum(found) / len(found)


EXAMPLES = st.lists(
    st.tuples(
        st.lists(st.integers(1, 20), min_size=4, max_size=4).map(
            lambda each: [n / sum(each) for n in each]
        ),
        st.sampled_from(TASK.stances),
    ).map(lambda drawn: ("1", "d", drawn[1], drawn[0])),
    min_size=1,
    max_size=12,
).map(set_of)


@given(EXAMPLES, st.floats(0, 1), st.floats(0, 1))
def test_scores_agree_with_the_textbook(
    examples: CalibrationSet, no: float, neutral: float
) -> None:
    chosen = choose_stances(examples.probabilities, {"NO": no, "NEUTRAL": neutral}, TASK)
    macro_f1, accuracy = score_labels(chosen, examples.truth, TASK)
    assert macro_f1 == pytest.approx(plain_macro_f1(chosen.tolist(), examples.truth.tolist()))
    assert accuracy == pytest.approx(sum(chosen == examples.truth) / len(chosen))


@settings(max_examples=40)
@given(EXAMPLES)
def test_no_combination_of_the_grid_is_better_than_the_one_fitted(examples: CalibrationSet) -> None:
    def measure(thresholds: dict[str, float]) -> float:
        return score_labels(
            choose_stances(examples.probabilities, thresholds, TASK), examples.truth, TASK
        )[0]

    coarse = GRID[4::9]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "GRID", coarse)
        fitted = fit_thresholds(examples.probabilities, examples.truth, TASK)
    assert set(fitted.values()) <= set(coarse.tolist())
    every = [measure({"NO": no, "NEUTRAL": neutral}) for no, neutral in product(coarse, repeat=2)]
    assert measure(fitted) == pytest.approx(max(every))


def test_the_labels_of_a_topic_do_not_depend_on_its_own_judgments() -> None:
    examples = noisy(topics=7)
    before, topics = label_held_out(examples, TASK), np.array(examples.topics)
    for topic in set(examples.topics):
        own = topics == topic
        truth = np.where(own, (examples.truth + 1) % 4, examples.truth)
        after = label_held_out(CalibrationSet(examples.topics, examples.probabilities, truth), TASK)
        np.testing.assert_array_equal(after[own], before[own])
        # They have a part in those of others.
        assert (after[~own] != before[~own]).any()


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
        topic_id=topic,
        document_id=document,
        probabilities=probabilities,
        source="probabilities",
        orders=2,
        prompt="stance",
        answer_keys=["a", "b"],
    )


JUDGED, READ = shares(0.1, 0.2, 0.3, 0.4), shares(0.4, 0.3, 0.2, 0.1)


def documents_of(examples: CalibrationSet) -> list[tuple[str, list[float], str]]:
    rows = zip(examples.topics, examples.probabilities.tolist(), examples.truth, strict=True)
    return [(topic, given, TASK.stances[place]) for topic, given, place in rows]


def test_where_the_stance_prompt_was_asked_its_documents_are_used(tmp_path: Path) -> None:
    write_records(
        tmp_path / "j",
        [judgment("1", "a", JUDGED), judgment("1", "b", JUDGED), judgment("1", "c", None)],
    )
    truth = {"1": {"a": "NO", "b": "FIRST", "c": "NO"}}
    examples = read_calibration_set(tmp_path / "j", tmp_path / "s", truth, TASK)
    judged, read = list(JUDGED.values()), list(READ.values())
    assert documents_of(examples) == [("1", judged, "NO"), ("1", judged, "FIRST")]
    assert examples.without == ["1 c"]
    write_records(tmp_path / "s", [stance_reading("1", "b", READ), stance_reading("1", "c", READ)])
    examples = read_calibration_set(tmp_path / "j", tmp_path / "s", truth, TASK)
    assert documents_of(examples) == [("1", read, "FIRST"), ("1", read, "NO")]
    assert (examples.without, examples.prompt) == (["1 a"], "stance")


def test_probabilities_of_other_labels_are_an_error_with_topic_and_document(tmp_path: Path) -> None:
    write_records(tmp_path / "j", [judgment("1", "a", {"PRO": 0.5, "CON": 0.5})])
    with raises_at(DataError, tmp_path / "j", "topic 1, document a", "judge it again"):
        read_calibration_set(tmp_path / "j", tmp_path / "s", {"1": {"a": "NO"}}, TASK)
