"""Estimates of systems on made-up pools whose grades are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fill import Case, make_made_up_cases
from touche_llm.evaluation.filling.alternatives import estimate_as_judged, measure_constant
from touche_llm.evaluation.filling.draws import compute_probabilities, draw_documents
from touche_llm.evaluation.filling.estimates import (
    GradeEstimator,
    estimate_by_judge,
    estimate_with_drawn,
    measure_drawn_half_widths,
    measure_filled,
    predict_drawn_half_widths,
)
from touche_llm.evaluation.filling.pool import NONE, Floats, SystemPool
from touche_llm.evaluation.filling.systems import FillRefusal, fill_systems


@pytest.fixture(scope="module")
def case() -> Case:
    (made,) = make_made_up_cases(range(5000, 5001), 5)
    return made


def measure_errors(pool: SystemPool, estimator: GradeEstimator) -> Floats:
    """Errors of all systems, each team left out in turn."""
    errors: list[Floats] = []
    for team in range(len(pool.teams)):
        value = measure_constant(pool, team, 0.0).mean(axis=1)
        filled = measure_filled(pool.hide_team(team), team, estimator).mean(axis=1)
        errors.append(filled - value)
    return np.concatenate(errors)


def test_errors_of_an_over_rating_judge_are_corrected(case: Case) -> None:
    as_judged = measure_errors(case["over-rating"], estimate_as_judged)
    corrected = measure_errors(case["over-rating"], estimate_by_judge)
    assert as_judged.mean() > 0.03
    assert abs(corrected.mean()) < 0.01
    assert np.abs(corrected).max() < np.abs(as_judged).max()


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_intervals_contain_most_values(case: Case, step: int) -> None:
    pool = case["good"]
    hits: list[bool] = []
    for team in range(0, len(pool.teams), step):
        value = measure_constant(pool, team, 0.0).mean(axis=1)
        estimates = fill_systems(pool.hide_team(team)).systems
        of_team = [estimate for estimate in estimates if estimate.team == pool.teams[team]]
        for true, estimate in zip(value, of_team, strict=True):
            assert estimate.refusal is None
            hits.append(abs(estimate.value - true) <= estimate.half_width)
    assert np.mean(hits) > 0.75


def test_only_a_useful_judge_adds_something(case: Case) -> None:
    assert not fill_systems(case["good"].hide_team(0)).adds_nothing
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, len(case["good"].labels))
    useless = replace(case["good"], labels=labels)
    assert fill_systems(useless.hide_team(0)).adds_nothing


def test_few_teams_are_refused_but_drawn_documents_need_none(case: Case) -> None:
    pool = case["good"].hide_team(0)
    for _ in range(4):
        pool = pool.drop_team(len(pool.teams) - 1)
    team = pool.teams[0]
    refusals = {item.refusal for item in fill_systems(pool).systems if item.team == team}
    assert refusals == {FillRefusal.FEW_TEAMS}

    drawn = draw_documents(pool, 0, 20, np.random.default_rng(0))
    grades = pool.grades.copy()
    grades[drawn.documents] = case["good"].grades[drawn.documents]
    judged = replace(pool, grades=np.where(pool.grades == NONE, grades, pool.grades))
    filled = fill_systems(judged, {team: drawn})
    assert {item.refusal for item in filled.systems if item.team == team} == {None}


def test_drawn_documents_correct_a_judge_that_favours_a_team(case: Case) -> None:
    pool = case["good"]
    is_alone = pool.is_found[0] & (pool.is_found.sum(axis=0) == 1)
    labels = np.minimum(pool.labels + is_alone, 3)
    favouring = replace(pool, labels=labels)
    hidden = favouring.hide_team(0)
    value = measure_constant(pool, 0, 0.0).mean(axis=1)
    without_drawn = measure_filled(hidden, 0, estimate_by_judge).mean(axis=1) - value

    drawn = draw_documents(hidden, 0, 30, np.random.default_rng(0))
    grades = hidden.grades.copy()
    grades[drawn.documents] = pool.grades[drawn.documents]
    judged = replace(hidden, grades=grades)
    with_drawn = measure_filled(judged, 0, estimate_with_drawn(drawn)).mean(axis=1) - value
    assert np.abs(with_drawn).mean() < np.abs(without_drawn).mean() / 2
    assert (np.abs(with_drawn) <= measure_drawn_half_widths(judged, 0, drawn)).all()


def test_more_drawn_documents_promise_narrower_intervals(case: Case) -> None:
    hidden = case["weak"].hide_team(0)
    widths = [
        predict_drawn_half_widths(hidden, 0, number, np.random.default_rng(0)).mean()
        for number in (10, 30, 60)
    ]
    assert widths == sorted(widths, reverse=True)
    assert (predict_drawn_half_widths(hidden, 0, 10_000, np.random.default_rng(0)) == 0.0).all()


def test_documents_are_drawn_as_often_as_their_probabilities_say(case: Case) -> None:
    hidden = case["good"].hide_team(0)
    unjudged = hidden.list_unjudged(0)
    counts = np.zeros(len(hidden.documents))
    expected = np.zeros(len(hidden.documents))
    for seed in range(300):
        drawn = draw_documents(hidden, 0, 15, np.random.default_rng(seed))
        assert len(drawn.documents) == 15
        assert set(drawn.documents) <= set(unjudged)
        counts[drawn.documents] += 1
        expected[drawn.documents] = drawn.probabilities
    is_seen = counts > 0
    assert np.abs(counts / 300 - expected)[is_seen].max() < 0.12


def test_probabilities_add_up_to_the_number_drawn() -> None:
    weights = np.array([100.0, 5.0, 1.0, 1.0, 1.0])
    probabilities = compute_probabilities(weights, 3)
    assert probabilities.sum() == pytest.approx(3.0)
    assert probabilities.max() == 1.0
    assert (compute_probabilities(weights, 9) == 1.0).all()
