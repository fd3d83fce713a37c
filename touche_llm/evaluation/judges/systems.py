"""The order in which a judge ranks systems, beside that of people, and whom the judge favours."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations

import numpy as np

from touche_llm.data.measure import Measure
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.evaluation.intervals import TIE, Array, Bounds
from touche_llm.evaluation.judges.agreement import find_error_bounds, list_common_keys
from touche_llm.evaluation.judges.differences import LEVEL, subtract_estimates
from touche_llm.evaluation.judges.labels import LabelSet
from touche_llm.evaluation.judges.rank_correlation import compute_kendall_tau, compute_tau_ap
from touche_llm.evaluation.qrels import Grades
from touche_llm.evaluation.randomisation import compute_p, sum_swapped
from touche_llm.evaluation.significance import (
    Estimate,
    compute_interval,
    correct_holm,
    ratio,
)

Keys = Collection[tuple[str, str]]


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
            is_same_direction = self.by_people * self.by_judge > 0.0
            return PairOutcome.BOTH if is_same_direction else PairOutcome.REVERSED
        if is_by_people:
            return PairOutcome.PEOPLE
        return PairOutcome.JUDGE if is_by_judge else PairOutcome.NEITHER


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
    """Compare the order of two systems or more by a judge's grades with that by people's.

    Both are over the documents that people and the judge grade, one or more; the others count as
    unjudged.
    """
    keys = list_common_keys(people, [judge])
    by_people = _estimate_systems(systems, _select_grades(people, keys), measure)
    by_judge = _estimate_systems(systems, _select_grades(judge, keys), measure)
    values = {name: estimate.value for name, estimate in by_people.items()}
    judge_values = {name: estimate.value for name, estimate in by_judge.items()}
    biases: list[SystemBias] = []
    if people.scale == judge.scale:
        biases = _measure_biases(people, judge, systems, keys, measure)
    return SystemOrder(
        judge=judge.name,
        aspect=people.aspect,
        measure=measure,
        by_people=values,
        by_judge=judge_values,
        tau=compute_kendall_tau(list(judge_values.values()), list(values.values())),
        tau_ap=compute_tau_ap(list(judge_values.values()), list(values.values())),
        pairs=_compare_systems(by_people, by_judge),
        biases=biases,
        documents=len(keys),
        topics=len({topic for topic, _ in keys}),
    )


def _select_grades(labels: LabelSet, keys: Keys) -> Grades:
    """Return the expected grades of some documents."""
    grades: Grades = {}
    for topic, document in keys:
        grades.setdefault(topic, {})[document] = labels.grades[topic][document]
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
    """Compare all pairs of systems by both grades, each with Holm's correction over the pairs."""
    names = list(combinations(by_people, 2))
    p_people = _test_pairs(by_people, names)
    p_judge = _test_pairs(by_judge, names)
    pairs: list[SystemPair] = []
    for place, (system, other) in enumerate(names):
        pair = SystemPair(
            system=system,
            other=other,
            by_people=by_people[system].value - by_people[other].value,
            by_judge=by_judge[system].value - by_judge[other].value,
            p_people=float(p_people[place]),
            p_judge=float(p_judge[place]),
        )
        pairs.append(pair)
    return pairs


def _test_pairs(estimates: Mapping[str, Estimate], names: Sequence[tuple[str, str]]) -> Array:
    """Return the corrected p of each pair of systems."""
    sums = {name: sum_swapped(estimate.counts) for name, estimate in estimates.items()}
    p = [compute_p(estimates[one].formula, sums[one], sums[other]) for one, other in names]
    return correct_holm(np.array(p, dtype=np.float64))


def _measure_biases(
    people: LabelSet,
    judge: LabelSet,
    systems: Mapping[str, ParsedRun],
    keys: Sequence[tuple[str, str]],
    measure: Measure,
) -> list[SystemBias]:
    """Measure the errors of a judge on the first documents of each system."""
    errors = {
        (topic, document): judge.grades[topic][document] - people.grades[topic][document]
        for topic, document in keys
    }
    residuals = _subtract_mean_of_grade(errors, people)
    first_documents = {
        name: _list_first(run, errors, measure.cutoff) for name, run in systems.items()
    }
    biases: list[SystemBias] = []
    for name, own in first_documents.items():
        others: set[tuple[str, str]] = set()
        for other_name, documents in first_documents.items():
            if other_name != name:
                others |= documents
        bias = _measure_bias(
            name=name,
            own=own,
            others=others - own,
            errors=errors,
            residuals=residuals,
            people=people,
        )
        biases.append(bias)

    corrected = correct_holm(np.array([bias.p_holm for bias in biases]))
    return [replace(bias, p_holm=p) for bias, p in zip(biases, corrected.tolist(), strict=True)]


def _subtract_mean_of_grade(
    errors: Mapping[tuple[str, str], float], people: LabelSet
) -> dict[tuple[str, str], float]:
    """Return errors minus the mean error of all documents with the same label of people."""
    errors_by_label: dict[int, list[float]] = {}
    for (topic, document), error in errors.items():
        errors_by_label.setdefault(people.labels[topic][document], []).append(error)
    means = {
        label: math.fsum(of_label) / len(of_label) for label, of_label in errors_by_label.items()
    }
    return {
        (topic, document): error - means[people.labels[topic][document]]
        for (topic, document), error in errors.items()
    }


def _list_first(
    run: ParsedRun, graded: Mapping[tuple[str, str], float], cutoff: int | None
) -> set[tuple[str, str]]:
    """Return the graded documents among the first ones of each topic of a run."""
    first: set[tuple[str, str]] = set()
    for topic, ranking in run.rankings.items():
        first |= {
            (topic, candidate.document_id)
            for candidate in ranking[:cutoff]
            if (topic, candidate.document_id) in graded
        }
    return first


def _measure_bias(
    name: str,
    own: set[tuple[str, str]],
    others: set[tuple[str, str]],
    errors: Mapping[tuple[str, str], float],
    residuals: Mapping[tuple[str, str], float],
    people: LabelSet,
) -> SystemBias:
    """Measure the errors on a system's documents and on the others; p is not corrected."""
    topics = sorted({topic for topic, _ in own} & {topic for topic, _ in others})
    bounds = find_error_bounds(people)
    own_estimate = _estimate_errors(own, topics, residuals, bounds)
    other_estimate = _estimate_errors(others, topics, residuals, bounds)
    difference = math.nan
    low = math.nan
    high = math.nan
    p = math.nan
    if topics:
        subtracted = subtract_estimates(own_estimate, other_estimate)
        difference = subtracted.value
        low, high = compute_interval(subtracted)
        p = compute_p(ratio, sum_swapped(own_estimate.counts), sum_swapped(other_estimate.counts))
    return SystemBias(
        system=name,
        own_error=_average(own, errors),
        other_error=_average(others, errors),
        difference=0.0 if abs(difference) < TIE else difference,
        low=low,
        high=high,
        p_holm=p,
        documents=len(own),
        other_documents=len(others),
        topics=len(topics),
    )


def _estimate_errors(
    documents: set[tuple[str, str]],
    topics: Sequence[str],
    residuals: Mapping[tuple[str, str], float],
    bounds: Bounds,
) -> Estimate:
    """Estimate the mean residual error on documents, over topics that all have at least one.

    Args:
        documents: Documents, those of other topics too.
        topics: Topics to estimate over.
        residuals: Errors minus the mean error of their grade.
        bounds: Range of errors.
    """
    places = {topic: place for place, topic in enumerate(topics)}
    counts = np.zeros((len(topics), 2))
    for topic, document in sorted(documents):
        if topic in places:
            counts[places[topic]] += (residuals[topic, document], 1.0)
    return Estimate(
        topics=tuple(topics),
        counts=counts,
        formula=ratio,
        documents=int(counts[:, 1].sum()),
        # An error minus a mean error may be twice as large as an error.
        bounds=bounds.of_difference,
    )


def _average(documents: set[tuple[str, str]], errors: Mapping[tuple[str, str], float]) -> float:
    """Return the mean error on documents; NaN without any."""
    if not documents:
        return math.nan
    return math.fsum(errors[key] for key in documents) / len(documents)
