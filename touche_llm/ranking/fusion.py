"""Fusion: several rankings of the same topics made one, by their ranks or by their scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from touche_llm.data.records import RunLine, ScoredDocument
from touche_llm.data.trec_runs import NO_STANCE_COLUMN, ParsedRun, make_strictly_decreasing
from touche_llm.errors import DataError, UsageError
from touche_llm.ranking.order import scale_scores
from touche_llm.tasks.base import Task

DEFAULT_K = 60.0


class FusionSettings(BaseModel):
    """How rankings are fused: by rank (`rrf`, with its constant `k`) or by scaled score (`interpolation`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["rrf", "interpolation"] = "rrf"
    k: float = Field(DEFAULT_K, ge=0.0, allow_inf_nan=False)


class FusionStepSettings(FusionSettings):
    """How a step of the ranking fuses what the steps before it found.

    `weights` are those of the first stage (`first_stage`) and of the steps, by name; 1 where nothing is said.
    """

    weights: dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] = {}


@dataclass(frozen=True, slots=True)
class FusedRun:
    """A run made of several.

    Attributes:
        lines: of the run, topic by topic.
        partial: the topics that some of the runs do not have.
        disagreeing: documents of the run for which the runs have different stances.
        imputed: documents of the run whose stance is the task's label for an unknown one.
        left_out: documents left out because no run has their stance and the task has no label for that.
    """

    lines: list[RunLine]
    partial: list[str]
    disagreeing: int
    imputed: int
    left_out: int


def fuse(
    rankings: Sequence[Sequence[ScoredDocument]], weights: Sequence[float], settings: FusionSettings
) -> list[ScoredDocument]:
    """The fused ranking of one topic, by the method of the settings; see `fuse_reciprocal_ranks` and `interpolate`."""
    if settings.method == "rrf":
        return fuse_reciprocal_ranks(rankings, weights, settings.k)
    return interpolate(rankings, weights)


def fuse_reciprocal_ranks(
    rankings: Sequence[Sequence[ScoredDocument]], weights: Sequence[float], k: float = DEFAULT_K
) -> list[ScoredDocument]:
    """Reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009), with a weight for each ranking.

    A document's score is the sum of weight/(k + rank) over the rankings that have it, divided by what a document that
    is first in all of them would have: 1 is that document's score. Ranks count from 1 in the order of the lists; scores
    are not looked at. Equal scores are parted by the rank in the first ranking that has the document, then by which
    ranking that is.

    Args:
        rankings: of one topic, each best first, each document once.
        weights: one for each ranking, not negative, not all 0.
        k: from 0 on; the larger, the less a first place counts.

    Raises:
        DataError: a document twice in a ranking.
        UsageError: weights or a `k` that are not as they should be.
    """
    if not (math.isfinite(k) and k >= 0):
        raise UsageError(f"k: must be a number from 0 on, not {k}")
    return _weighted_mean(rankings, weights, lambda ranking: [(k + 1) / (k + n + 1) for n in range(len(ranking))])


def interpolate(rankings: Sequence[Sequence[ScoredDocument]], weights: Sequence[float]) -> list[ScoredDocument]:
    """The weighted mean of the scores, each ranking's scaled to 0..1.

    Scaled score = (score - lowest)/(highest - lowest) within the ranking, 1 where all are equal, and 0 for a document
    that the ranking does not have. Ties, arguments and errors are those of `fuse_reciprocal_ranks`.
    """
    return _weighted_mean(rankings, weights, scale_scores)


def _weighted_mean(
    rankings: Sequence[Sequence[ScoredDocument]],
    weights: Sequence[float],
    values: Callable[[Sequence[ScoredDocument]], list[float]],
) -> list[ScoredDocument]:
    """Fuse by the weighted mean of what a ranking gives its documents, 0..1; it gives 0 to those it does not have."""
    check_weights(weights, len(rankings))
    # As shares of the largest, no weight is too large or too small to add and divide.
    shares = [weight / max(weights) for weight in weights]
    parts: dict[str, list[float]] = {}
    places: dict[str, tuple[int, int]] = {}
    for number, (ranking, share) in enumerate(zip(rankings, shares, strict=True), start=1):
        seen: set[str] = set()
        for rank, (each, value) in enumerate(zip(ranking, values(ranking), strict=True), start=1):
            if each.document_id in seen:
                raise DataError(f"document {each.document_id}: twice in ranking {number}; name each document once")
            seen.add(each.document_id)
            parts.setdefault(each.document_id, []).append(share * value)
            places.setdefault(each.document_id, (rank, number))
    # fsum is exact: what ties by the formula ties here, whatever the order of the rankings.
    total = math.fsum(shares)
    fused = [ScoredDocument(document, math.fsum(part) / total) for document, part in parts.items()]
    return sorted(fused, key=lambda each: (-each.score, places[each.document_id]))


def check_weights(weights: Sequence[float], rankings: int) -> None:
    """Raise UsageError unless there is one weight for each ranking, none negative, at least one above 0."""
    if len(weights) != rankings:
        raise UsageError(f"weights: {len(weights)} given for {rankings} rankings; give one for each, in their order")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise UsageError(f"weights: must be numbers from 0 on, not {', '.join(map(str, weights))}")
    if not any(weights):
        raise UsageError("weights: all are 0: nothing is left to rank by")


def fuse_runs(
    runs: Sequence[ParsedRun],
    weights: Sequence[float],
    settings: FusionSettings,
    *,
    task: Task | None,
    depth: int,
    tag: str,
) -> FusedRun:
    """Fuse runs topic by topic, each topic from the runs that have it; topics in the order in which they are first met.

    A document has the stance of the first run that gives it one. Where no run has any stance, the column keeps `Q0`;
    else a document without one gets the task's label for an unknown stance, or is left out where the task has none.

    Args:
        runs: read with the task's labels, if there is a task.
        weights: one for each run, as for `fuse_reciprocal_ranks`.
        settings: the method.
        task: may be None where no document, or every one, has a stance.
        depth: lines for each topic, at most.
        tag: the run's tag.

    Raises:
        UsageError: weights that are not as they should be, a topic that only runs of weight 0 have, or no task where
            one is needed.
    """
    check_weights(weights, len(runs))
    labelled = any(run.stances for run in runs)
    lines: list[RunLine] = []
    partial: list[str] = []
    disagreeing = imputed = left_out = 0
    for topic in dict.fromkeys(topic for run in runs for topic in run.rankings):
        having = [(run, weight) for run, weight in zip(runs, weights, strict=True) if topic in run.rankings]
        if not any(weight for _, weight in having):
            raise UsageError(f"topic {topic}: only runs of weight 0 have it; weigh one of them, or leave them out")
        if len(having) < len(runs):
            partial.append(topic)
        rankings = [[ScoredDocument(each.document_id, each.score) for each in run.rankings[topic]] for run, _ in having]
        kept: list[tuple[ScoredDocument, str]] = []
        for each in fuse(rankings, [weight for _, weight in having], settings):
            if len(kept) == depth:
                break
            key = topic, each.document_id
            stances = [run.stances[key] for run, _ in having if key in run.stances]
            if stances:
                disagreeing += len(set(stances)) > 1
                kept.append((each, stances[0]))
            elif not labelled:
                kept.append((each, NO_STANCE_COLUMN))
            elif task is None:
                raise UsageError(
                    f"topic {topic}, document {each.document_id}: has no stance in any run, other documents have one; "
                    "give the task (--task), whose label for an unknown stance it then gets"
                )
            elif task.unknown_stance is None:
                left_out += 1
            else:
                imputed += 1
                kept.append((each, task.unknown_stance))
        scores = make_strictly_decreasing([each.score for each, _ in kept])
        lines += [
            RunLine(topic, stance, each.document_id, rank, score, tag)
            for rank, (score, (each, stance)) in enumerate(zip(scores, kept, strict=True), start=1)
        ]
    return FusedRun(lines, partial, disagreeing, imputed, left_out)
