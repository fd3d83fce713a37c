"""Measures of tables are those of scikit-learn and scipy, for random and degenerate tables."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from numpy.typing import NDArray

from touche_llm.evaluation.intervals import Array
from touche_llm.evaluation.judges.label_tables import (
    compute_accuracy,
    compute_auc,
    compute_kappa,
    compute_macro_f1,
    compute_quadratic_kappa,
    compute_spearman,
)

TABLES = 200
Labels = NDArray[np.intp]


@pytest.fixture(autouse=True)
def _undefined_values_are_no_failure() -> Iterator[None]:
    with warnings.catch_warnings():
        # The libraries warn of the degenerate tables.
        warnings.simplefilter("ignore")
        yield


def draw_labels(seed: int, rows: int, columns: int) -> tuple[Labels, Labels]:
    """Draw labels of people and of a judge; every fourth seed gives a degenerate table."""
    random = np.random.default_rng(seed)
    documents = int(random.integers(1, 80))
    people = random.choice(rows, documents, p=random.dirichlet(np.full(rows, 0.5)))
    judge = random.choice(columns, documents, p=random.dirichlet(np.full(columns, 0.5)))
    is_copied = random.random(documents) < random.random()
    judge = np.where(is_copied, np.minimum(people, columns - 1), judge)
    match seed % 12:
        case 0:
            people[:] = people[0]
        case 4:
            judge[:] = judge[0]
        case 8:
            # One label only: 0 / 0 in kappa.
            label = min(int(people[0]), columns - 1)
            people[:] = label
            judge[:] = label
    return people, judge


def make_table(people: Labels, judge: Labels, rows: int, columns: int) -> Array:
    table = np.zeros((rows, columns))
    np.add.at(table, (people, judge), 1.0)
    return table


def assert_equal(value: Array, expected: float) -> None:
    assert float(value) == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_kappa_is_that_of_scikit_learn() -> None:
    for seed in range(TABLES):
        size = 2 + seed % 4
        people, judge = draw_labels(seed, size, size)
        table = make_table(people, judge, size, size)
        labels = list(range(size))
        kappa = sklearn.metrics.cohen_kappa_score(people, judge, labels=labels)
        quadratic = sklearn.metrics.cohen_kappa_score(
            people, judge, labels=labels, weights="quadratic"
        )
        assert_equal(compute_kappa(table), kappa)
        assert_equal(compute_quadratic_kappa(table), quadratic)


def test_macro_f1_and_accuracy_are_those_of_scikit_learn() -> None:
    for seed in range(TABLES):
        size = 2 + seed % 4
        people, judge = draw_labels(seed, size, size)
        table = make_table(people, judge, size, size)
        assert_equal(
            compute_macro_f1(table), sklearn.metrics.f1_score(people, judge, average="macro")
        )
        assert_equal(compute_accuracy(table), sklearn.metrics.accuracy_score(people, judge))


def test_rectangular_tables_have_the_correlation_of_scipy_and_the_area_of_scikit_learn() -> None:
    for seed in range(TABLES):
        rows, columns = 2 + seed % 3, 2 + seed % 4
        people, judge = draw_labels(seed, rows, columns)
        table = make_table(people, judge, rows, columns)
        spearman = math.nan
        if len(people) > 1:
            spearman = float(scipy.stats.spearmanr(people, judge).statistic)
        assert_equal(compute_spearman(table), spearman)

        is_relevant = people >= 1
        area = math.nan
        if is_relevant.any() and not is_relevant.all():
            area = float(sklearn.metrics.roc_auc_score(is_relevant, judge))
        assert_equal(compute_auc(table, range(rows), 1), area)


def test_many_tables_are_measured_at_once() -> None:
    tables = np.random.default_rng(0).integers(0, 9, (5, 6, 4, 4)).astype(np.float64)
    for compute in (compute_kappa, compute_quadratic_kappa, compute_macro_f1, compute_spearman):
        values = compute(tables)
        assert values.shape == (5, 6)
        assert float(values[3, 2]) == pytest.approx(float(compute(tables[3, 2])))


def test_a_label_that_nobody_uses_does_not_change_macro_f1_but_one_that_is_missed_does() -> None:
    unused = np.array([[3.0, 1.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    missed = unused + np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert float(compute_macro_f1(unused)) == pytest.approx(float(compute_macro_f1(unused[:2, :2])))
    assert float(compute_macro_f1(missed)) < 0.7 * float(compute_macro_f1(unused))
