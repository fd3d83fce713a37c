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
    measure_half_widths,
    predict_drawn_half_widths,
)
from touche_llm.evaluation.filling.labels import bin_labels, measure_explained_share
from touche_llm.evaluation.filling.pool import NONE, Floats, SystemPool, make_pool
from touche_llm.evaluation.filling.systems import FillRefusal, fill_systems
from touche_llm.evaluation.filling.team_means import predict_mean_grade, tilt_mix
from touche_llm.evaluation.judges.labels import LabelSet
from touche_llm.tasks.parts import Scale


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


def test_intervals_contain_most_values(case: Case) -> None:
    pool = case["good"]
    hits: list[np.bool_] = []
    for team in range(len(pool.teams)):
        value = measure_constant(pool, team, 0.0).mean(axis=1)
        hidden = pool.hide_team(team)
        errors = measure_filled(hidden, team, estimate_by_judge).mean(axis=1) - value
        hits += list(np.abs(errors) <= measure_half_widths(hidden, team, estimate_by_judge))
    assert np.mean(hits) > 0.75


def test_a_team_whose_shared_documents_are_better_found_better_ones_alone() -> None:
    # The line through the other teams has the slope 1, whatever the prior.
    shared = {"a": 0, "b": 1, "c": 2, "d": 2}
    grades: dict[str, dict[str, int]] = {}
    systems: dict[str, dict[str, dict[str, list[str]]]] = {
        team: {team: {}} for team in (*shared, "judge of all")
    }
    for number in range(10):
        topic = f"q{number}"
        grades[topic] = {f"{team} shared": grade for team, grade in shared.items()}
        grades[topic] |= {f"{team} alone": grade + 1 for team, grade in shared.items()}
        for team in shared:
            systems[team][team][topic] = [f"{team} shared", f"{team} alone"]
        systems["judge of all"]["judge of all"][topic] = [f"{team} shared" for team in shared]
    pool = make_pool(systems, grades, grades, depth=4, highest_grade=3, label_count=4)
    hidden = pool.hide_team(0)
    predicted = predict_mean_grade(hidden, 0)
    assert predicted is not None
    assert predicted.grade == pytest.approx(1.0)
    assert predict_mean_grade(hidden.drop_team(4), 0) is None


def test_a_predicted_mean_counts_less_if_those_of_other_teams_are_wrong(case: Case) -> None:
    pool = case["good"]
    regular = predict_mean_grade(pool, 0)
    assert regular is not None

    # What every second team alone found is worse than its shared documents let expect.
    is_of_one_team = pool.is_found.sum(axis=0) == 1
    is_worse = is_of_one_team & pool.is_found[1::2].any(axis=0)
    irregular = predict_mean_grade(replace(pool, grades=np.where(is_worse, 0, pool.grades)), 0)
    assert irregular is not None
    assert 0.0 < irregular.documents < regular.documents / 2


def test_the_mix_of_grades_is_tilted_to_a_mean() -> None:
    mix = np.array([0.4, 0.3, 0.2, 0.1])
    assert tilt_mix(mix, 1.0) == pytest.approx(mix)
    for mean in (0.3, 1.7, 2.8):
        assert tilt_mix(mix, mean) @ np.arange(4) == pytest.approx(mean)
    assert tilt_mix(mix, 9.0) @ np.arange(4) < 3.0


def test_explained_share_is_that_of_the_variance_within_labels(case: Case) -> None:
    pool = case["good"]
    assert measure_explained_share(replace(pool, labels=pool.grades)) == pytest.approx(1.0)
    one_label = replace(pool, labels=np.zeros_like(pool.labels))
    assert measure_explained_share(one_label) == pytest.approx(0.0)
    reversed_labels = replace(pool, labels=np.where(pool.is_judged, 3 - pool.grades, NONE))
    assert measure_explained_share(reversed_labels) == pytest.approx(1.0)
    shares = [measure_explained_share(case[name]) for name in ("good", "weak", "uninformative")]
    assert shares == sorted(shares, reverse=True)


def test_what_labels_explain_is_never_negative_and_unknown_without_variance(case: Case) -> None:
    pool = case["good"]
    random = np.random.default_rng(1)
    for _ in range(20):
        chance = replace(pool, labels=random.permutation(pool.labels))
        assert 0.0 <= measure_explained_share(chance) < 0.05

    same_grades = replace(pool, grades=np.ones_like(pool.grades)).hide_team(0)
    assert np.isnan(measure_explained_share(same_grades))
    assert fill_systems(same_grades).adds_nothing is None


def test_expected_grades_are_binned_at_quantiles_of_the_judged_documents() -> None:
    documents = [f"d{number:02d}" for number in range(40)]
    grades = {document: number / 40 for number, document in enumerate(documents)}
    grades["unjudged"] = 3.0
    judge = make_judge(grades)
    people = make_people(documents)

    labels, count = bin_labels(judge, people)
    assert count == 8
    binned = [labels["q"][document] for document in documents]
    assert binned == sorted(binned)
    assert np.bincount(binned).tolist() == [5] * 8
    assert labels["q"]["unjudged"] == 7


@pytest.mark.parametrize("lower_count", [4, 36])
def test_a_grade_that_most_documents_share_has_a_bin_of_its_own(lower_count: int) -> None:
    documents = [f"d{number:02d}" for number in range(40)]
    grades = dict.fromkeys(documents, 1.0) | dict.fromkeys(documents[:lower_count], 0.0)
    labels, count = bin_labels(make_judge(grades), make_people(documents))
    assert count == 2
    assert set(map(labels["q"].get, documents[:lower_count])) == {0}
    assert set(map(labels["q"].get, documents[lower_count:])) == {1}


def test_labels_without_probabilities_are_not_binned() -> None:
    people = make_people(["d"])
    assert bin_labels(people, people) == (people.labels, 4)


def make_judge(grades: dict[str, float]) -> LabelSet:
    """Return a judge with probabilities, whose most probable label is always 0."""
    return LabelSet(
        name="judge",
        aspect="relevance",
        categories=("0", "1", "2", "3"),
        scale=Scale(0, 3),
        labels={"q": dict.fromkeys(grades, 0)},
        grades={"q": grades},
        probabilities={"q": dict.fromkeys(grades, (0.7, 0.1, 0.1, 0.1))},
    )


def make_people(documents: list[str]) -> LabelSet:
    """Return people who give each document the grade 1."""
    return LabelSet(
        name="people",
        aspect="relevance",
        categories=("0", "1", "2", "3"),
        scale=Scale(0, 3),
        labels={"q": dict.fromkeys(documents, 1)},
        grades={"q": dict.fromkeys(documents, 1.0)},
        is_people=True,
    )


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
