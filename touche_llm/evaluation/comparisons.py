"""Comparison of runs by their measures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import pytrec_eval  # noqa: F401, ir_measures would hide why it cannot be loaded

from touche_llm.data.measure import Measure, MeasureName
from touche_llm.evaluation.agreement import estimate_common_stances
from touche_llm.evaluation.judged_share import estimate_judged
from touche_llm.evaluation.significance import Estimate, compare, list_common_topics

if TYPE_CHECKING:
    from pandas import DataFrame
from touche_llm.evaluation.measures import (
    Evaluation,
    describe_judging,
    make_measure_frame,
)


def compare_runs(baseline: Evaluation, others: Sequence[Evaluation]) -> tuple[DataFrame, list[str]]:
    """Compare runs with a baseline; all were measured with the same judgments and depth.

    Stances are compared over the documents with a label in both runs, except for `@5`, where the
    choice of documents counts too. judged@5 is no measure of a system, so it has no row.

    Returns:
        The rows of `significance.compare`, and notes on them. Additional columns: `judged` and
        `baseline_judged` (see `judged_share.estimate_judged`, over the topics of `value`).

    Raises:
        UsageError: The runs cannot be compared, see `significance.compare`.
    """
    common: dict[str, dict[Measure, tuple[Estimate, Estimate]]] = {}
    for other in others:
        if other.qrels.stances:
            common[other.name] = estimate_common_stances(other.run, baseline.run, other.qrels)

    frame = compare(
        baseline.name,
        {evaluation.name: _select_compared(evaluation) for evaluation in (baseline, *others)},
        common=common,
    )

    others_by_name = {other.name: other for other in others}
    shares: list[dict[str, float]] = []
    for name, measure in zip(frame["run"], frame["measure"], strict=True):
        other = others_by_name[name]
        alone = (other.estimates[measure], baseline.estimates[measure])
        pair = common.get(name, {}).get(measure, alone)
        topics = list_common_topics(*pair)
        shares.append(_compute_judged_shares(other, baseline, measure, topics))

    notes: list[str] = []
    for other in others:
        notes += _describe_common_stances(other, baseline, common.get(other.name, {}))
        notes += describe_judging(other, baseline)
    return frame.join(make_measure_frame(shares, _SHARE_COLUMNS)), notes


_SHARE_COLUMNS = ("judged", "baseline_judged")


def _select_compared(evaluation: Evaluation) -> dict[Measure, Estimate]:
    """Return the estimates by the measures of a system, which judged@5 is not."""
    return {
        measure: estimate
        for measure, estimate in evaluation.estimates.items()
        if measure.name is not MeasureName.JUDGED
    }


def _compute_judged_shares(
    run: Evaluation, baseline: Evaluation, measure: Measure, topics: Collection[str]
) -> dict[str, float]:
    """Return judged@k of a measure over some topics, of a run and of the baseline."""
    judged = estimate_judged(run.run, run.qrels, measure, topics)
    baseline_judged = estimate_judged(baseline.run, baseline.qrels, measure, topics)
    return {"judged": judged.value, "baseline_judged": baseline_judged.value}


def _describe_common_stances(
    run: Evaluation,
    baseline: Evaluation,
    common: Mapping[Measure, tuple[Estimate, Estimate]],
) -> list[str]:
    """Return a note for each measure whose common documents are not all those of each run.

    Args:
        run: Run that is compared.
        baseline: Run that it is compared with.
        common: Estimates of both runs over their common documents, by measure.
    """
    notes: list[str] = []
    for measure, (estimate, _) in common.items():
        own_count = run.estimates[measure].n
        baseline_count = baseline.estimates[measure].n
        if estimate.n < max(own_count, baseline_count):
            notes.append(
                f"{run.name}: {measure}: compared over the {estimate.n:,} judged documents that both label; it "
                f"labels {own_count:,}, and {baseline.name} {baseline_count:,}"
            )
    return notes
