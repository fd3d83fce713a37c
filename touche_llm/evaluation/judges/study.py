"""Study of judges: their agreement with people, the differences between them, and the order of systems."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from touche_llm.data.measure import Measure
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.evaluation.judges.agreement import Agreement, AgreementName, measure_agreement
from touche_llm.evaluation.judges.differences import JudgeDifference, compare_judges
from touche_llm.evaluation.judges.labels import LabelSet
from touche_llm.evaluation.judges.systems import PairOutcome, SystemOrder, compare_orders
from touche_llm.evaluation.significance import (
    HOLDING_TOPICS,
    MIN_TOPICS,
    Estimate,
    compute_interval,
    describe_few_topics,
)


class AgreementRow(TypedDict):
    """A figure of a study, for other programs; keys that a figure does not have are None or NaN.

    Attributes:
        part: `agreement`, `error by grade`, `table`, `probabilities`, `reliability`, `difference`,
            `system`, `order`, `pair` or `favour`.
        aspect: Judged aspect.
        judge: Name of the judge.
        other: What it is compared with: another judge, or a second system.
        system: System that is measured.
        measure: What is measured.
        label: Label of people, or lowest probability of a bin.
        judge_label: Label of the judge.
        value: Value; a difference is minus the other's value.
        low: Lower end of the 95 % interval over topics.
        high: Upper end.
        p: Of the paired randomisation test, corrected by Holm's method.
        documents: Number of documents.
        topics: Number of topics.
    """

    part: str
    aspect: str
    judge: str
    other: str | None
    system: str | None
    measure: str
    label: str | None
    judge_label: str | None
    value: float
    low: float
    high: float
    p: float
    documents: int
    topics: int


@dataclass(frozen=True, slots=True)
class AspectStudy:
    """Agreement of several judges with people in one aspect.

    Attributes:
        people: Labels of people.
        agreements: Agreement of each judge; second assessors first.
        differences: Differences between the judges that are no people.
        common_documents: Number of documents that people and all these judges label.
        orders: Order of the systems by each judge; empty without systems, and for the stance.
    """

    people: LabelSet
    agreements: list[Agreement]
    differences: list[JudgeDifference]
    common_documents: int
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
                rows += _list_agreement_rows(agreement)
            rows += [_make_difference_row(study.aspect, row) for row in study.differences]
            for order in study.orders:
                rows += _list_order_rows(order)
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
        orders = [compare_orders(people, judge, systems, measure) for judge in ordered]
    return AspectStudy(
        people=people,
        agreements=agreements,
        differences=differences,
        common_documents=differences[0].documents if differences else 0,
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
        f"{order.judge}: decides {both} of {decided} pairs of systems as people do, and reverses {reversed_pairs}"
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


def _list_agreement_rows(agreement: Agreement) -> Iterator[AgreementRow]:
    """Yield the figures of a judge in one aspect."""
    for name, estimate in agreement.estimates.items():
        yield _make_estimate_row(agreement, "agreement", name, estimate)
    for grade, estimate in agreement.error_by_grade.items():
        row = _make_estimate_row(agreement, "error by grade", AgreementName.MEAN_ERROR, estimate)
        yield {**row, "label": str(grade)}
    for row_place, label in enumerate(agreement.people.categories):
        for column_place, judge_label in enumerate(agreement.judge.categories):
            count = int(agreement.confusion[row_place, column_place])
            row = _make_row("table", agreement.aspect, agreement.judge.name, "documents", count)
            row["documents"] = agreement.documents
            row["topics"] = len(agreement.topics)
            yield {**row, "label": label, "judge_label": judge_label}
    yield from _list_probability_rows(agreement)


def _list_probability_rows(agreement: Agreement) -> Iterator[AgreementRow]:
    """Yield the Brier score, its parts and the reliability table; nothing without probabilities."""
    if agreement.brier is None:
        return
    brier = agreement.brier
    parts = {
        "Brier score": brier.score,
        "reliability": brier.reliability,
        "resolution": brier.resolution,
        "uncertainty": brier.uncertainty,
        "within bins": brier.within_bins,
    }
    for name, value in parts.items():
        row = _make_row("probabilities", agreement.aspect, agreement.judge.name, name, value)
        row["documents"] = agreement.probability_documents
        row["topics"] = len(agreement.topics)
        yield row
    for bin_ in agreement.reliability:
        for name, value in (("probability", bin_.mean), ("share of true labels", bin_.share)):
            row = _make_row("reliability", agreement.aspect, agreement.judge.name, name, value)
            row["label"] = f"{bin_.low:.1f}"
            row["documents"] = bin_.count
            row["topics"] = len(agreement.topics)
            yield row


def _make_estimate_row(
    agreement: Agreement, part: str, name: AgreementName, estimate: Estimate
) -> AgreementRow:
    """Return the row of an estimate, with its interval."""
    row = _make_row(part, agreement.aspect, agreement.judge.name, str(name), estimate.value)
    low, high = compute_interval(estimate)
    row["low"] = low
    row["high"] = high
    row["documents"] = estimate.n
    row["topics"] = len(estimate.topics)
    return row


def _make_difference_row(aspect: str, difference: JudgeDifference) -> AgreementRow:
    """Return the row of a difference between two judges."""
    row = _make_row(
        "difference", aspect, difference.judge, str(difference.measure), difference.difference
    )
    row["other"] = difference.other
    row["low"] = difference.low
    row["high"] = difference.high
    row["p"] = difference.p_holm
    row["documents"] = difference.documents
    row["topics"] = difference.topics
    return row


def _list_order_rows(order: SystemOrder) -> Iterator[AgreementRow]:
    """Yield the figures of an order of systems."""
    for row in _list_order_figures(order):
        row["documents"] = row["documents"] or order.documents
        row["topics"] = row["topics"] or order.topics
        yield row


def _list_order_figures(order: SystemOrder) -> Iterator[AgreementRow]:
    """Yield the figures of an order of systems; those of all documents have 0 of them."""
    measure = order.measure.short_text
    for system in order.by_people:
        by_people = _make_row("system", order.aspect, order.judge, measure, order.by_people[system])
        yield {**by_people, "system": system, "label": "people"}
        by_judge = _make_row("system", order.aspect, order.judge, measure, order.by_judge[system])
        yield {**by_judge, "system": system, "label": "judge"}
    yield _make_row("order", order.aspect, order.judge, "tau", order.tau)
    yield _make_row("order", order.aspect, order.judge, "tau_ap", order.tau_ap)
    for outcome in PairOutcome:
        count = order.count_pairs(outcome)
        yield _make_row("order", order.aspect, order.judge, f"pairs: {outcome}", count)
    for pair in order.pairs:
        by_people = _make_row("pair", order.aspect, order.judge, measure, pair.by_people)
        by_people["p"] = pair.p_people
        yield {**by_people, "system": pair.system, "other": pair.other, "label": "people"}
        by_judge = _make_row("pair", order.aspect, order.judge, measure, pair.by_judge)
        by_judge["p"] = pair.p_judge
        yield {**by_judge, "system": pair.system, "other": pair.other, "label": "judge"}
    for bias in order.biases:
        own = _make_row("favour", order.aspect, order.judge, "mean error", bias.own_error)
        own["documents"] = bias.documents
        yield {**own, "system": bias.system, "label": "own documents"}
        others = _make_row("favour", order.aspect, order.judge, "mean error", bias.other_error)
        yield {**others, "system": bias.system, "label": "other documents"}
        difference = _make_row("favour", order.aspect, order.judge, "mean error", bias.difference)
        difference["low"] = bias.low
        difference["high"] = bias.high
        difference["p"] = bias.p_holm
        difference["documents"] = bias.documents
        difference["topics"] = bias.topics
        yield {**difference, "system": bias.system, "label": "difference at equal grades"}


def _make_row(part: str, aspect: str, judge: str, measure: str, value: float) -> AgreementRow:
    """Return a row without interval, p, and numbers of documents and topics."""
    return AgreementRow(
        part=part,
        aspect=aspect,
        judge=judge,
        other=None,
        system=None,
        measure=measure,
        label=None,
        judge_label=None,
        value=value,
        low=math.nan,
        high=math.nan,
        p=math.nan,
        documents=0,
        topics=0,
    )
