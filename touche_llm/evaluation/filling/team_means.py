"""Mean grade of what a team alone found, predicted from what it found together with others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from touche_llm.evaluation.filling.pool import Booleans, Floats, SystemPool

# A team counts if people judged so many documents that it alone found.
_MIN_DOCUMENTS = 5
# A line through fewer teams says little.
_MIN_TEAMS = 3
# The slope is drawn towards 1: documents that a team alone found are better by as much as those
# that it found together with others. This counts as much as a squared deviation of teams; that of
# seven teams is about 0.2.
_PRIOR_SLOPE = 1.0
_PRIOR_DEVIATION = 0.05
# A predicted mean counts as at most so many documents.
_MAX_DOCUMENTS = 40.0
# Variance of grades that are all the same.
_MIN_VARIANCE = 1e-3
# Predicted means are so far from both ends of the scale, in grades.
_MARGIN = 0.1
# Bounds of the exponent that tilts a mix, by grade.
_MAX_EXPONENT = 20.0


@dataclass(frozen=True, slots=True)
class TeamMeans:
    """Mean grades of the judged documents of each team.

    Attributes:
        shared: Mean grade of what each team and another one found, (teams,); NaN without any.
        alone: Mean grade of what each team alone found, (teams,); NaN without any.
        counts: Number of judged documents that each team alone found, (teams,).
    """

    shared: Floats
    alone: Floats
    counts: Floats


def measure_team_means(pool: SystemPool) -> TeamMeans:
    """Return the mean grades of the judged documents of each team."""
    is_judged = pool.is_found & pool.is_judged
    is_of_one_team = pool.is_found.sum(axis=0) == 1
    return TeamMeans(
        shared=_average_grades(pool, is_judged & ~is_of_one_team),
        alone=_average_grades(pool, is_judged & is_of_one_team),
        counts=(is_judged & is_of_one_team).sum(axis=1).astype(np.float64),
    )


def _average_grades(pool: SystemPool, is_chosen: Booleans) -> Floats:
    """Return the mean grade of the chosen documents of each team, NaN without any."""
    counts = is_chosen.sum(axis=1)
    sums = is_chosen @ np.where(pool.is_judged, pool.grades, 0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


@dataclass(frozen=True, slots=True)
class PredictedMean:
    """Mean grade that is predicted for what a team alone found.

    Attributes:
        grade: The mean grade.
        documents: Number of judged documents whose mean would be as far from the true one.
    """

    grade: float
    documents: float


def predict_mean_grade(pool: SystemPool, team: int) -> PredictedMean | None:
    """Return the mean grade of what a team alone found, from the line through the other teams.

    A team whose judged documents are good finds good ones alone too. How far such a prediction is
    from the true mean is seen on the other teams, each predicted from the rest.

    Args:
        pool: Pool of the systems.
        team: Team whose unjudged documents are filled in.

    Returns:
        The mean grade; None if too few teams found judged documents both alone and with others.
    """
    means = measure_team_means(pool)
    is_usable = (means.counts >= _MIN_DOCUMENTS) & ~np.isnan(means.shared)
    is_usable[team] = False
    if is_usable.sum() < _MIN_TEAMS or np.isnan(means.shared[team]):
        return None

    grade = _predict(means, team, is_usable)
    grade_variance = _measure_grade_variance(pool)
    squares: list[float] = []
    for other in np.flatnonzero(is_usable).tolist():
        is_fitted = is_usable.copy()
        is_fitted[other] = False
        error = _predict(means, other, is_fitted) - means.alone[other]
        # The mean of the judged documents is itself this far from the true one.
        squares.append(error**2 - grade_variance / means.counts[other])
    error_variance = max(float(np.mean(squares)), grade_variance / _MAX_DOCUMENTS)
    return PredictedMean(grade, documents=grade_variance / error_variance)


def _predict(means: TeamMeans, team: int, is_fitted: Booleans) -> float:
    """Return the mean grade of what a team alone found, by a line through some of the others.

    The line is fitted by least squares with a prior of its slope (ridge regression).
    """
    shared = means.shared[is_fitted]
    alone = means.alone[is_fitted]
    shared_deviations = shared - shared.mean()
    alone_deviations = alone - alone.mean()
    product = shared_deviations @ alone_deviations + _PRIOR_DEVIATION * _PRIOR_SLOPE
    slope = product / (shared_deviations @ shared_deviations + _PRIOR_DEVIATION)
    return float(alone.mean() + slope * (means.shared[team] - shared.mean()))


def _measure_grade_variance(pool: SystemPool) -> float:
    """Return the variance of the grades of judged documents that one team found."""
    is_of_one_team = pool.is_found.sum(axis=0) == 1
    return max(float(pool.grades[pool.is_judged & is_of_one_team].var()), _MIN_VARIANCE)


def tilt_mix(mix: Floats, mean: float) -> Floats:
    """Return the mix of grades with this mean that is nearest to another mix.

    Nearest is that with the least Kullback-Leibler divergence: each grade's probability is
    multiplied by an exponential function of the grade (Csiszár, Annals of Probability 3(1), 1975).

    Args:
        mix: Probability of each grade, (grades,), all above 0.
        mean: Mean grade; one beyond the scale is moved into it.
    """
    grades = np.arange(len(mix))
    reachable = float(np.clip(mean, _MARGIN, len(mix) - 1 - _MARGIN))

    def measure_excess(exponent: float) -> float:
        return float(_tilt(mix, exponent) @ grades) - reachable

    return _tilt(mix, brentq(measure_excess, -_MAX_EXPONENT, _MAX_EXPONENT))


def _tilt(mix: Floats, exponent: float) -> Floats:
    """Return a mix whose grades are weighted by an exponential function."""
    weighted = mix * np.exp(exponent * np.arange(len(mix)))
    return np.asarray(weighted / weighted.sum())
