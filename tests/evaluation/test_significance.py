from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import scipy.special
import scipy.stats
from statsmodels.stats.multitest import multipletests

from tests.evaluation.judged_runs import qrels_of, run_of
from touche_llm.data.measure import CUTOFF, Measure, MeasureName
from touche_llm.evaluation.agreement import estimate_stances
from touche_llm.evaluation.significance import (
    HOLDING_TOPICS,
    MIN_TOPICS,
    Estimate,
    compare,
    compute_interval,
    correct_holm,
    describe_intervals,
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
def test_the_interval_of_a_mean_is_that_of_student_for_log_odds(topics: int) -> None:
    values = np.random.default_rng(topics).beta(2, 3, size=topics)
    student = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    mean = values.mean()
    half_width = (student.high - student.low) / 2.0 / (mean * (1.0 - mean))
    ends = scipy.special.expit(scipy.special.logit(mean) + np.array([-half_width, half_width]))
    assert compute_interval(means(*values)) == pytest.approx(tuple(ends), rel=1e-9)

    other = np.random.default_rng(topics + 1).random(topics)
    (row,) = compare("b", {"a": {M: means(*values)}, "b": {M: means(*other)}}).to_dict("records")
    paired = scipy.stats.ttest_rel(values, other).confidence_interval(0.95)
    # Fisher's z, since a difference is between -1 and 1.
    difference = row["difference"]
    half_width = (paired.high - paired.low) / 2.0 / (1.0 - difference**2)
    ends = np.tanh(np.arctanh(difference) + np.array([-half_width, half_width]))
    assert (row["low"], row["high"]) == pytest.approx(tuple(ends), rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_no_interval_leaves_the_range_of_its_measure(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.beta(
        random.uniform(0.1, 3.0), random.uniform(0.1, 3.0), size=int(random.integers(5, 12))
    )
    low, high = compute_interval(means(*values))
    assert 0.0 <= low <= values.mean() <= high <= 1.0


def test_values_that_do_not_differ_have_an_interval_without_width() -> None:
    assert compute_interval(means(*[0.3] * 7)) == pytest.approx((0.3, 0.3), abs=1e-12)
    assert compute_interval(means(*[1.0] * 7)) == (1.0, 1.0)


def test_a_value_outside_the_bounds_is_an_error() -> None:
    with pytest.raises(ValueError, match="bounds"):
        compute_interval(means(*[2.0, 3.0] * 5))


def test_a_mean_without_bounds_has_the_interval_of_student() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, size=30)
    estimate = estimate_mean(
        {str(topic): float(value) for topic, value in enumerate(values)}, bounds=None
    )
    expected = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert compute_interval(estimate) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_few_topics_have_no_interval() -> None:
    values = np.random.default_rng(1).random(20)
    right = [1 + topic % 30 for topic in range(MIN_TOPICS)]
    for topics in range(1, MIN_TOPICS + 1):
        is_missing = topics < MIN_TOPICS
        some, all_right = accuracies(right[:topics]), accuracies([30] * topics)
        (row,) = compare("base", {"base": {M: some}, "new": {M: all_right}}).to_dict("records")
        mean_interval = compute_interval(means(*values[:topics]))
        for low, high in (mean_interval, compute_interval(some), (row["low"], row["high"])):
            assert (math.isnan(low), math.isnan(high)) == (is_missing, is_missing)


def test_a_value_without_an_interval_is_noted_once_and_an_undefined_one_is_not() -> None:
    with_interval = {"value": 0.5, "low": 0.4, "high": 0.6, "n": HOLDING_TOPICS}
    undefined = {"value": math.nan, "low": math.nan, "high": math.nan, "n": 0}
    assert describe_intervals([with_interval, undefined]) == []
    (note,) = describe_intervals([with_interval, *[{**undefined, "value": 0.5}] * 3])
    assert str(MIN_TOPICS) in note


def test_an_interval_of_few_topics_is_noted_as_too_narrow() -> None:
    # Pooled documents are no topics.
    few = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 300, "topics": 8}
    (note,) = describe_intervals([few])
    assert "8 topics" in note and str(HOLDING_TOPICS) in note
    assert describe_intervals([{**few, "topics": HOLDING_TOPICS}]) == []


def test_the_interval_of_pooled_documents_is_that_of_the_jackknife() -> None:
    right = np.random.default_rng(3).integers(1, 31, size=50)
    value = right.mean() / 30.0
    without = (right.sum() - right) / 30.0 / 49.0
    error = math.sqrt(49.0 / 50.0 * np.square(without - without.mean()).sum())
    half_width = scipy.stats.t.ppf(0.975, 49) * error / (value * (1.0 - value))
    ends = scipy.special.expit(scipy.special.logit(value) + np.array([-half_width, half_width]))
    assert compute_interval(accuracies(right.tolist())) == pytest.approx(tuple(ends), rel=1e-9)


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


@pytest.mark.parametrize("topics", [9, 40])
def test_the_randomisation_test_is_that_of_scipy(topics: int) -> None:
    rng = np.random.default_rng(topics)
    one, other = rng.random(topics), rng.random(topics)
    (row,) = compare("b", {"a": {M: means(*one)}, "b": {M: means(*other)}}).to_dict("records")
    expected = scipy.stats.permutation_test(
        (one, other),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=10_000,
        rng=rng,
    )
    # 40 topics have a sample of all swaps, whose p has an error of its own.
    is_exact = topics == 9
    assert row["p"] == pytest.approx(expected.pvalue, rel=1e-12 if is_exact else 0.1)


@pytest.mark.parametrize("p", [[0.04, np.nan, 0.01, 0.01, 0.6, 0.5], [np.nan, 0.03], [0.5, 0.9]])
def test_holm_is_that_of_statsmodels(p: list[float]) -> None:
    defined = [each for each in p if not np.isnan(each)]
    expected = iter(multipletests(defined, method="holm")[1] if len(defined) > 1 else defined)
    corrected = [np.nan if np.isnan(each) else next(expected) for each in p]
    np.testing.assert_array_equal(correct_holm(np.array(p)), corrected)


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
