"""Study of judges: their agreement with people, the differences between them, and the order of systems."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from touche_llm.data.measure import Measure
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.evaluation.judges.agreement import Agreement, AgreementName, measure_agreement
from touche_llm.evaluation.judges.differences import JudgeDifference, compare_judges
from touche_llm.evaluation.judges.labels import LabelSet
from touche_llm.evaluation.judges.rows import (
    AgreementRow,
    list_agreement_rows,
    list_order_rows,
    make_difference_row,
)
from touche_llm.evaluation.judges.systems import PairOutcome, SystemOrder, compare_orders
from touche_llm.evaluation.significance import (
    HOLDING_TOPICS,
    MIN_TOPICS,
    compute_interval,
    describe_few_topics,
)


@dataclass(frozen=True, slots=True)
class AspectStudy:
    """Agreement of several judges with people in one aspect.

    Attributes:
        people: Labels of people.
        agreements: Agreement of each judge; second assessors first.
        differences: Differences between the judges that are no people.
        orders: Order of the systems by each judge; empty without systems, and for the stance.
    """

    people: LabelSet
    agreements: list[Agreement]
    differences: list[JudgeDifference]
    orders: list[SystemOrder]

    @property
    def aspect(self) -> str:
        """Judged aspect."""
        return self.people.aspect


@dataclass(frozen=True, slots=True)
class JudgeStudy:
    """Agreement of judges with people.

    Attributes:
        aspects: Studies by aspect, in the order of the task.
        notes: What readers should know about the labels.
        interval_notes: What they should know about the intervals.
    """

    aspects: list[AspectStudy]
    notes: list[str] = field(default_factory=list)
    interval_notes: list[str] = field(default_factory=list)

    def to_rows(self) -> list[AgreementRow]:
        """Return all figures, each with its number of documents and topics."""
        rows: list[AgreementRow] = []
        for study in self.aspects:
            for agreement in study.agreements:
                rows += list_agreement_rows(agreement)
            for difference in study.differences:
                rows.append(make_difference_row(study.aspect, difference))
            for order in study.orders:
                rows += list_order_rows(order)
        return rows


def study_judges(
    people: Iterable[LabelSet],
    judges: Iterable[LabelSet],
    systems: Mapping[str, ParsedRun],
    measures: Mapping[str, Measure],
) -> JudgeStudy:
    """Measure the agreement of judges with people, aspect by aspect.

    Args:
        people: Labels of people, one for each aspect.
        judges: Labels of judges, each in an aspect of people.
        systems: Systems to rank by the grades of people and of each judge; two or more, or none.
        measures: Measure of the systems by graded aspect.

    Raises:
        DataError: A judge labels no document of people.
    """
    all_judges = list(judges)
    studies: list[AspectStudy] = []
    for of_people in people:
        of_aspect = [judge for judge in all_judges if judge.aspect == of_people.aspect]
        if of_aspect:
            studies.append(_study_aspect(of_people, of_aspect, systems, measures))

    notes: list[str] = []
    interval_notes: list[str] = []
    for study in studies:
        notes += _describe_aspect(study)
        interval_notes += _describe_topics(study)
    return JudgeStudy(studies, notes, list(dict.fromkeys(interval_notes)))


def _study_aspect(
    people: LabelSet,
    judges: Sequence[LabelSet],
    systems: Mapping[str, ParsedRun],
    measures: Mapping[str, Measure],
) -> AspectStudy:
    """Measure the agreement of judges with people in one aspect."""
    ordered = sorted(judges, key=lambda judge: not judge.is_people)
    agreements = [measure_agreement(people, judge) for judge in ordered]

    models = [judge for judge in ordered if not judge.is_people]
    differences = compare_judges(people, models)
    orders: list[SystemOrder] = []
    if systems and people.scale is not None:
        measure = measures[people.aspect]
        for judge in ordered:
            order = compare_orders(people=people, judge=judge, systems=systems, measure=measure)
            orders.append(order)
    return AspectStudy(
        people=people,
        agreements=agreements,
        differences=differences,
        orders=orders,
    )


def _describe_aspect(study: AspectStudy) -> list[str]:
    """Return notes on labels that are left out or missing, on scales, and on missing differences."""
    notes: list[str] = []
    for agreement in study.agreements:
        judge = agreement.judge
        if judge.left_out:
            notes.append(f"{judge.name}: labels outside the scale, left out: {judge.left_out:,}")
        if agreement.unlabelled:
            notes.append(
                f"{judge.name}: {study.aspect}: documents of the qrels without a label of the judge: "
                f"{agreement.unlabelled:,}"
            )
        if not agreement.has_same_scale:
            notes.append(
                f"{judge.name}: {study.aspect}: its scale is {judge.scale} and that of the qrels {study.people.scale}, "
                "and the task maps neither to the other (`qrels_mapping`), so there is no kappa and no mean error"
            )
    has_models = sum(not agreement.judge.is_people for agreement in study.agreements) > 1
    if has_models and not study.differences:
        notes.append(
            f"{study.aspect}: no document has a label of all judges, so they are not compared"
        )
    return notes


def _describe_topics(study: AspectStudy) -> list[str]:
    """Return a note if topics are too few for intervals, or for such that hold."""
    fewest = min(len(agreement.topics) for agreement in study.agreements)
    if fewest < MIN_TOPICS:
        return [f"no 95 % interval over {fewest} topics: it needs {MIN_TOPICS}"]
    if fewest < HOLDING_TOPICS:
        return [describe_few_topics(fewest)]
    return []


def describe_findings(study: AspectStudy) -> list[str]:
    """Return a sentence for each finding about a judge, with the figures behind it."""
    findings: list[str] = []
    for agreement in study.agreements:
        findings += _describe_rating(agreement)
    for order in study.orders:
        findings += _describe_order(order)
        findings += _describe_favours(order)
    return findings


def _describe_rating(agreement: Agreement) -> list[str]:
    """Return a sentence if the interval of the mean error does not contain 0."""
    estimate = agreement.estimates.get(AgreementName.MEAN_ERROR)
    if estimate is None:
        return []
    low, high = compute_interval(estimate)
    if math.isnan(low) or low <= 0.0 <= high:
        return []
    verb = "over-rates" if estimate.value > 0.0 else "under-rates"
    return [
        f"{agreement.judge.name}: {verb} by {abs(estimate.value):.2f} grades ({low:+.2f} to {high:+.2f})"
    ]


def _describe_order(order: SystemOrder) -> list[str]:
    """Return a sentence on the pairs of systems that people's grades decide, and on reversed ones."""
    both = order.count_pairs(PairOutcome.BOTH)
    reversed_pairs = order.count_pairs(PairOutcome.REVERSED)
    decided = both + reversed_pairs + order.count_pairs(PairOutcome.PEOPLE)
    if decided == 0:
        return [f"{order.judge}: no two systems differ significantly by people's grades"]
    return [
        f"{order.judge}: decides {both} of {decided} pairs as people do, reverses {reversed_pairs}"
    ]


def _describe_favours(order: SystemOrder) -> list[str]:
    """Return a sentence with the systems whose documents the judge grades higher, and one with the lower ones."""
    significant = [bias for bias in order.biases if bias.is_significant]
    favoured = [bias for bias in significant if bias.difference > 0.0]
    disfavoured = [bias for bias in significant if bias.difference < 0.0]
    findings: list[str] = []
    for verb, biases in (("favours", favoured), ("disfavours", disfavoured)):
        if biases:
            names = ", ".join(f"{bias.system} ({bias.difference:+.2f})" for bias in biases)
            findings.append(f"{order.judge}: {verb} {names}")
    return findings
