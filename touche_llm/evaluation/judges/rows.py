"""Rows of a study of judges, for other programs: one for each figure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

from touche_llm.evaluation.judges.agreement import Agreement, AgreementName
from touche_llm.evaluation.judges.differences import JudgeDifference
from touche_llm.evaluation.judges.systems import PairOutcome, SystemBias, SystemOrder, SystemPair
from touche_llm.evaluation.significance import Estimate, compute_interval


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
class _RowMaker:
    """Maker of the rows of one judge in one aspect.

    Attributes:
        aspect: Judged aspect.
        judge: Name of the judge.
        documents: Number of documents of a row, unless it says otherwise.
        topics: Number of topics, likewise.
    """

    aspect: str
    judge: str
    documents: int
    topics: int

    def make(self, part: str, measure: str, value: float) -> AgreementRow:
        """Make a row with a value, whose other figures are missing.

        Args:
            part: Part of the study, see `AgreementRow`.
            measure: What is measured.
            value: Value of the measure.
        """
        return AgreementRow(
            part=part,
            aspect=self.aspect,
            judge=self.judge,
            other=None,
            system=None,
            measure=str(measure),
            label=None,
            judge_label=None,
            value=value,
            low=math.nan,
            high=math.nan,
            p=math.nan,
            documents=self.documents,
            topics=self.topics,
        )


def list_agreement_rows(agreement: Agreement) -> Iterator[AgreementRow]:
    """Yield a row for each figure about the agreement of a judge with people in one aspect."""
    maker = _RowMaker(
        aspect=agreement.aspect,
        judge=agreement.judge.name,
        documents=agreement.documents,
        topics=len(agreement.topics),
    )
    for name, estimate in agreement.estimates.items():
        row = maker.make("agreement", name, estimate.value)
        yield _add_estimate(row, estimate)

    for grade, estimate in agreement.error_by_grade.items():
        row = maker.make("error by grade", AgreementName.MEAN_ERROR, estimate.value)
        row["label"] = str(grade)
        yield _add_estimate(row, estimate)

    yield from _list_cells(agreement, maker)
    yield from _list_probabilities(agreement, maker)


def _add_estimate(row: AgreementRow, estimate: Estimate) -> AgreementRow:
    """Return a row with the interval, documents and topics of an estimate."""
    low, high = compute_interval(estimate)
    return {
        **row,
        "low": low,
        "high": high,
        "documents": estimate.n,
        "topics": len(estimate.topics),
    }


def _list_cells(agreement: Agreement, maker: _RowMaker) -> Iterator[AgreementRow]:
    """Yield the number of documents with each pair of labels."""
    labels = agreement.people.categories
    judge_labels = agreement.judge.categories
    table = agreement.confusion.tolist()
    for label, counts in zip(labels, table, strict=True):
        for judge_label, count in zip(judge_labels, counts, strict=True):
            row = maker.make("table", "documents", count)
            yield {**row, "label": label, "judge_label": judge_label}


def _list_probabilities(agreement: Agreement, maker: _RowMaker) -> Iterator[AgreementRow]:
    """Yield the Brier score, its parts and the reliability table; nothing without probabilities."""
    scores = agreement.probabilities
    if scores is None:
        return

    parts = {
        "Brier score": scores.brier.score,
        "reliability": scores.brier.reliability,
        "resolution": scores.brier.resolution,
        "uncertainty": scores.brier.uncertainty,
        "within bins": scores.brier.within_bins,
    }
    for name, value in parts.items():
        row = maker.make("probabilities", name, value)
        yield {**row, "documents": scores.documents}

    for bin_ in scores.reliability:
        label = f"{bin_.low:.1f}"
        mean = maker.make("reliability", "probability", bin_.mean)
        share = maker.make("reliability", "share of true labels", bin_.share)
        # The number of probabilities, several for each document.
        yield {**mean, "label": label, "documents": bin_.count}
        yield {**share, "label": label, "documents": bin_.count}


def make_difference_row(aspect: str, difference: JudgeDifference) -> AgreementRow:
    """Return the row of a difference between two judges."""
    maker = _RowMaker(
        aspect=aspect,
        judge=difference.judge,
        documents=difference.documents,
        topics=difference.topics,
    )
    row = maker.make("difference", str(difference.measure), difference.difference)
    return {
        **row,
        "other": difference.other,
        "low": difference.low,
        "high": difference.high,
        "p": difference.p_holm,
    }


def list_order_rows(order: SystemOrder) -> Iterator[AgreementRow]:
    """Yield a row for each figure about the order in which a judge ranks systems."""
    maker = _RowMaker(
        aspect=order.aspect,
        judge=order.judge,
        documents=order.documents,
        topics=order.topics,
    )
    measure = order.measure.short_text
    for system, value in order.by_people.items():
        by_people = maker.make("system", measure, value)
        by_judge = maker.make("system", measure, order.by_judge[system])
        yield {**by_people, "system": system, "label": "people"}
        yield {**by_judge, "system": system, "label": "judge"}

    yield maker.make("order", "tau", order.tau)
    yield maker.make("order", "tau_ap", order.tau_ap)
    for outcome in PairOutcome:
        yield maker.make("order", f"pairs: {outcome}", order.count_pairs(outcome))

    for pair in order.pairs:
        yield from _list_pair_rows(pair, measure, maker)
    for bias in order.biases:
        yield from _list_bias_rows(bias, maker)


def _list_pair_rows(pair: SystemPair, measure: str, maker: _RowMaker) -> Iterator[AgreementRow]:
    """Yield the difference of two systems by people's grades and by the judge's."""
    by_people = maker.make("pair", measure, pair.by_people)
    by_judge = maker.make("pair", measure, pair.by_judge)
    names: _PairNames = {"system": pair.system, "other": pair.other}
    yield {**by_people, **names, "label": "people", "p": pair.p_people}
    yield {**by_judge, **names, "label": "judge", "p": pair.p_judge}


class _PairNames(TypedDict):
    """Names of two systems."""

    system: str
    other: str


def _list_bias_rows(bias: SystemBias, maker: _RowMaker) -> Iterator[AgreementRow]:
    """Yield the errors of a judge on a system's documents, on the others, and their difference."""
    own = maker.make("favour", "mean error", bias.own_error)
    own["system"] = bias.system
    own["label"] = "own documents"
    own["documents"] = bias.documents
    yield own

    others = maker.make("favour", "mean error", bias.other_error)
    others["system"] = bias.system
    others["label"] = "other documents"
    others["documents"] = bias.other_documents
    yield others

    difference = maker.make("favour", "mean error", bias.difference)
    yield {
        **difference,
        "system": bias.system,
        "label": "difference at equal grades",
        "low": bias.low,
        "high": bias.high,
        "p": bias.p_holm,
        "documents": bias.documents,
        "topics": bias.topics,
    }
