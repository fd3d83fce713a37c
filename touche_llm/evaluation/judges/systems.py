"""The order in which a judge ranks systems, beside that of people, and whom the judge favours."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations

import numpy as np

from touche_llm.data.measure import Measure
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.evaluation.intervals import TIE, Bounds
from touche_llm.evaluation.judges.agreement import find_error_bounds, list_common_documents
from touche_llm.evaluation.judges.differences import LEVEL
from touche_llm.evaluation.judges.labels import DocumentKey, LabelSet
from touche_llm.evaluation.judges.rank_correlation import compute_kendall_tau, compute_tau_ap
from touche_llm.evaluation.qrels import Grades
from touche_llm.evaluation.randomisation import compute_p, sum_swapped
from touche_llm.evaluation.significance import (
    Estimate,
    compute_interval,
    correct_holm,
    ratio,
    subtract_estimates,
)


class PairOutcome(StrEnum):
    """Whose grades find a significant difference between two systems."""

    BOTH = "both"
    PEOPLE = "only people"
    JUDGE = "only the judge"
    REVERSED = "reversed"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class SystemPair:
    """Difference of two systems by people's grades and by the judge's.

    Attributes:
        system: Name of the system.
        other: Name of the system whose value is subtracted.
        by_people: Difference by people's grades.
        by_judge: Difference by the judge's grades.
        p_people: Corrected p of the paired randomisation test by people's grades.
        p_judge: Corrected p by the judge's grades.
    """

    system: str
    other: str
    by_people: float
    by_judge: float
    p_people: float
    p_judge: float

    @property
    def outcome(self) -> PairOutcome:
        """Whose grades find a significant difference."""
        is_by_people = self.p_people < LEVEL
        is_by_judge = self.p_judge < LEVEL
        if is_by_people and is_by_judge:
            has_same_sign = self.by_people * self.by_judge > 0.0
            return PairOutcome.BOTH if has_same_sign else PairOutcome.REVERSED
        if is_by_people:
            return PairOutcome.PEOPLE
        if is_by_judge:
            return PairOutcome.JUDGE
        return PairOutcome.NEITHER


@dataclass(frozen=True, slots=True)
class SystemBias:
    """Errors of a judge on the first documents of a system, beside those of the other systems.

    Attributes:
        system: Name of the system.
        own_error: Mean error on its documents; NaN without any that both label.
        other_error: Mean error on the documents of the other systems that are not its own.
        difference: Mean error on its documents minus that on the others, each error after
            subtracting the mean error of all documents that people grade the same: a good system
            has documents of other grades, on which every judge errs otherwise.
        low: Lower end of the 95 % interval of the difference.
        high: Upper end.
        p_holm: Of the paired randomisation test over topics, corrected for the number of systems.
        documents: Number of its documents.
        other_documents: Number of documents of the other systems.
        topics: Number of topics with documents of both sides.
    """

    system: str
    own_error: float
    other_error: float
    difference: float
    low: float
    high: float
    p_holm: float
    documents: int
    other_documents: int
    topics: int

    @property
    def is_significant(self) -> bool:
        """Whether the corrected p is below `LEVEL`."""
        return self.p_holm < LEVEL


@dataclass(frozen=True, slots=True)
class SystemOrder:
    """Order of systems by a judge's grades, beside that by people's grades of the same documents.

    Attributes:
        judge: Name of the judge.
        aspect: Judged aspect.
        measure: Measure of the systems.
        by_people: Value of each system by people's grades.
        by_judge: Value of each system by the judge's grades.
        tau: Kendall's tau-b of both orders; NaN if it is undefined.
        tau_ap: AP correlation of the judge's order with that of people.
        pairs: All pairs of systems.
        biases: Errors on each system's documents; empty if the scales differ.
        documents: Number of documents that people and the judge grade.
        topics: Number of topics with such documents.
    """

    judge: str
    aspect: str
    measure: Measure
    by_people: dict[str, float]
    by_judge: dict[str, float]
    tau: float
    tau_ap: float
    pairs: list[SystemPair]
    biases: list[SystemBias]
    documents: int
    topics: int

    def count_pairs(self, outcome: PairOutcome) -> int:
        """Count the pairs with an outcome."""
        return sum(pair.outcome is outcome for pair in self.pairs)


def compare_orders(
    people: LabelSet,
    judge: LabelSet,
    systems: Mapping[str, ParsedRun],
    measure: Measure,
) -> SystemOrder:
    """Compare the order of systems by a judge's grades with that by people's.

    Args:
        people: Grades of people.
        judge: Grades of the judge. The documents that both grade, one or more, count as judged.
        systems: Systems by name, two or more.
        measure: Measure of the systems.
    """
    documents = list_common_documents(people, [judge])
    by_people = _estimate_systems(systems, _select_grades(people, documents), measure)
    by_judge = _estimate_systems(systems, _select_grades(judge, documents), measure)
    people_values = {name: estimate.value for name, estimate in by_people.items()}
    judge_values = {name: estimate.value for name, estimate in by_judge.items()}

    biases: list[SystemBias] = []
    if people.scale == judge.scale:
        errors = _compute_errors(people, judge, documents)
        top_documents = _list_top_documents(systems, measure.cutoff, graded=set(documents))
        biases = _measure_biases(errors, top_documents)

    return SystemOrder(
        judge=judge.name,
        aspect=people.aspect,
        measure=measure,
        by_people=people_values,
        by_judge=judge_values,
        tau=compute_kendall_tau(list(judge_values.values()), list(people_values.values())),
        tau_ap=compute_tau_ap(list(judge_values.values()), list(people_values.values())),
        pairs=_compare_systems(by_people, by_judge),
        biases=biases,
        documents=len(documents),
        topics=len({topic_id for topic_id, _ in documents}),
    )


def _select_grades(labels: LabelSet, documents: Iterable[DocumentKey]) -> Grades:
    """Return the expected grades of some documents."""
    grades: Grades = {}
    for topic_id, document_id in documents:
        grades_of_topic = grades.setdefault(topic_id, {})
        grades_of_topic[document_id] = labels.grades[topic_id][document_id]
    return grades


def _estimate_systems(
    systems: Mapping[str, ParsedRun], grades: Grades, measure: Measure
) -> dict[str, Estimate]:
    """Estimate the measure of each system, over the topics of the grades."""
    # Imported here, since only the order of systems needs the measures.
    from touche_llm.evaluation.measures import estimate_grades

    depth = measure.cutoff or 1
    return {
        name: estimate_grades(run, measure.aspect, grades, depth)[measure]
        for name, run in systems.items()
    }


def _compare_systems(
    by_people: Mapping[str, Estimate], by_judge: Mapping[str, Estimate]
) -> list[SystemPair]:
    """Compare all pairs of systems by people's grades and by the judge's.

    Args:
        by_people: Value of each system by people's grades.
        by_judge: Value of each system by the judge's grades.
    """
    p_by_people = _test_pairs(by_people)
    p_by_judge = _test_pairs(by_judge)

    pairs: list[SystemPair] = []
    for system, other in combinations(by_people, 2):
        pair = SystemPair(
            system=system,
            other=other,
            by_people=by_people[system].value - by_people[other].value,
            by_judge=by_judge[system].value - by_judge[other].value,
            p_people=p_by_people[system, other],
            p_judge=p_by_judge[system, other],
        )
        pairs.append(pair)
    return pairs


def _test_pairs(estimates: Mapping[str, Estimate]) -> dict[tuple[str, str], float]:
    """Return p of the difference of each pair of systems, corrected for the number of pairs."""
    swap_sums = {name: sum_swapped(estimate.counts) for name, estimate in estimates.items()}

    p_by_pair: dict[tuple[str, str], float] = {}
    for system, other in combinations(estimates, 2):
        formula = estimates[system].formula
        p_by_pair[system, other] = compute_p(formula, swap_sums[system], swap_sums[other])

    corrected = correct_holm(np.array(list(p_by_pair.values())))
    return dict(zip(p_by_pair, corrected.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class _GradeErrors:
    """Errors of a judge's grades, by topic and document id.

    Attributes:
        errors: Grade of the judge minus that of people.
        residuals: Errors minus the mean error of all documents that people grade the same.
        bounds: Range of errors.
    """

    errors: Mapping[DocumentKey, float]
    residuals: Mapping[DocumentKey, float]
    bounds: Bounds


def _compute_errors(
    people: LabelSet, judge: LabelSet, documents: Iterable[DocumentKey]
) -> _GradeErrors:
    """Compute the errors of a judge on documents that people and the judge grade."""
    errors: dict[DocumentKey, float] = {}
    labels: dict[DocumentKey, int] = {}
    for topic_id, document_id in documents:
        key = (topic_id, document_id)
        judge_grade = judge.grades[topic_id][document_id]
        errors[key] = judge_grade - people.grades[topic_id][document_id]
        labels[key] = people.labels[topic_id][document_id]

    mean_errors = _average_by_label(errors, labels)
    residuals = {key: error - mean_errors[labels[key]] for key, error in errors.items()}
    return _GradeErrors(errors, residuals, find_error_bounds(people))


def _average_by_label(
    errors: Mapping[DocumentKey, float], labels: Mapping[DocumentKey, int]
) -> dict[int, float]:
    """Return the mean error on the documents with each label of people."""
    errors_by_label: dict[int, list[float]] = {}
    for key, error in errors.items():
        errors_by_label.setdefault(labels[key], []).append(error)
    return {label: _average(of_label) for label, of_label in errors_by_label.items()}


def _measure_biases(
    errors: _GradeErrors, top_documents: Mapping[str, set[DocumentKey]]
) -> list[SystemBias]:
    """Measure the errors of a judge on the top documents of each system, beside the others'.

    Args:
        errors: Errors of the judge.
        top_documents: Top documents by system.
    """
    all_documents = set().union(*top_documents.values())
    biases: list[SystemBias] = []
    for name, own_documents in top_documents.items():
        other_documents = all_documents - own_documents
        biases.append(_measure_bias(name, own_documents, other_documents, errors))

    corrected = correct_holm(np.array([bias.p_holm for bias in biases]))
    return [
        replace(bias, p_holm=p_holm)
        for bias, p_holm in zip(biases, corrected.tolist(), strict=True)
    ]


def _list_top_documents(
    systems: Mapping[str, ParsedRun], cutoff: int | None, graded: Collection[DocumentKey]
) -> dict[str, set[DocumentKey]]:
    """Return the graded documents among the top ones of each system, of all topics together.

    Args:
        systems: Systems by name.
        cutoff: Number of top documents of each topic; None for all.
        graded: Graded documents.
    """
    top_documents: dict[str, set[DocumentKey]] = {}
    for name, run in systems.items():
        top_documents[name] = set()
        for topic_id, ranking in run.rankings.items():
            keys = [(topic_id, candidate.document_id) for candidate in ranking[:cutoff]]
            top_documents[name].update(key for key in keys if key in graded)
    return top_documents


def _measure_bias(
    system: str, own: set[DocumentKey], others: set[DocumentKey], errors: _GradeErrors
) -> SystemBias:
    """Measure the errors of a judge on a system's documents and on others; p is not corrected yet.

    Args:
        system: Name of the system.
        own: Documents of the system.
        others: Documents of other systems alone.
        errors: Errors of the judge.
    """
    topics = {topic_id for topic_id, _ in own} & {topic_id for topic_id, _ in others}
    difference = _compare_residuals(own, others, sorted(topics), errors)
    return SystemBias(
        system=system,
        own_error=_average([errors.errors[key] for key in own]),
        other_error=_average([errors.errors[key] for key in others]),
        difference=difference.value,
        low=difference.low,
        high=difference.high,
        p_holm=difference.p,
        documents=len(own),
        other_documents=len(others),
        topics=len(topics),
    )


@dataclass(frozen=True, slots=True)
class _Difference:
    """Difference of two values with its 95 % interval and the p of its test; NaN if undefined."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan


def _compare_residuals(
    own: set[DocumentKey], others: set[DocumentKey], topics: Sequence[str], errors: _GradeErrors
) -> _Difference:
    """Compare the mean residual error on a system's documents with that on others.

    Args:
        own: Documents of the system.
        others: Documents of other systems alone.
        topics: Topics with documents of both sides, over which the means are.
        errors: Errors of the judge.
    """
    if not topics:
        return _Difference()

    own_estimate = _estimate_residuals(own, topics, errors)
    other_estimate = _estimate_residuals(others, topics, errors)
    difference = subtract_estimates(own_estimate, other_estimate)
    low, high = compute_interval(difference)
    p = compute_p(ratio, sum_swapped(own_estimate.counts), sum_swapped(other_estimate.counts))

    is_rounding_error = abs(difference.value) < TIE
    value = 0.0 if is_rounding_error else difference.value
    return _Difference(value, low, high, p)


def _estimate_residuals(
    documents: set[DocumentKey], topics: Sequence[str], errors: _GradeErrors
) -> Estimate:
    """Estimate the mean residual error on documents of these topics, each of which has one or more."""
    index_of_topic = {topic_id: index for index, topic_id in enumerate(topics)}
    residual_sums = np.zeros(len(topics))
    document_counts = np.zeros(len(topics))
    # In order, since a sum of decimals depends on it.
    for topic_id, document_id in sorted(documents):
        if topic_id in index_of_topic:
            index = index_of_topic[topic_id]
            residual_sums[index] += errors.residuals[topic_id, document_id]
            document_counts[index] += 1.0

    return Estimate(
        topics=tuple(topics),
        counts=np.column_stack([residual_sums, document_counts]),
        formula=ratio,
        documents=int(document_counts.sum()),
        # An error minus a mean error may be twice as large as an error.
        bounds=errors.bounds.of_difference,
    )


def _average(errors: Sequence[float]) -> float:
    """Return the mean of errors; NaN without any."""
    if not errors:
        return math.nan
    return math.fsum(errors) / len(errors)
