"""Comparison of runs by their measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pytrec_eval  # noqa: F401, ir_measures would hide why it cannot be loaded

from touche_llm.data.measure import Measure
from touche_llm.evaluation.agreement import estimate_common_stances
from touche_llm.evaluation.judged_share import estimate_judged
from touche_llm.evaluation.known_measures import KINDS
from touche_llm.evaluation.measures import Evaluation, describe_judging
from touche_llm.evaluation.significance import (
    Estimate,
    EstimatePair,
    compare,
    list_common_topics,
)

if TYPE_CHECKING:
    from pandas import DataFrame

# Estimates of a run and of the baseline over their common documents, by measure.
CommonEstimates = Mapping[Measure, EstimatePair]


class JudgedShares(NamedTuple):
    """Additional columns of `compare_runs`, see `judged_share.estimate_judged`.

    Attributes:
        judged: Share of judged documents of the run.
        baseline_judged: Share of judged documents of the baseline.
    """

    judged: float
    baseline_judged: float


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Comparison of runs with a baseline.

    Attributes:
        rows: Rows of `significance.compare`, with the columns of `JudgedShares`, over the topics of
            `value`.
        notes: Notes on them.
    """

    rows: DataFrame
    notes: list[str]


def compare_runs(baseline: Evaluation, others: Sequence[Evaluation]) -> RunComparison:
    """Compare runs with a baseline; all were measured with the same judgments and depth.

    Stance measures are compared over the documents with a label in both runs, since a run could
    look better by leaving hard documents without a label. Those with a cutoff, such as
    `macro-F1@5`, are not: the choice of the first documents is part of what they measure.
    """
    estimates = {run.name: _select_compared(run) for run in (baseline, *others)}
    common_estimates = {other.name: _estimate_common(other, baseline) for other in others}
    rows = compare(baseline.name, estimates, common=common_estimates)

    notes: list[str] = []
    for other in others:
        notes += _describe_common_stances(other, baseline, common_estimates[other.name])
        notes += describe_judging(other, baseline)
    return RunComparison(
        rows=_add_judged_shares(rows, baseline, others, common_estimates),
        notes=notes,
    )


def _add_judged_shares(
    rows: DataFrame,
    baseline: Evaluation,
    others: Sequence[Evaluation],
    common_estimates: Mapping[str, CommonEstimates],
) -> DataFrame:
    """Return rows of `significance.compare` with the columns of `JudgedShares`.

    Args:
        rows: The rows.
        baseline: Run that the others are compared with.
        others: The other runs.
        common_estimates: Estimates of each of them and of the baseline over common documents.
    """
    # Imported here because pandas is slow to load.
    import pandas as pd

    others_by_name = {other.name: other for other in others}
    shares: list[JudgedShares] = []
    for name, measure in zip(rows["run"], rows["measure"], strict=True):
        common_pair = common_estimates[name].get(measure)
        share = _compute_judged_shares(others_by_name[name], baseline, measure, common_pair)
        shares.append(share)
    return rows.join(pd.DataFrame(shares, columns=JudgedShares._fields))


def _estimate_common(run: Evaluation, baseline: Evaluation) -> CommonEstimates:
    """Estimate the stance measures of two runs over the documents with a label in both."""
    if not run.qrels.stances:
        return {}
    return estimate_common_stances(run.run, baseline.run, run.qrels)


def _select_compared(evaluation: Evaluation) -> dict[Measure, Estimate]:
    """Return the estimates by which runs are compared.

    The share of judged documents is left out, for example, since it is no measure of a system.
    """
    return {
        measure: estimate
        for measure, estimate in evaluation.estimates.items()
        if KINDS[measure.name].is_compared
    }


def _compute_judged_shares(
    run: Evaluation, baseline: Evaluation, measure: Measure, common: EstimatePair | None
) -> JudgedShares:
    """Return the shares of judged documents of a run and of the baseline, as a measure looks at them.

    Args:
        run: Run that is compared.
        baseline: Run that it is compared with.
        measure: Measure by which they are compared.
        common: Estimates over their common documents; None if each is measured over its own.
    """
    compared = common
    if compared is None:
        compared = EstimatePair(run.estimates[measure], baseline.estimates[measure])
    topics = list_common_topics(compared.run, compared.baseline)
    judged = estimate_judged(run.run, run.qrels, measure, topics)
    baseline_judged = estimate_judged(baseline.run, baseline.qrels, measure, topics)
    return JudgedShares(judged=judged.value, baseline_judged=baseline_judged.value)


def _describe_common_stances(
    run: Evaluation,
    baseline: Evaluation,
    common: CommonEstimates,
) -> list[str]:
    """Return a note for each measure whose common documents are not all those of each run.

    Args:
        run: Run that is compared.
        baseline: Run that it is compared with.
        common: Estimates of both runs over their common documents, by measure.
    """
    notes: list[str] = []
    for measure, pair in common.items():
        common_count = pair.run.n
        run_count = run.estimates[measure].n
        baseline_count = baseline.estimates[measure].n
        if common_count < max(run_count, baseline_count):
            notes.append(
                f"{run.name}: {measure}: compared over the {common_count:,} judged documents that both label; it "
                f"labels {run_count:,}, and {baseline.name} {baseline_count:,}"
            )
    return notes
