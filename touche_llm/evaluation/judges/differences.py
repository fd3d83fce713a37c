"""Differences between judges, tested over topics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from touche_llm.evaluation.judges.agreement import (
    AgreementName,
    count_labels,
    estimate_tables,
    join_labels,
    list_common_documents,
)
from touche_llm.evaluation.judges.labels import DocumentKey, LabelSet
from touche_llm.evaluation.randomisation import SwapSums, compute_p, sum_swapped
from touche_llm.evaluation.significance import (
    Estimate,
    compute_interval,
    correct_holm,
    subtract_estimates,
)

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
    documents = list_common_documents(people, judges)
    if len(judges) < 2 or not documents:
        return []

    measured_judges = [_measure_judge(people, judge, documents) for judge in judges]
    differences: list[JudgeDifference] = []
    for measure in _choose_measures(measured_judges):
        differences += _compare_by_measure(measure, measured_judges)
    return differences


@dataclass(frozen=True, slots=True)
class _MeasuredJudge:
    """Agreement of a judge with people over the documents that all judges label.

    Attributes:
        name: Name of the judge.
        estimates: Estimates by measure, all computed from the same table of labels.
        swap_sums: Sums of the table's cells for the tests of pairs.
    """

    name: str
    estimates: Mapping[AgreementName, Estimate]
    swap_sums: SwapSums


def _measure_judge(
    people: LabelSet, judge: LabelSet, documents: Sequence[DocumentKey]
) -> _MeasuredJudge:
    """Measure the agreement of a judge with people over documents that both label."""
    joint = join_labels(people, judge, documents)
    tables = count_labels(people, judge, joint).astype(np.float64)
    cells = tables.reshape(len(joint.topics), -1)
    return _MeasuredJudge(
        name=judge.name,
        estimates=estimate_tables(people, judge, joint),
        swap_sums=sum_swapped(cells),
    )


def _choose_measures(judges: Sequence[_MeasuredJudge]) -> list[AgreementName]:
    """Return the measures to compare judges by, which all of them have."""
    measures: list[AgreementName] = []
    for measure in _COMPARED:
        if all(measure in judge.estimates for judge in judges):
            measures.append(measure)
    return measures or [_COMPARED_BY_ORDER]


def _compare_by_measure(
    measure: AgreementName, judges: Sequence[_MeasuredJudge]
) -> list[JudgeDifference]:
    """Compare all pairs of judges by one measure, with Holm's correction over the pairs."""
    pairs = combinations(judges, 2)
    differences = [_compare_pair(measure, judge, other) for judge, other in pairs]

    corrected = correct_holm(np.array([difference.p for difference in differences]))
    return [
        replace(difference, p_holm=p_holm)
        for difference, p_holm in zip(differences, corrected.tolist(), strict=True)
    ]


def _compare_pair(
    measure: AgreementName, judge: _MeasuredJudge, other: _MeasuredJudge
) -> JudgeDifference:
    """Compare two judges by a measure; p is not corrected yet."""
    estimate = judge.estimates[measure]
    difference = subtract_estimates(estimate, other.estimates[measure])
    low, high = compute_interval(difference)
    return JudgeDifference(
        judge=judge.name,
        other=other.name,
        measure=measure,
        difference=difference.value,
        low=low,
        high=high,
        p=compute_p(estimate.formula, judge.swap_sums, other.swap_sums),
        p_holm=math.nan,
        documents=difference.n,
        topics=len(difference.topics),
    )
