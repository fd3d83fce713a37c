"""Labels of judges from judgments, qrels and files of other tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.evaluation.judged_runs import qrels_of
from tests.expect import raises_at
from touche_llm.data.records import Judgment, Reading
from touche_llm.errors import DataError
from touche_llm.evaluation.judges.labels import (
    find_grade,
    read_label_file,
    take_judgment_labels,
    take_people_labels,
)
from touche_llm.evaluation.qrels import Qrels
from touche_llm.tasks import get_task
from touche_llm.tasks.parts import Scale
from touche_llm.tasks.task import Task

PASSAGES = get_task("passages")


def judged(
    grade: float, answered: int | None = None, shares: Mapping[str, float] | None = None
) -> Judgment:
    """A judgment of the relevance of a passage; inherited without an answered grade."""
    readings = {}
    if answered is not None:
        probabilities = None if shares is None else dict(shares)
        readings["relevance"] = Reading(answered=answered, probabilities=probabilities)
    return Judgment(
        topic_id="1",
        document_id="d",
        grades={"relevance": grade},
        stance="Q0",
        readings=readings,
        source="inherited" if answered is None else "value",
        prompt="judge",
    )


def with_mapping(grades: list[int]) -> Task:
    """The task of passages, whose people judge from 0 to 1."""
    return PASSAGES.model_copy(
        update={"qrels": {"relevance": Scale(0, 1)}, "qrels_mapping": {"relevance": grades}}
    )


@pytest.mark.parametrize(
    ("judgment", "expected"),
    [
        # The rounded expected grade would be 1 or 2.
        (judged(1.2, 0, {"0": 0.6, "3": 0.4}), 0),
        (judged(1.5, 3, {"0": 0.4, "1": 0.1, "2": 0.1, "3": 0.4}), 3),
        (judged(1.5, 1, {"0": 0.4, "1": 0.1, "2": 0.1, "3": 0.4}), 0),
        (judged(2.0, 2), 2),
        (judged(2.6), 3),
        (judged(3.0), 3),
        (judged(0.0), 0),
    ],
)
def test_the_label_is_the_most_probable_one(judgment: Judgment, expected: int) -> None:
    assert find_grade(judgment, "relevance", PASSAGES) == expected
    labels = take_judgment_labels([judgment], "relevance", PASSAGES, "judge")
    assert labels.labels == {"1": {"d": expected}}
    assert labels.grades["1"]["d"] == pytest.approx(judgment.grades["relevance"])


def test_mapped_grades_have_the_sum_of_their_probabilities() -> None:
    judgment = judged(1.2, 1, {"0": 0.35, "1": 0.4, "2": 0.05, "3": 0.2})
    labels = take_judgment_labels([judgment], "relevance", with_mapping([0, 0, 1, 1]), "judge")
    assert labels.categories == ("0", "1")
    assert labels.labels == {"1": {"d": 0}}
    assert labels.grades["1"]["d"] == pytest.approx(0.25)
    assert labels.probabilities["1"]["d"] == pytest.approx((0.75, 0.25))
    # The most probable grade of the prompt is 1, but 1 to 3 together are more probable than 0.
    generous = take_judgment_labels([judgment], "relevance", with_mapping([0, 1, 1, 1]), "judge")
    assert generous.labels == {"1": {"d": 1}}


def test_people_s_means_are_rounded_and_grades_below_the_scale_are_its_lowest() -> None:
    qrels = Qrels({"relevance": {"1": {"a": -2.0, "b": 1.5, "c": 2.0}}}, {}, (), PASSAGES.aspects)
    people = take_people_labels(qrels, "relevance")
    assert people.labels == {"1": {"a": 0, "b": 2, "c": 2}}
    assert people.grades == {"1": {"a": 0.0, "b": 1.5, "c": 2.0}}
    assert people.is_people


def test_stances_are_places_among_the_labels_of_the_task() -> None:
    qrels = qrels_of({}, {"1": {"a": "SECOND"}})
    assert take_people_labels(qrels, "stance").labels == {"1": {"a": 1}}


def test_a_file_has_labels_of_the_scale_of_the_qrels(tmp_path: Path) -> None:
    path = tmp_path / "judge.txt"
    path.write_text("1 0 a 3\n1 0 b 1.6\n\n2 0 a 0\n1 0 a 3\n")
    labels = read_label_file(path, "relevance", PASSAGES, name="judge")
    assert labels.labels == {"1": {"a": 3, "b": 2}, "2": {"a": 0}}
    assert labels.grades["1"]["b"] == 1.6
    other = read_label_file(path, "relevance", PASSAGES, name="judge", scale=Scale(0, 4))
    assert other.categories == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("1 0 a 1\n1 0 b 4\n", ":2"),
        ("1 0 a -1\n", ":1"),
        ("1 0 a yes\n", ":1"),
        ("1 0 a 1\n1 0 a 2\n", ":2"),
        ("1 0 a\n", ":1"),
        ("\n", ""),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, line: str) -> None:
    path = tmp_path / "judge.txt"
    path.write_text(content)
    with raises_at(DataError, f"{path}{line}"):
        read_label_file(path, "relevance", PASSAGES, name="judge")


def test_labels_outside_the_scale_can_be_left_out_and_others_cannot(tmp_path: Path) -> None:
    path = tmp_path / "judge.txt"
    path.write_text("1 0 a 1\n1 0 b 5\n1 0 c NaN\n")
    labels = read_label_file(path, "relevance", PASSAGES, name="judge", skip_bad_labels=True)
    assert (labels.labels, labels.left_out) == ({"1": {"a": 1}}, 2)
    path.write_text("1 0 b 5\n")
    with pytest.raises(DataError, match="no labels"):
        read_label_file(path, "relevance", PASSAGES, name="judge", skip_bad_labels=True)
