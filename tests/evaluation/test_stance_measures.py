from __future__ import annotations

import math

import pytest

from tests.evaluation.judged_runs import TASK, qrels_of, run_of
from tests.expect import raises_at
from touche_llm.data.measure import CUTOFF, MACRO_F1, Measure, MeasureName
from touche_llm.errors import DataError
from touche_llm.evaluation.agreement import (
    count_confusion,
    estimate_labels,
    estimate_stances,
    round_grade,
)
from touche_llm.evaluation.measures import evaluate_run

MACRO_F1_AT_5 = Measure("stance", MeasureName.MACRO_F1, CUTOFF)
ACCURACY = Measure("stance", MeasureName.ACCURACY)
ACCURACY_AT_5 = Measure("stance", MeasureName.ACCURACY, CUTOFF)
TRUTH = {"1": {"a": "FIRST", "b": "NO", "c": "NO"}, "2": {"a": "FIRST", "f": "SECOND"}}
RUN = run_of(
    {"1": ["a", "x", "b", "c"], "2": ["v", "w", "x", "y", "z", "f"]},
    {("1", "a"): "FIRST", ("1", "x"): "NO", ("1", "b"): "FIRST", ("2", "f"): "SECOND"},
)
QRELS = qrels_of({}, TRUTH)


def test_judged_documents_that_carry_a_label_count() -> None:
    estimates = estimate_stances(RUN, QRELS, 5)
    # Of topic 1 a (right) and b (NO taken for FIRST): c has no label, x no judgment; of topic 2 f
    # (right), in place 6. F1 is 2/3 for FIRST, 0 for NO, 1 for SECOND; NEUTRAL is nowhere.
    assert estimates[MACRO_F1].value == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert estimates[ACCURACY].value == pytest.approx(2 / 3)
    assert estimates[MACRO_F1].n == 3
    # The top alone is measured too.
    assert estimates[MACRO_F1_AT_5].value == pytest.approx((2 / 3 + 0) / 2)
    assert estimates[ACCURACY_AT_5].value == pytest.approx(1 / 2)
    assert (estimates[ACCURACY_AT_5].n, estimates[ACCURACY_AT_5].topics) == (2, ("1",))


def test_precision_and_recall_are_over_the_documents_with_the_label() -> None:
    estimates = estimate_labels(RUN, QRELS)
    # Of each label the value, and the documents that it is over.
    precision = {
        "FIRST": (1 / 2, 2),
        "SECOND": (1.0, 1),
        "NEUTRAL": (math.nan, 0),
        "NO": (math.nan, 0),
    }
    recall = {"FIRST": (1.0, 1), "SECOND": (1.0, 1), "NEUTRAL": (math.nan, 0), "NO": (0.0, 1)}
    cases = {MeasureName.LABEL_PRECISION: precision, MeasureName.LABEL_RECALL: recall}
    for name, expected in cases.items():
        for label, (value, documents) in expected.items():
            estimate = estimates[Measure("stance", name, label=label)]
            assert (estimate.value, estimate.n) == pytest.approx((value, documents), nan_ok=True)
    # No resample of topics is without such a document.
    recall_of_no = Measure("stance", MeasureName.LABEL_RECALL, label="NO")
    precision_of_first = Measure("stance", MeasureName.LABEL_PRECISION, label="FIRST")
    assert estimates[recall_of_no].topics == estimates[precision_of_first].topics == ("1",)
    assert count_confusion(RUN, QRELS).tolist() == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 0],
        [1, 0, 0, 0],
    ]


def test_a_run_without_labels_has_no_value() -> None:
    found = evaluate_run("run", run_of({"1": ["a"]}), QRELS)
    summary = found.summary()
    assert len(summary) == 4 + 2 * len(TASK.stances)
    assert summary["value"].isna().all() and (summary["n"] == 0).all()
    assert found.per_topic().empty


def test_a_label_of_another_task_is_an_error() -> None:
    run = run_of({"1": ["a"]}, {("1", "a"): "PRO"})
    with raises_at(DataError, "topic 1, document a", "'PRO'", "FIRST, SECOND, NEUTRAL, NO"):
        estimate_stances(run, QRELS, 5)


def test_expected_grades_are_rounded_and_there_is_none_below_0() -> None:
    assert [round_grade(grade) for grade in (-2.0, 0.49, 0.5, 1.5, 2.49, 2.5, 3.0)] == [
        0,
        0,
        1,
        2,
        2,
        3,
        3,
    ]
