from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import scipy.stats
from statsmodels.stats.multitest import multipletests

from tests.evaluation.judged_runs import qrels_of, run_of
from touche_llm.data.measure import CUTOFF, Measure, MeasureName
from touche_llm.evaluation.agreement import estimate_stances
from touche_llm.evaluation.significance import (
    MIN_TOPICS,
    MIN_TOPICS_POOLED,
    SEED,
    Estimate,
    _correct_holm,
    compare,
    compute_interval,
    describe_missing_intervals,
    estimate_mean,
)

M = Measure("relevance", MeasureName.NDCG, CUTOFF)
K = Measure("relevance", MeasureName.KAPPA)
ACCURACY = Measure("stance", MeasureName.ACCURACY)


def means(*values: float) -> Estimate:
    return estimate_mean({str(topic): value for topic, value in enumerate(values)})


def accuracies(right: list[int], size: int = 30) -> Estimate:
    """The accuracy of a run with so many right labels in each topic."""
    truth = {str(topic): {f"d{n}": "FIRST" for n in range(size)} for topic in range(len(right))}
    chosen = {
        (topic, document): "FIRST" if int(document[1:]) < right[int(topic)] else "NO"
        for topic, judged in truth.items()
        for document in judged
    }
    ranked = {topic: list(judged) for topic, judged in truth.items()}
    return estimate_stances(run_of(ranked, chosen), qrels_of({}, truth), 5)[ACCURACY]


@pytest.mark.parametrize("topics", [6, 120])
def test_the_interval_of_a_mean_is_that_of_student(topics: int) -> None:
    values = np.random.default_rng(topics).beta(2, 3, size=topics)
    expected = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert compute_interval(means(*values)) == pytest.approx(
        (expected.low, expected.high), rel=1e-12
    )
    other = np.random.default_rng(topics + 1).random(topics)
    (row,) = compare("b", {"a": {M: means(*values)}, "b": {M: means(*other)}}).to_dict("records")
    paired = scipy.stats.ttest_rel(values, other).confidence_interval(0.95)
    assert (row["low"], row["high"]) == pytest.approx((paired.low, paired.high), rel=1e-12)


def test_few_topics_have_no_interval() -> None:
    values = np.random.default_rng(1).random(20)
    for topics in range(6):
        assert all(map(math.isnan, compute_interval(means(*values[:topics])))) is (
            topics < MIN_TOPICS
        )
    right = [1 + topic % 30 for topic in range(MIN_TOPICS_POOLED)]
    for topics in (1, 5, MIN_TOPICS_POOLED - 1, MIN_TOPICS_POOLED):
        some, all_right = accuracies(right[:topics]), accuracies([30] * topics)
        (row,) = compare("base", {"base": {M: some}, "new": {M: all_right}}).to_dict("records")
        for low, high in (compute_interval(some), (row["low"], row["high"])):
            assert (math.isnan(low), math.isnan(high)) == (topics < MIN_TOPICS_POOLED,) * 2


def test_a_value_without_an_interval_is_noted_once_and_an_undefined_one_is_not() -> None:
    with_interval = {"value": 0.5, "low": 0.4, "high": 0.6}
    undefined = {"value": math.nan, "low": math.nan, "high": math.nan}
    assert describe_missing_intervals([with_interval, undefined]) == []
    (note,) = describe_missing_intervals([with_interval, *[{**undefined, "value": 0.5}] * 3])
    assert str(MIN_TOPICS) in note and str(MIN_TOPICS_POOLED) in note


def test_the_interval_of_pooled_documents_is_that_of_scipy() -> None:
    right = np.random.default_rng(3).integers(1, 31, size=50)
    expected = scipy.stats.bootstrap(
        (right / 30.0,),
        np.mean,
        method="percentile",
        n_resamples=10_000,
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    interval = compute_interval(accuracies(right.tolist()))
    assert interval == pytest.approx((expected.low, expected.high), rel=1e-12)


def test_differences_have_wins_ties_and_losses() -> None:
    runs = {
        "base": {M: means(0.1, 0.5, 0.5, 0.3, 0.2)},
        "new": {M: means(0.9, 0.5, 0.4, 0.6, 0.3)},
    }
    table = compare("base", runs)
    values = ["value", "baseline_value", "difference", "low", "high", "p", "p_holm"]
    assert list(table) == [
        "run",
        "baseline",
        "measure",
        *values,
        "wins",
        "ties",
        "losses",
        "n",
        "documents",
    ]
    (row,) = table.to_dict("records")
    assert (row["run"], row["baseline"], row["measure"]) == ("new", "base", M)
    assert row["difference"] == pytest.approx((0.8 + 0 - 0.1 + 0.3 + 0.1) / 5)
    assert (row["wins"], row["ties"], row["losses"], row["n"]) == (3, 1, 1, 5)
    assert row["low"] < row["difference"] < row["high"]


def test_few_topics_have_the_exact_randomisation_test() -> None:
    rng = np.random.default_rng(3)
    one, other = rng.random(7), rng.random(7)
    signs = np.array(list(product((1, -1), repeat=7)))
    swapped = np.abs((signs * (one - other)).mean(axis=1))
    exact = (swapped >= abs((one - other).mean()) - 1e-12).mean()
    (row,) = compare("b", {"a": {M: means(*one)}, "b": {M: means(*other)}}).to_dict("records")
    assert row["p"] == pytest.approx(exact)


@pytest.mark.parametrize("p", [[0.04, np.nan, 0.01, 0.01, 0.6, 0.5], [np.nan, 0.03], [0.5, 0.9]])
def test_holm_is_that_of_statsmodels(p: list[float]) -> None:
    defined = [each for each in p if not np.isnan(each)]
    expected = iter(multipletests(defined, method="holm")[1] if len(defined) > 1 else defined)
    corrected = [np.nan if np.isnan(each) else next(expected) for each in p]
    np.testing.assert_array_equal(_correct_holm(np.array(p)), corrected)


def test_only_topics_of_both_runs_are_compared() -> None:
    runs = {
        "a": {M: estimate_mean({"1": 0.5, "2": 0.7}), K: estimate_mean({"1": 1.0})},
        "b": {M: estimate_mean({"3": 0.9, "2": 0.9}), K: estimate_mean({})},
    }
    table = compare("a", runs).set_index("measure")
    assert table.loc[M, "difference"] == pytest.approx(0.2)
    assert table.loc[M, "n"] == 1 and table.loc[K, "n"] == 0
    assert table.loc[K, ["difference", "low", "high", "p", "p_holm"]].isna().all()
    assert list(table.loc[K, ["wins", "ties", "losses"]]) == [0, 0, 0]
