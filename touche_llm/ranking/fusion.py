"""Fusion of several rankings of the same topics, by their ranks or by their scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from touche_llm.data.records import Candidate, RunLine, ScoredDocument
from touche_llm.data.settings import Section
from touche_llm.data.trec_runs import NO_STANCE_COLUMN, ParsedRun, make_strictly_decreasing
from touche_llm.errors import UsageError
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
    """Fuse the rankings of one topic by the weighted mean of their documents' values, which are from 0 to 1.

    With `rrf` (reciprocal rank fusion: Cormack, Clarke and Büttcher, SIGIR 2009), the value is 1/(k + rank), divided by
    that of rank 1, whatever the scores. With `interpolation`, it is the score, scaled to 0..1 within the ranking; 1 if
    all are equal. A document that a ranking lacks has the value 0 there. Ties are broken by the rank in the first
    ranking that has the document, then by which ranking that is.

    Args:
        rankings: Rankings of one topic, each best first, each document once.
        weights: One weight per ranking, see `check_weights`.
        settings: Method of fusion.
    """
    # Dividing by the largest weight prevents overflow and underflow.
    shares = [weight / max(weights) for weight in weights]
    parts: dict[str, list[float]] = {}
    places: dict[str, tuple[int, int]] = {}
    for number, (ranking, share) in enumerate(zip(rankings, shares, strict=True), start=1):
        if settings.method == "rrf":
            values = [(settings.k + 1) / (settings.k + rank) for rank in range(1, len(ranking) + 1)]
        else:
            values = scale_scores(ranking)
        for rank, (scored, value) in enumerate(zip(ranking, values, strict=True), start=1):
            parts.setdefault(scored.document_id, []).append(share * value)
            places.setdefault(scored.document_id, (rank, number))
    # fsum is exact, so ties of the formula are ties here, whatever the order of the rankings.
    total = math.fsum(shares)
    fused = [ScoredDocument(document, math.fsum(part) / total) for document, part in parts.items()]
    return sorted(fused, key=lambda scored: (-scored.score, places[scored.document_id]))


def fuse_candidates(rankings: Sequence[list[Candidate]], weights: Sequence[float], k: float) -> list[Candidate]:
    """Fuse candidates of one topic by their reciprocal ranks; ranks start at 1."""
    topic_id = next((candidate.topic_id for ranking in rankings for candidate in ranking), "")
    fused = fuse(rankings, weights, FusionSettings(k=k))
    return [Candidate(topic_id, scored.document_id, rank, scored.score) for rank, scored in enumerate(fused, start=1)]


def check_weights(weights: Sequence[float], rankings: int) -> None:
    """Raise UsageError unless there is one weight for each ranking, none negative, at least one above 0."""
    if len(weights) != rankings or not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        raise UsageError(
            f"weights: {', '.join(map(str, weights))}; give one of at least 0 to each of {rankings} rankings, not all 0"
        )


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
        weights: One weight per run, see `check_weights`.
        settings: Method of fusion.
        task: Task of the runs; None if no document or every document has a stance.
        depth: Maximum number of lines per topic.
        tag: Tag of the fused run.

    Raises:
        UsageError: Only runs of weight 0 have a topic, or a task is needed and missing.
    """
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
