"""nDCG of systems with unjudged documents, and how far it may be from the value with judged ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.stats import t as student_t

from touche_llm.evaluation.filling.draws import draw_documents
from touche_llm.evaluation.filling.grades import (
    DocumentDraw,
    fit_grade_model,
    fit_without_each_drawn,
)
from touche_llm.evaluation.filling.pool import NONE, Floats, Integers, SystemPool

# Returns the expected grades of unjudged documents of a team, (documents,).
GradeEstimator = Callable[[SystemPool, int, Integers], Floats]
_CONFIDENCE = 0.975
# Draws over which a half width is predicted.
_PREDICTED_DRAWS = 5
# The common error is below that of a mean over the drawn documents, since judged ones count too. With
# 20 drawn documents half widths of 0.032 are predicted where the jackknife then gives 0.031.
_COMMON_DIVISOR = 1.6


def estimate_by_judge(pool: SystemPool, team: int, documents: Integers) -> Floats:
    """Return expected grades of unjudged documents from the labels of the judge."""
    return _expect(fit_grade_model(pool, team).estimate(pool.labels[documents]))


def estimate_without_judge(pool: SystemPool, team: int, documents: Integers) -> Floats:
    """Return for each document the mean grade that is predicted without any label."""
    mean = _expect(fit_grade_model(pool, team).mix)
    return np.full(len(documents), mean)


def estimate_with_drawn(drawn: DocumentDraw) -> GradeEstimator:
    """Return the estimator from the labels of the judge and the grades of drawn documents."""

    def estimate(pool: SystemPool, team: int, documents: Integers) -> Floats:
        model = fit_grade_model(pool, team, drawn)
        return _expect(model.estimate(pool.labels[documents]))

    return estimate


def measure_filled(pool: SystemPool, team: int, estimator: GradeEstimator) -> Floats:
    """Return nDCG of the systems of a team, (systems, topics), unjudged documents filled in.

    The expected grades of what this team has among its first also count in the ideal rankings.
    """
    gains = np.where(pool.is_judged, pool.grades, 0).astype(np.float64)
    unjudged = pool.list_unjudged(team)
    if len(unjudged) > 0:
        gains[unjudged] = estimator(pool, team, unjudged)
    return pool.measure_ndcg(gains, pool.list_systems(team))


def measure_half_widths(pool: SystemPool, team: int, estimator: GradeEstimator) -> Floats:
    """Return half the width of the 95 % interval of each system of a team, (systems,).

    The value in it is that on the same topics, had people judged all documents. Each other team is
    left out in turn: what it alone found is filled in, and its systems are measured. The error of a
    system is divided by its share of documents that are filled in. The interval assumes that teams
    are exchangeable, and nothing about the errors of the judge.

    Args:
        pool: Pool of the systems.
        team: Team whose systems are measured.
        estimator: Estimator of grades.
    """
    others = pool.drop_team(team)
    squares: list[float] = []
    for other in range(len(others.teams)):
        errors = _measure_errors(others, other, estimator)
        if len(errors) > 0:
            squares.append(float(np.mean(errors**2)))
    if not squares:
        return np.full(len(pool.list_systems(team)), np.inf)

    error_of_a_share = np.sqrt(np.mean(squares))
    quantile = student_t.ppf(_CONFIDENCE, len(squares))
    return np.asarray(pool.measure_shares(team) * error_of_a_share * quantile)


def _measure_errors(pool: SystemPool, team: int, estimator: GradeEstimator) -> Floats:
    """Return the errors of a team's systems if what it alone found is filled in, by their share."""
    hidden = pool.hide_team(team)
    shares = hidden.measure_shares(team) - pool.measure_shares(team)
    estimates = measure_filled(hidden, team, estimator).mean(axis=1)
    values = measure_filled(pool, team, estimator).mean(axis=1)
    has_hidden = shares > 0.0
    return np.asarray((estimates - values)[has_hidden] / shares[has_hidden])


def measure_drawn_half_widths(pool: SystemPool, team: int, drawn: DocumentDraw) -> Floats:
    """Return half the width of the 95 % interval of each system, (systems,), from drawn documents.

    Two errors add up. What the errors of the other documents have in common comes from the draw:
    its variance is that of the jackknife over drawn documents (Efron, The Jackknife, 1982). The
    error of each document itself is that of the drawn ones, each estimated from the others.

    Args:
        pool: Pool of the systems, with the grades of the drawn documents.
        team: Team whose systems are measured.
        drawn: Documents drawn from the unjudged ones of this team.
    """
    others = pool.list_unjudged(team)
    weights = _weigh_documents(pool, team, others)
    estimates: list[Floats] = []
    squares: list[float] = []
    models = fit_without_each_drawn(pool, team, drawn)
    for document, model in zip(drawn.documents, models, strict=True):
        estimates.append(_expect(model.estimate(pool.labels[others])))
        left_out = _expect(model.estimate(pool.labels[[document]]))[0]
        squares.append(float(pool.grades[document] - left_out) ** 2)

    count = len(drawn.documents)
    values = np.array(estimates) @ weights.T
    common_variances = (count - 1) * values.var(axis=0)
    variance_of_document = np.average(squares, weights=drawn.weights)
    own_variances = (weights**2).sum(axis=1) * variance_of_document
    quantile = student_t.ppf(_CONFIDENCE, max(count - 1, 1))
    return np.asarray(quantile * np.sqrt(common_variances + own_variances))


def predict_drawn_half_widths(
    pool: SystemPool, team: int, number: int, random: np.random.Generator
) -> Floats:
    """Return what `measure_drawn_half_widths` may give with `number` documents drawn, (systems,).

    The error of a document is that of the judged ones that one team found. It is the mean of
    several draws.

    Args:
        pool: Pool of the systems, before the draw.
        team: Team whose documents are drawn.
        number: Number of documents to draw; all are drawn if there are fewer.
        random: Source of randomness.
    """
    if number >= len(pool.list_unjudged(team)):
        return np.zeros(len(pool.list_systems(team)))

    variance = _measure_judged_variance(pool)
    unjudged = pool.list_unjudged(team)
    predicted: list[Floats] = []
    for _ in range(_PREDICTED_DRAWS):
        drawn = draw_documents(pool, team, number, random)
        others = np.setdiff1d(unjudged, drawn.documents)
        weights = _weigh_documents(pool, team, others)
        predicted.append(_predict_half_widths(weights, drawn, variance))
    return np.asarray(np.mean(predicted, axis=0))


def _predict_half_widths(weights: Floats, drawn: DocumentDraw, variance: float) -> Floats:
    """Return half widths, (systems,), from the error of a document.

    Args:
        weights: What each document that is not drawn adds for a grade, (systems, documents).
        drawn: Drawn documents.
        variance: Mean squared error of a document's estimated grade.
    """
    count = len(drawn.documents)
    effective_count = drawn.weights.sum() ** 2 / (drawn.weights**2).sum()
    own_variances = (weights**2).sum(axis=1) * variance
    common_variance = variance / (_COMMON_DIVISOR * effective_count)
    common_variances = weights.sum(axis=1) ** 2 * common_variance
    quantile = student_t.ppf(_CONFIDENCE, max(count - 1, 1))
    return np.asarray(quantile * np.sqrt(common_variances + own_variances))


def _measure_judged_variance(pool: SystemPool) -> float:
    """Return the mean squared error of judged documents that one team found."""
    is_of_one_team = pool.is_judged & (pool.is_found.sum(axis=0) == 1)
    errors: list[Floats] = []
    for team in range(len(pool.teams)):
        documents = np.flatnonzero(is_of_one_team & pool.is_found[team])
        estimated = estimate_by_judge(pool, team, documents)
        errors.append(pool.grades[documents] - estimated)
    return float(np.mean(np.concatenate(errors) ** 2))


def _weigh_documents(pool: SystemPool, team: int, documents: Integers) -> Floats:
    """Return how much documents add to the nDCG of each system for a grade, (systems, documents)."""
    gains = np.where(pool.is_judged, pool.grades, 0).astype(np.float64)
    unjudged = pool.list_unjudged(team)
    gains[unjudged] = estimate_by_judge(pool, team, unjudged)
    factors = pool.compute_ideal_factors(gains) / len(pool.topics)
    rank_weights = factors[:, np.newaxis] * pool.discounts

    tops = pool.tops[pool.list_systems(team)]
    weights = np.zeros((len(tops), len(pool.documents)))
    for row, top in enumerate(tops):
        is_document = top != NONE
        weights[row, top[is_document]] = rank_weights[is_document]
    return weights[:, documents]


def _expect(probabilities: Floats) -> Floats:
    """Return the expected grades of probabilities of grades, along the last axis."""
    return np.asarray(probabilities @ np.arange(probabilities.shape[-1]))
