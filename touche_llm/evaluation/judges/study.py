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
        people: Labels of people, one set for each aspect.
        judges: Labels of judges, each in an aspect of people.
        systems: Systems to rank by the grades of people and of each judge; two or more, or none.
        measures: Measure of the systems by graded aspect.

    Raises:
        DataError: A judge labels no document of people.
    """
    all_judges = list(judges)
    studies: list[AspectStudy] = []
    for people_labels in people:
        judge_labels = [judge for judge in all_judges if judge.aspect == people_labels.aspect]
        if judge_labels:
            studies.append(_study_aspect(people_labels, judge_labels, systems, measures))

    notes: list[str] = []
    interval_notes: list[str] = []
    for study in studies:
        notes += _describe_labels(study)
        interval_notes += _describe_topics(study)
    return JudgeStudy(studies, notes, list(dict.fromkeys(interval_notes)))


def _study_aspect(
    people: LabelSet,
    judges: Sequence[LabelSet],
    systems: Mapping[str, ParsedRun],
    measures: Mapping[str, Measure],
) -> AspectStudy:
    """Measure the agreement of judges, other people among them, with people in one aspect."""
    second_assessors = [judge for judge in judges if judge.is_people]
    models = [judge for judge in judges if not judge.is_people]
    ordered = second_assessors + models
    agreements = [measure_agreement(people, judge) for judge in ordered]
    differences = compare_judges(people, models)

    orders: list[SystemOrder] = []
    if systems and people.scale is not None:
        measure = measures[people.aspect]
        orders = [compare_orders(people, judge, systems, measure) for judge in ordered]
    return AspectStudy(
        people=people,
        agreements=agreements,
        differences=differences,
        orders=orders,
    )


def _describe_labels(study: AspectStudy) -> list[str]:
    """Return notes on labels that are left out or missing, on scales, and on missing differences."""
    notes: list[str] = []
    for agreement in study.agreements:
        notes += _describe_labels_of_judge(agreement)

    models = [agreement for agreement in study.agreements if not agreement.judge.is_people]
    if len(models) > 1 and not study.differences:
        notes.append(
            f"{study.aspect}: no document has a label of all judges, so they are not compared"
        )
    return notes


def _describe_labels_of_judge(agreement: Agreement) -> list[str]:
    """Return notes on labels of a judge that are left out or missing, and on its scale."""
    judge = agreement.judge
    notes: list[str] = []
    if judge.left_out:
        notes.append(f"{judge.name}: labels outside the scale, left out: {judge.left_out:,}")
    if agreement.unlabelled:
        notes.append(
            f"{judge.name}: {agreement.aspect}: documents of the qrels without a label of the judge: "
            f"{agreement.unlabelled:,}"
        )
    if not agreement.has_same_scale:
        notes.append(
            f"{judge.name}: {agreement.aspect}: its scale is {judge.scale} and that of the qrels "
            f"{agreement.people.scale}, and the task maps neither to the other (`qrels_mapping`), so there is no "
            "kappa and no mean error"
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
    """Return a sentence if a judge grades significantly higher or lower than people.

    That is, if the 95 % interval of its mean error does not contain 0.
    """
    estimate = agreement.estimates.get(AgreementName.MEAN_ERROR)
    if estimate is None:
        return []
    low, high = compute_interval(estimate)
    if math.isnan(low) or low <= 0.0 <= high:
        return []

    verb = "over-rates" if estimate.value > 0.0 else "under-rates"
    size = f"{abs(estimate.value):.2f} grades ({low:+.2f} to {high:+.2f})"
    return [f"{agreement.judge.name}: {verb} by {size}"]


def _describe_order(order: SystemOrder) -> list[str]:
    """Return a sentence on the pairs of systems that differ significantly by people's grades."""
    decided_alike = order.count_pairs(PairOutcome.BOTH)
    reversed_pairs = order.count_pairs(PairOutcome.REVERSED)
    undecided_by_judge = order.count_pairs(PairOutcome.PEOPLE)
    decided_by_people = decided_alike + reversed_pairs + undecided_by_judge
    if decided_by_people == 0:
        return [f"{order.judge}: no two systems differ significantly by people's grades"]
    return [
        f"{order.judge}: decides {decided_alike} of {decided_by_people} pairs as people do, reverses {reversed_pairs}"
    ]


def _describe_favours(order: SystemOrder) -> list[str]:
    """Return a sentence on the systems whose documents a judge grades too high, and one on too low."""
    favoured: list[str] = []
    disfavoured: list[str] = []
    for bias in order.biases:
        text = f"{bias.system} ({bias.difference:+.2f})"
        if bias.is_significant and bias.difference > 0.0:
            favoured.append(text)
        if bias.is_significant and bias.difference < 0.0:
            disfavoured.append(text)

    findings: list[str] = []
    if favoured:
        findings.append(f"{order.judge}: favours {', '.join(favoured)}")
    if disfavoured:
        findings.append(f"{order.judge}: disfavours {', '.join(disfavoured)}")
    return findings
