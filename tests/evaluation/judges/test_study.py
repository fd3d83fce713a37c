"""Studies of judges: each planted defect shows in figures of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.evaluation.judges.planted_judges import (
    CUTOFF,
    DOCUMENTS,
    TOPICS,
    draw_grades,
    draw_systems,
    grade_as,
    make_generous_judge,
    make_labels,
    make_noisy_judge,
    make_partial_judge,
    make_reversing_judge,
)
from touche_llm.data.measure import Measure, MeasureName
from touche_llm.errors import DataError
from touche_llm.evaluation.judges.agreement import Agreement, AgreementName, measure_agreement
from touche_llm.evaluation.judges.differences import compare_judges
from touche_llm.evaluation.judges.labels import LabelSet
from touche_llm.evaluation.judges.study import JudgeStudy, describe_findings, study_judges
from touche_llm.evaluation.judges.systems import PairOutcome, SystemOrder
from touche_llm.tasks.parts import Scale

NDCG = Measure("relevance", MeasureName.NDCG, CUTOFF)


@pytest.fixture(scope="module")
def study() -> JudgeStudy:
    grades = draw_grades()
    systems = draw_systems(grades)
    judges = [
        make_noisy_judge(grades),
        make_reversing_judge(grades, systems),
        make_partial_judge(grades),
        make_generous_judge(grades),
    ]
    people = make_labels("people", grades, is_people=True)
    return study_judges([people], judges, systems, {"relevance": NDCG})


def agreement_of(study: JudgeStudy, judge: str) -> Agreement:
    (aspect,) = study.aspects
    return next(each for each in aspect.agreements if each.judge.name == judge)


def order_of(study: JudgeStudy, judge: str) -> SystemOrder:
    (aspect,) = study.aspects
    return next(order for order in aspect.orders if order.judge == judge)


def findings_of(study: JudgeStudy, judge: str) -> list[str]:
    return [line for line in describe_findings(study.aspects[0]) if line.startswith(f"{judge}:")]


def test_a_judge_with_low_kappa_can_have_the_right_order(study: JudgeStudy) -> None:
    kappa = agreement_of(study, "noisy").estimates[AgreementName.KAPPA].value
    order = order_of(study, "noisy")
    assert kappa < 0.3
    assert order.tau > 0.85
    assert order.count_pairs(PairOutcome.REVERSED) == 0
    assert not any("favours" in finding for finding in findings_of(study, "noisy"))


def test_a_judge_with_high_kappa_can_have_the_wrong_order(study: JudgeStudy) -> None:
    kappa = agreement_of(study, "reversing").estimates[AgreementName.KAPPA].value
    order = order_of(study, "reversing")
    assert kappa > 0.7
    assert order.tau < 0.5
    assert order.count_pairs(PairOutcome.REVERSED) >= 3
    pair = next(pair for pair in order.pairs if (pair.system, pair.other) == ("a1", "b3"))
    assert pair.outcome is PairOutcome.REVERSED
    assert pair.by_people > 0.0 > pair.by_judge


def test_a_judge_that_favours_a_family_is_named_with_its_systems(study: JudgeStudy) -> None:
    biases = {bias.system: bias for bias in order_of(study, "partial").biases}
    for system, bias in biases.items():
        is_favoured = system.startswith("a")
        assert bias.is_significant
        assert (bias.difference > 0.0) is is_favoured
        assert (bias.own_error > bias.other_error) is is_favoured
    favoured = [line for line in findings_of(study, "partial") if " favours " in line]
    assert len(favoured) == 1
    assert all(system in favoured[0] for system in ("a1", "a2", "a3"))
    assert "b1" not in favoured[0]


def test_a_judge_that_over_rates_is_named_and_favours_nobody(study: JudgeStudy) -> None:
    agreement = agreement_of(study, "generous")
    error = agreement.estimates[AgreementName.MEAN_ERROR].value
    assert error == pytest.approx(0.91, abs=0.03)
    assert {grade: each.value for grade, each in agreement.error_by_grade.items()} == {
        0: 1.0,
        1: 1.0,
        2: 1.0,
        3: 0.0,
    }
    findings = findings_of(study, "generous")
    assert any("over-rates" in finding for finding in findings)
    assert not any("favours" in finding for finding in findings)


def test_pairs_of_judges_are_compared_over_common_documents(study: JudgeStudy) -> None:
    (aspect,) = study.aspects
    differences = {
        (each.judge, each.other): each
        for each in aspect.differences
        if each.measure is AgreementName.KAPPA
    }
    assert len(differences) == 6
    noisy = agreement_of(study, "noisy").estimates[AgreementName.KAPPA].value
    partial = agreement_of(study, "partial").estimates[AgreementName.KAPPA].value
    difference = differences["noisy", "partial"]
    assert difference.difference == pytest.approx(noisy - partial)
    assert difference.is_significant
    assert difference.low <= difference.difference <= difference.high < 0.0
    assert (difference.documents, difference.topics) == (TOPICS * DOCUMENTS, TOPICS)


def test_every_row_has_its_documents_and_topics(study: JudgeStudy) -> None:
    rows = study.to_rows()
    assert {row["part"] for row in rows} == {
        "agreement",
        "error by grade",
        "table",
        "difference",
        "system",
        "order",
        "pair",
        "favour",
    }
    assert all(row["documents"] > 0 and row["topics"] > 0 for row in rows)
    cells = [row for row in rows if row["part"] == "table" and row["judge"] == "noisy"]
    assert sum(row["value"] for row in cells) == TOPICS * DOCUMENTS


def test_equal_judges_do_not_differ() -> None:
    grades = draw_grades()
    people = make_labels("people", grades, is_people=True)
    one = make_noisy_judge(grades)
    for difference in compare_judges(people, [one, replace(one, name="again")]):
        assert difference.difference == 0.0
        assert difference.p_holm == 1.0
        assert (difference.low, difference.high) == (0.0, 0.0)


def test_labels_of_other_topics_are_an_error() -> None:
    people = make_labels("people", {"1": {"d": 1}}, is_people=True)
    judge = make_labels("judge", {"2": {"d": 1}})
    with pytest.raises(DataError, match="judge"):
        study_judges([people], [judge], {}, {})


def test_judges_without_a_common_document_are_measured_but_not_compared() -> None:
    people = make_labels("people", {"1": {"d": 1, "e": 2}}, is_people=True)
    judges = [make_labels("one", {"1": {"d": 1}}), make_labels("other", {"1": {"e": 2}})]
    found = study_judges([people], judges, {}, {})
    assert [each.documents for each in found.aspects[0].agreements] == [1, 1]
    assert found.aspects[0].differences == []
    assert any("not compared" in note for note in found.notes)


def test_a_scale_of_three_grades_is_not_one_of_four_whose_last_is_unused() -> None:
    grades = draw_grades()
    three = {
        topic: {document: min(grade, 2) for document, grade in judged.items()}
        for topic, judged in grades.items()
    }
    unused = make_labels("people", three, is_people=True)
    other_scale = replace(unused, scale=Scale(0, 2), categories=("0", "1", "2"))
    judge = make_generous_judge(grades)

    with_kappa = measure_agreement(unused, judge)
    assert AgreementName.KAPPA in with_kappa.estimates and with_kappa.error_by_grade

    without = measure_agreement(other_scale, judge)
    assert set(without.estimates) == {AgreementName.SPEARMAN, AgreementName.AUC}
    assert without.confusion.shape == (3, 4)
    assert not without.error_by_grade


def test_the_intervals_of_eight_topics_are_noted_as_too_narrow() -> None:
    grades = dict(list(draw_grades().items())[:8])
    people = make_labels("people", grades, is_people=True)
    judges = [make_noisy_judge(grades)]
    found = study_judges([people], judges, {}, {})
    estimate = found.aspects[0].agreements[0].estimates[AgreementName.KAPPA]
    assert len(estimate.topics) == 8
    assert any("8 topics" in note and "too narrow" in note for note in found.interval_notes)


def test_a_judge_of_one_label_has_no_kappa_and_raises_no_error() -> None:
    grades = {f"q{topic}": {"d": 0, "e": 0} for topic in range(6)}
    people = make_labels("people", grades, is_people=True)
    judge = grade_as("constant", grades, lambda topic, document, grade: 0)
    estimates = measure_agreement(people, judge).estimates
    assert math.isnan(estimates[AgreementName.KAPPA].value)
    assert math.isnan(estimates[AgreementName.AUC].value)
    assert estimates[AgreementName.MEAN_ERROR].value == 0.0


def test_second_assessors_come_first_and_are_not_compared_with_judges() -> None:
    grades = draw_grades()
    people = make_labels("people", grades, is_people=True)
    noisy = make_noisy_judge(grades)
    second = replace(make_generous_judge(grades), name="second", is_people=True)
    (aspect,) = study_judges([people], [noisy, second], {}, {}).aspects
    assert [each.judge.name for each in aspect.agreements] == ["second", "noisy"]
    assert aspect.differences == []


def test_probabilities_give_the_most_probable_label_the_expected_grade_and_a_brier_score() -> None:
    shares = (0.4, 0.0, 0.3, 0.3)
    judge = LabelSet(
        "judge",
        "relevance",
        ("0", "1", "2", "3"),
        Scale(0, 3),
        labels={"1": {"d": 0}},
        grades={"1": {"d": 1.5}},
        probabilities={"1": {"d": shares}},
    )
    people = make_labels("people", {"1": {"d": 2}}, is_people=True)
    found = measure_agreement(people, judge)
    assert found.confusion[2, 0] == 1
    assert found.estimates[AgreementName.MEAN_ERROR].value == pytest.approx(-0.5)
    assert found.probabilities is not None
    expected = float(np.square(np.array(shares) - np.array([0, 0, 1, 0])).sum())
    assert found.probabilities.brier.score == pytest.approx(expected)
    assert found.probabilities.documents == 1
