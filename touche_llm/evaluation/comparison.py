"""Comparisons of runs with a baseline, and the effect of unjudged documents on the differences."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from touche_llm.data.records import Candidate
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.evaluation.measures import (
    JUDGED,
    NDCG,
    TOUCHE_NDCG,
    Evaluation,
    aspect_of,
    estimate_grades,
    estimate_judged,
)
from touche_llm.evaluation.qrels import Grades
from touche_llm.evaluation.significance import TIE, Estimate, compare, list_common_topics
from touche_llm.evaluation.stance_measures import estimate_common_stances

# A larger difference in the share of judged documents may decide a comparison of two runs.
_MAX_JUDGED_DIFFERENCE = 0.1


def compare_runs(baseline: Evaluation, others: Sequence[Evaluation]) -> tuple[pd.DataFrame, list[str]]:
    """Compare runs with a baseline; all were measured with the same judgments and depth.

    Stances are compared over the documents with a label in both runs, except for `@5`, where the choice of documents
    counts too. judged@5 is no measure of a system, so it has no row.

    Returns:
        The rows of `significance.compare`, and notes on them. Additional columns: `topics` (judged topics
        that are compared), `missing` and `baseline_missing` (number of these that the run and the baseline lack),
        `judged_topics` (of the qrels file), `judged` and `baseline_judged` (see `measures.estimate_judged`, over the
        topics of `value`).

    Raises:
        UsageError: The runs cannot be compared, see `significance.compare`.
    """
    common = {
        other.name: estimate_common_stances(other.run, baseline.run, other.qrels)
        for other in others
        if other.qrels.stances
    }
    runs = {
        evaluation.name: {name: each for name, each in evaluation.estimates.items() if not name.endswith(f" {JUDGED}")}
        for evaluation in (baseline, *others)
    }
    notes = []
    for other in others:
        for measure, (estimate, _) in common.get(other.name, {}).items():
            alone, theirs = other.estimates[measure].n, baseline.estimates[measure].n
            if estimate.n < max(alone, theirs):
                notes.append(
                    f"{other.name}: {measure}: compared over the {estimate.n:,} judged documents that both label; it "
                    f"labels {alone:,}, and {baseline.name} {theirs:,}"
                )
        notes += describe_judging(other, baseline)
    frame = compare(baseline.name, runs, common=common)
    by_name = {other.name: other for other in others}
    added = []
    for name, measure in zip(frame["run"], frame["measure"], strict=True):
        other = by_name[name]
        aspect = aspect_of(measure)
        covered = other.coverage(aspect)
        pair = common.get(name, {}).get(measure) or (other.estimates[measure], baseline.estimates[measure])
        topics = list_common_topics(*pair)
        shares = (estimate_judged(each.run, each.qrels, measure, topics).value for each in (other, baseline))
        counts = (len(covered.topics), len(covered.missing), len(baseline.coverage(aspect).missing), covered.judged)
        added.append((*counts, *shares))
    columns = ["topics", "missing", "baseline_missing", "judged_topics", "judged", "baseline_judged"]
    return frame.join(pd.DataFrame(added, columns=columns)), notes


def describe_judging(run: Evaluation, baseline: Evaluation) -> list[str]:
    """Describe the possible effect of unjudged documents, which count 0, on a run's difference from a baseline.

    A note for each aspect with losses that could come from unjudged documents alone, see `find_unjudged_losses`, or
    with a much larger share of one run's top documents judged than of the other's.
    """
    notes = []
    for aspect in run.qrels.grades:
        losses = find_unjudged_losses(run, baseline, aspect)
        share, other_share = (evaluation.estimates[f"{aspect} {JUDGED}"].value for evaluation in (run, baseline))
        if NDCG not in losses and abs(share - other_share) > _MAX_JUDGED_DIFFERENCE:
            notes.append(
                f"{run.name}: {aspect} {JUDGED} is {share:.3f}, and {other_share:.3f} for {baseline.name}; part of the "
                "difference may come from the judging, since an unjudged document counts 0"
            )
        if losses:
            listed = ", ".join(
                f"{measure} {difference:+.4f} (judged documents alone {condensed:+.4f})"
                for measure, (difference, condensed) in losses.items()
            )
            notes.append(
                f"{run.name}: {aspect}: the loss against {baseline.name} could come from unjudged documents alone: "
                f"{listed}; have the unjudged documents at the top judged before you call it worse"
            )
    return notes


def find_unjudged_losses(run: Evaluation, baseline: Evaluation, aspect: str) -> dict[str, tuple[float, float]]:
    """Find the measures by which a run loses against a baseline, but not over judged documents alone.

    A run loses if its mean over the topics of both is lower. The second comparison is of condensed lists: unjudged
    documents are removed from both rankings before they are cut off, so judged ones move up (Sakai, Alternatives to
    Bpref, SIGIR 2007). If the removal shortens a list, both are cut to the shorter length, so that a run is penalised
    for ranks that it left empty, but not for unjudged documents. If the run is not lower then, the loss comes from
    unjudged documents, which count 0.

    Condensed lists favour a run with many unjudged documents (Fröbe et al., Bootstrapped nDCG Estimation in the
    Presence of Unjudged Documents, ECIR 2023): such a loss is unproven, not refuted. Bounds of the measure are no
    alternative, since they are so wide that few losses would be proven. Unjudged documents are why comparisons with
    BM25 on Touché 2020 were not fair (Thakur et al., SIGIR 2024, arXiv 2407.07790).

    Stance measures and touche_nDCG@5 leave unjudged documents out already.

    Returns:
        By measure, such as `nDCG@5`, the difference and that of condensed lists.
    """
    measures = [
        measure
        for measure in run.estimates
        if aspect_of(measure) == aspect and measure not in (f"{aspect} {JUDGED}", f"{aspect} {TOUCHE_NDCG}")
    ]
    differences = {
        measure: _compute_difference(run.estimates[measure], baseline.estimates[measure]) for measure in measures
    }
    if not any(difference < -TIE for difference in differences.values()):
        return {}
    (depth,) = (int(measure.partition("@")[2]) for measure in measures if measure.startswith(f"{aspect} R@"))
    grades = run.qrels.grades[aspect]
    ours, theirs = (estimate_grades(each, grades, depth) for each in _condense(run.run, baseline.run, grades))
    losses = {}
    for measure, difference in differences.items():
        name = measure.removeprefix(f"{aspect} ")
        condensed = _compute_difference(ours[name], theirs[name])
        if difference < -TIE and condensed >= -TIE:
            losses[name] = (difference, condensed)
    return losses


def _condense(run: ParsedRun, baseline: ParsedRun, grades: Grades) -> tuple[ParsedRun, ParsedRun]:
    """Return the condensed lists of two runs, as `find_unjudged_losses` describes them."""
    condensed: tuple[dict[str, list[Candidate]], ...] = ({}, {})
    for topic, judged in grades.items():
        rankings = [each.rankings.get(topic, []) for each in (run, baseline)]
        kept = [[candidate for candidate in ranking if candidate.document_id in judged] for ranking in rankings]
        limit = min((len(some) for some, ranking in zip(kept, rankings, strict=True) if some != ranking), default=None)
        for found, some in zip(condensed, kept, strict=True):
            if some[:limit]:
                found[topic] = some[:limit]
    return ParsedRun(condensed[0], {}), ParsedRun(condensed[1], {})


def _compute_difference(one: Estimate, other: Estimate) -> float:
    """Compute the difference of two means over the topics of both; NaN without such topics."""
    topics = list_common_topics(one, other)
    return one.compute_value(topics) - other.compute_value(topics)
