"""Measures of all systems of a pool, filled in, with intervals, and refusals where these carry nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

import numpy as np
from scipy.stats import t as student_t

from touche_llm.evaluation.filling.alternatives import (
    estimate_from_one_team,
    measure_bootstrapped,
    measure_condensed,
    measure_constant,
)
from touche_llm.evaluation.filling.estimates import (
    GradeEstimator,
    estimate_by_judge,
    estimate_with_drawn,
    estimate_without_judge,
    measure_drawn_half_widths,
    measure_filled,
    measure_half_widths,
)
from touche_llm.evaluation.filling.grades import DocumentDraw
from touche_llm.evaluation.filling.labels import measure_explained_share
from touche_llm.evaluation.filling.pool import Floats, SystemPool

# With fewer, the error cannot be seen on the other teams, or not on these topics.
MIN_TEAMS, MIN_TOPICS = 5, 20
MAX_HALF_WIDTH = 0.10
# Labels that explain less of the variance of people's grades narrow intervals by about a tenth or
# less.
MIN_EXPLAINED = 0.10
_HALF_WIDTHS = (
    "half_width",
    "half_width_of_topics",
    "half_width_without_judge",
    "half_width_without_labels",
)
_CONFIDENCE = 0.975
_BOOTSTRAP_SEED = 1


class FillRefusal(StrEnum):
    """Why a filled-in value is not given."""

    FEW_TEAMS = "fewer than five teams"
    FEW_TOPICS = "fewer than 20 topics"
    WIDE_INTERVAL = "too wide an interval"


@dataclass(frozen=True, slots=True)
class SystemEstimate:
    """nDCG of a system with unjudged documents.

    Attributes:
        team: Team of the system.
        system: Name of the system.
        value: nDCG, unjudged documents filled in.
        unjudged: Share of unjudged documents among the first.
        half_width: Half the width of the 95 % interval of the value on these topics, had people
            judged all documents.
        half_width_of_topics: The same for the value on other topics.
        half_width_without_judge: As `half_width`, each unjudged document with the mean grade of
            judged ones that one team found.
        half_width_without_labels: As `half_width`, each unjudged document with the mean grade that
            is predicted for the team without any label of the judge.
        lowest: nDCG with unjudged documents as 0.
        highest: nDCG with unjudged documents as the highest grade.
        condensed: nDCG of the condensed lists.
        bootstrapped: Bootstrapped nDCG.
        drawn: Number of documents that people judged since they were drawn.
        refusal: Why the value is not to be used; None if it is.
    """

    team: str
    system: str
    value: float
    unjudged: float
    half_width: float
    half_width_of_topics: float
    half_width_without_judge: float
    half_width_without_labels: float
    lowest: float
    highest: float
    condensed: float
    bootstrapped: float
    drawn: int
    refusal: FillRefusal | None

    @property
    def is_error_of_judge_known(self) -> bool:
        """Whether the interval is that of an estimate by the judge alone, from enough teams."""
        is_by_judge = self.drawn == 0 and self.unjudged > 0.0
        return is_by_judge and self.refusal in (None, FillRefusal.WIDE_INTERVAL)

    def to_row(self) -> dict[str, object]:
        """Return the attributes by name; a refused value and unknown half widths are None."""
        row = asdict(self)
        if self.refusal is not None:
            row["value"] = None
            row["refusal"] = str(self.refusal)
        for name in _HALF_WIDTHS:
            if not np.isfinite(row[name]):
                row[name] = None
        return row


@dataclass(frozen=True, slots=True)
class FilledSystems:
    """Measures of the systems of a pool.

    Attributes:
        systems: Estimates, team by team.
        depth: Cutoff of nDCG.
        topics: Number of topics.
        teams: Number of teams.
        explained: Share of the variance of people's grades that the judge's labels explain; NaN if
            it is not known.
    """

    systems: list[SystemEstimate]
    depth: int
    topics: int
    teams: int
    explained: float

    @property
    def adds_nothing(self) -> bool | None:
        """Whether the judge's labels say too little.

        None if no value rests on them, or if the share that they explain is not known.
        """
        has_value_by_judge = any(estimate.is_error_of_judge_known for estimate in self.systems)
        if not has_value_by_judge or np.isnan(self.explained):
            return None
        return adds_nothing(self.explained)

    def to_rows(self) -> list[dict[str, object]]:
        """Return the estimates as rows; refused values and unknown half widths are None."""
        return [
            {
                "measure": f"nDCG@{self.depth}",
                **estimate.to_row(),
                "topics": self.topics,
                "teams": self.teams,
                "judge_adds_nothing": self.adds_nothing,
                "explained": self.explained if np.isfinite(self.explained) else None,
            }
            for estimate in self.systems
        ]


def adds_nothing(explained: float) -> bool:
    """Return whether labels that explain this share of the variance of grades add nothing."""
    return explained < MIN_EXPLAINED


def fill_systems(
    pool: SystemPool,
    drawn: Mapping[str, DocumentDraw] | None = None,
    max_half_width: float = MAX_HALF_WIDTH,
) -> FilledSystems:
    """Measure all systems of a pool, their unjudged documents filled in.

    Args:
        pool: Pool of the systems.
        drawn: Documents that people judged since they were drawn from the unjudged ones of a team,
            by team.
        max_half_width: Half width above which a value is refused.
    """
    estimates: list[SystemEstimate] = []
    for team, name in enumerate(pool.teams):
        sample = (drawn or {}).get(name)
        estimates += _estimate_team(pool, team, sample, max_half_width)
    return FilledSystems(
        systems=estimates,
        depth=pool.depth,
        topics=len(pool.topics),
        teams=len(pool.teams),
        explained=measure_explained_share(pool),
    )


def _estimate_team(
    pool: SystemPool,
    team: int,
    drawn: DocumentDraw | None,
    max_half_width: float,
) -> list[SystemEstimate]:
    """Return the estimates of the systems of a team."""
    estimator: GradeEstimator = estimate_by_judge
    half_widths = measure_half_widths(pool, team, estimate_by_judge)
    if drawn is not None:
        estimator = estimate_with_drawn(drawn)
        half_widths = measure_drawn_half_widths(pool, team, drawn)

    values = measure_filled(pool, team, estimator)
    shares = pool.measure_shares(team)
    without_judge = measure_half_widths(pool, team, estimate_from_one_team)
    without_labels = measure_half_widths(pool, team, estimate_without_judge)
    random = np.random.default_rng(_BOOTSTRAP_SEED)
    columns = {
        "lowest": measure_constant(pool, team, 0.0),
        "highest": measure_constant(pool, team, pool.highest_grade),
        "condensed": measure_condensed(pool, team),
        "bootstrapped": measure_bootstrapped(pool, team, random),
    }
    estimates: list[SystemEstimate] = []
    for row, system in enumerate(pool.list_systems(team)):
        half_width = float(half_widths[row]) if shares[row] > 0.0 else 0.0
        topic_half_width = _measure_topic_half_width(values[row])
        estimate = SystemEstimate(
            team=pool.teams[team],
            system=pool.systems[system],
            value=float(values[row].mean()),
            unjudged=float(shares[row]),
            half_width=half_width,
            half_width_of_topics=float(np.hypot(half_width, topic_half_width)),
            half_width_without_judge=float(without_judge[row]) if shares[row] > 0.0 else 0.0,
            half_width_without_labels=float(without_labels[row]) if shares[row] > 0.0 else 0.0,
            drawn=0 if drawn is None else len(drawn.documents),
            refusal=_find_refusal(pool, half_width, max_half_width, has_drawn=drawn is not None),
            **{name: float(of_team[row].mean()) for name, of_team in columns.items()},
        )
        estimates.append(estimate)
    return estimates


def _find_refusal(
    pool: SystemPool, half_width: float, max_half_width: float, *, has_drawn: bool
) -> FillRefusal | None:
    """Return why a value is refused; None if it is not.

    A value without unjudged documents has no error of judges. Drawn documents need no other teams.
    """
    if half_width == 0.0:
        return None
    if len(pool.topics) < MIN_TOPICS:
        return FillRefusal.FEW_TOPICS
    if len(pool.teams) < MIN_TEAMS and not has_drawn:
        return FillRefusal.FEW_TEAMS
    if half_width > max_half_width:
        return FillRefusal.WIDE_INTERVAL
    return None


def _measure_topic_half_width(values: Floats) -> float:
    """Return half the width of Student's t interval of a mean over topics."""
    if len(values) < 2:
        return float("inf")
    quantile = student_t.ppf(_CONFIDENCE, len(values) - 1)
    return float(quantile * values.std(ddof=1) / np.sqrt(len(values)))
