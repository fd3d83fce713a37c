"""Differences between judges, tested over topics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from touche_llm.evaluation.intervals import Array, Formula
from touche_llm.evaluation.judges.agreement import (
    AgreementName,
    estimate_tables,
    join_labels,
    list_common_keys,
)
from touche_llm.evaluation.judges.labels import LabelSet
from touche_llm.evaluation.randomisation import SwapSums, compute_p, sum_swapped
from touche_llm.evaluation.significance import Estimate, compute_interval, correct_holm

# Level of significance after Holm's correction.
LEVEL = 0.05
# Measures by which judges are compared, as far as they are defined for an aspect.
_COMPARED = (AgreementName.KAPPA, AgreementName.QUADRATIC_KAPPA, AgreementName.MACRO_F1)
# Measure by which they are compared if their scales are not that of people.
_COMPARED_BY_ORDER = AgreementName.SPEARMAN


@dataclass(frozen=True, slots=True)
class JudgeDifference:
    """Difference of two judges by a measure, over the documents that all judges label.

    Attributes:
        judge: Name of the judge.
        other: Name of the judge whose value is subtracted.
        measure: Measure of agreement.
        difference: Value of the judge minus that of the other.
        low: Lower end of the 95 % interval of the difference.
        high: Upper end.
        p: Of the two-sided paired randomisation test over topics.
        p_holm: Corrected for all pairs of judges.
        documents: Number of documents.
        topics: Number of topics.
    """

    judge: str
    other: str
    measure: AgreementName
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    documents: int
    topics: int

    @property
    def is_significant(self) -> bool:
        """Whether the corrected p is below `LEVEL`."""
        return self.p_holm < LEVEL


def compare_judges(people: LabelSet, judges: Sequence[LabelSet]) -> list[JudgeDifference]:
    """Compare all pairs of judges over the documents that people and all judges label.

    Returns:
        Differences by measure and pair; only by measures that all judges have. Empty without
        common documents or for fewer than two judges.
    """
    keys = list_common_keys(people, judges)
    if len(judges) < 2 or not keys:
        return []

    estimates: dict[str, Mapping[AgreementName, Estimate]] = {}
    sums: dict[str, SwapSums] = {}
    for judge in judges:
        joint = join_labels(people, judge, keys)
        of_judge = estimate_tables(people, judge, joint)
        estimates[judge.name] = of_judge
        # All measures of a judge are computed from the same table of labels.
        any_estimate = next(iter(of_judge.values()))
        sums[judge.name] = sum_swapped(any_estimate.counts)

    differences: list[JudgeDifference] = []
    for measure in _choose_measures(list(estimates.values())):
        of_measure = {name: of_judge[measure] for name, of_judge in estimates.items()}
        differences += _compare_by_measure(measure, of_measure, sums)
    return differences


def _choose_measures(
    estimates: Sequence[Mapping[AgreementName, Estimate]],
) -> list[AgreementName]:
    """Return the measures to compare judges by, which all of them have."""
    measures = [
        measure for measure in _COMPARED if all(measure in of_judge for of_judge in estimates)
    ]
    return measures or [_COMPARED_BY_ORDER]


def _compare_by_measure(
    measure: AgreementName, estimates: Mapping[str, Estimate], sums: Mapping[str, SwapSums]
) -> list[JudgeDifference]:
    """Compare all pairs of judges by one measure, with Holm's correction over the pairs."""
    differences: list[JudgeDifference] = []
    for pair in combinations(estimates, 2):
        difference = _compare_pair(measure=measure, pair=pair, estimates=estimates, sums=sums)
        differences.append(difference)
    corrected = correct_holm(np.array([difference.p for difference in differences]))
    return [
        replace(difference, p_holm=p)
        for difference, p in zip(differences, corrected.tolist(), strict=True)
    ]


def _compare_pair(
    measure: AgreementName,
    pair: tuple[str, str],
    estimates: Mapping[str, Estimate],
    sums: Mapping[str, SwapSums],
) -> JudgeDifference:
    """Compare two judges by a measure, without correction."""
    judge, other = pair
    difference = subtract_estimates(estimates[judge], estimates[other])
    low, high = compute_interval(difference)
    return JudgeDifference(
        judge=judge,
        other=other,
        measure=measure,
        difference=difference.value,
        low=low,
        high=high,
        p=compute_p(estimates[judge].formula, sums[judge], sums[other]),
        p_holm=math.nan,
        documents=difference.n,
        topics=len(difference.topics),
    )


def subtract_estimates(one: Estimate, other: Estimate) -> Estimate:
    """Return the estimate of the difference of two estimates over the same topics."""
    return Estimate(
        topics=one.topics,
        counts=np.concatenate([one.counts, other.counts], axis=1),
        formula=_subtract_formulas(one.formula, other.formula, one.counts.shape[1]),
        documents=one.documents,
        bounds=one.bounds_of_difference,
    )


def _subtract_formulas(one: Formula, other: Formula, width: int) -> Formula:
    """Return the formula of a difference, whose first `width` counts are those of the first."""

    def difference(joined: Array) -> Array:
        return np.asarray(one(joined[..., :width]) - other(joined[..., width:]))

    return difference
