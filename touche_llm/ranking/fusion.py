"""Fusion of several rankings of the same topics, by their ranks or by their scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from touche_llm.data.records import Candidate, RunLine, ScoredDocument
from touche_llm.data.settings import Section
from touche_llm.data.trec_runs import NO_STANCE_COLUMN, ParsedRun, make_strictly_decreasing
from touche_llm.errors import DataError, UsageError
from touche_llm.ranking.order import Ranked, scale_scores
from touche_llm.tasks.task import Task

DEFAULT_K = 60.0


class FusionSettings(Section):
    """Settings of fusion: by rank (`rrf`, with its constant `k`) or by scaled score (`interpolation`)."""

    method: Literal["rrf", "interpolation"] = "rrf"
    k: float = Field(DEFAULT_K, ge=0.0, allow_inf_nan=False)


class FusionStepSettings(FusionSettings):
    """Settings of a step that fuses the rankings of the steps before it.

    Attributes:
        weights: Weights of the first stage (`first_stage`) and of the steps, by name; 1 by default.
    """

    weights: dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] = {}


@dataclass(frozen=True, slots=True)
class FusedRun:
    """The fusion of several runs.

    Attributes:
        lines: Lines of the fused run, topic by topic.
        partial: Topics that some of the runs lack.
        disagreeing: Number of documents for which the runs have different stances.
        imputed: Number of documents whose stance is the task's label for an unknown one.
        left_out: Number of documents left out because no run has their stance and the task has no label for that.
    """

    lines: list[RunLine]
    partial: list[str]
    disagreeing: int
    imputed: int
    left_out: int


def fuse(rankings: Sequence[Ranked], weights: Sequence[float], settings: FusionSettings) -> list[ScoredDocument]:
    """Fuse the rankings of one topic with `fuse_reciprocal_ranks` or `interpolate`, as the settings say."""
    if settings.method == "rrf":
        return fuse_reciprocal_ranks(rankings, weights, settings.k)
    return interpolate(rankings, weights)


def fuse_reciprocal_ranks(
    rankings: Sequence[Ranked], weights: Sequence[float], k: float = DEFAULT_K
) -> list[ScoredDocument]:
    """Fuse rankings by weighted reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009).

    A document's score is the sum of weight/(k + rank) over the rankings that have it, divided by the sum for a document
    that is first in all of them, so that the maximum is 1. Ranks count from 1 in the order of the lists; scores are
    ignored. Ties are broken by the rank in the first ranking that has the document, then by which ranking that is.

    Args:
        rankings: Rankings of one topic, each best first, each document once.
        weights: One weight per ranking, not negative, not all 0.
        k: Constant of at least 0; the larger it is, the less a first place counts.

    Raises:
        DataError: A document occurs twice in a ranking.
        UsageError: The weights or `k` are invalid.
    """
    if not (math.isfinite(k) and k >= 0):
        raise UsageError(f"k: must be a number of at least 0, not {k}")
    return _fuse_values(rankings, weights, lambda ranking: [(k + 1) / (k + n + 1) for n in range(len(ranking))])


def fuse_candidates(rankings: Sequence[list[Candidate]], weights: Sequence[float], k: float) -> list[Candidate]:
    """Fuse candidates of one topic with `fuse_reciprocal_ranks`; ranks start at 1."""
    topic_id = next((candidate.topic_id for ranking in rankings for candidate in ranking), "")
    fused = fuse_reciprocal_ranks(rankings, weights, k)
    return [Candidate(topic_id, scored.document_id, rank, scored.score) for rank, scored in enumerate(fused, start=1)]


def interpolate(rankings: Sequence[Ranked], weights: Sequence[float]) -> list[ScoredDocument]:
    """Fuse rankings by the weighted mean of their scores, each ranking scaled to 0..1.

    Scaled score = (score - lowest)/(highest - lowest) within the ranking, 1 if all are equal, and 0 for a document
    that the ranking lacks. Ties, arguments and errors are those of `fuse_reciprocal_ranks`.
    """
    return _fuse_values(rankings, weights, scale_scores)


def _fuse_values(
    rankings: Sequence[Ranked],
    weights: Sequence[float],
    values: Callable[[Ranked], list[float]],
) -> list[ScoredDocument]:
    """Fuse by the weighted mean of values from 0 to 1; a ranking gives 0 to documents that it lacks."""
    check_weights(weights, len(rankings))
    # Dividing by the largest weight prevents overflow and underflow.
    shares = [weight / max(weights) for weight in weights]
    parts: dict[str, list[float]] = {}
    places: dict[str, tuple[int, int]] = {}
    for number, (ranking, share) in enumerate(zip(rankings, shares, strict=True), start=1):
        seen: set[str] = set()
        for rank, (scored, value) in enumerate(zip(ranking, values(ranking), strict=True), start=1):
            document = scored.document_id
            if document in seen:
                raise DataError(f"document {document}: twice in ranking {number}; name each document once")
            seen.add(document)
            parts.setdefault(document, []).append(share * value)
            places.setdefault(document, (rank, number))
    # fsum is exact, so ties of the formula are ties here, whatever the order of the rankings.
    total = math.fsum(shares)
    fused = [ScoredDocument(document, math.fsum(part) / total) for document, part in parts.items()]
    return sorted(fused, key=lambda scored: (-scored.score, places[scored.document_id]))


def check_weights(weights: Sequence[float], rankings: int) -> None:
    """Raise UsageError unless there is one weight for each ranking, none negative, at least one above 0."""
    if len(weights) != rankings:
        raise UsageError(f"weights: {len(weights)} given for {rankings} rankings; give one for each, in their order")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise UsageError(f"weights: must be numbers of at least 0, not {', '.join(map(str, weights))}")
    if not any(weights):
        raise UsageError("weights: all are 0; give at least one above 0")


def fuse_runs(
    runs: Sequence[ParsedRun],
    weights: Sequence[float],
    settings: FusionSettings,
    *,
    task: Task | None,
    depth: int,
    tag: str,
) -> FusedRun:
    """Fuse runs topic by topic, each topic from the runs that have it, in the order of first occurrence.

    A document has the stance of the first run that gives it one. If no run has any stance, the column keeps `Q0`; else
    a document without one gets the task's label for an unknown stance, or is left out if the task has none.

    Args:
        runs: Runs, read with the labels of the task, if there is a task.
        weights: One weight per run, as for `fuse_reciprocal_ranks`.
        settings: Method of fusion.
        task: Task of the runs; None if no document or every document has a stance.
        depth: Maximum number of lines per topic.
        tag: Tag of the fused run.

    Raises:
        UsageError: The weights are invalid, only runs of weight 0 have a topic, or a task is needed and missing.
    """
    check_weights(weights, len(runs))
    has_stances = any(run.stances for run in runs)
    lines: list[RunLine] = []
    partial: list[str] = []
    disagreeing = imputed = left_out = 0
    for topic in dict.fromkeys(topic for run in runs for topic in run.rankings):
        weighted = [(run, weight) for run, weight in zip(runs, weights, strict=True) if topic in run.rankings]
        if not any(weight for _, weight in weighted):
            raise UsageError(f"topic {topic}: only runs of weight 0 have it; weigh one of them, or leave them out")
        if len(weighted) < len(runs):
            partial.append(topic)
        rankings = [run.rankings[topic] for run, _ in weighted]
        kept: list[tuple[ScoredDocument, str]] = []
        for scored in fuse(rankings, [weight for _, weight in weighted], settings):
            if len(kept) == depth:
                break
            key = topic, scored.document_id
            stances = [run.stances[key] for run, _ in weighted if key in run.stances]
            stance = stances[0] if stances else _impute_stance(*key, task) if has_stances else NO_STANCE_COLUMN
            disagreeing += len(set(stances)) > 1
            imputed += has_stances and not stances and stance is not None
            left_out += stance is None
            if stance is not None:
                kept.append((scored, stance))
        scores = make_strictly_decreasing([scored.score for scored, _ in kept])
        lines += [
            RunLine(topic, stance, scored.document_id, rank, score, tag)
            for rank, (score, (scored, stance)) in enumerate(zip(scores, kept, strict=True), start=1)
        ]
    return FusedRun(lines, partial, disagreeing, imputed, left_out)


def _impute_stance(topic: str, document: str, task: Task | None) -> str | None:
    """Return the task's label for an unknown stance, or None if it has none."""
    if task is None:
        raise UsageError(
            f"topic {topic}, document {document}: has no stance in any run, other documents have one; give "
            "`task: NAME`, whose label for an unknown stance it then gets"
        )
    return task.unknown_stance
