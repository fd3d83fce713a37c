"""Fusion of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from touche_llm.data.records import RunLine, ScoredDocument
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.data.runs.writing import NO_STANCE_COLUMN, make_strictly_decreasing
from touche_llm.errors import UsageError
from touche_llm.ranking.fusion import FusionSettings, fuse
from touche_llm.tasks.task import Task


@dataclass(frozen=True, slots=True)
class FusedRun:
    """The fusion of several runs.

    Attributes:
        lines: Lines of the fused run, topic by topic.
        partial: Topics that some of the runs lack.
        disagreeing: Number of documents for which the runs have different stances.
        imputed: Number of documents whose stance is the task's label for an unknown one.
        left_out: Number of documents left out because no run has their stance and the task has no
            label for that.
    """

    lines: list[RunLine]
    partial: list[str]
    disagreeing: int
    imputed: int
    left_out: int


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

    A document has the stance of the first run that gives it one. If no run has any stance, the
    column keeps `Q0`; else a document without one gets the task's label for an unknown stance, or
    is left out if the task has none.

    The runs are read with the labels of the task, which may be None if no document or every
    document has a stance.

    Raises:
        UsageError: Weights are missing, negative or all 0, only runs of weight 0 have a topic, or a
            task is needed.
    """
    if (
        len(weights) != len(runs)
        or not all(0 <= weight < math.inf for weight in weights)
        or not any(weights)
    ):
        given = ", ".join(map(str, weights))
        raise UsageError(
            f"weights: {given}; give one of at least 0 to each of {len(runs)} runs, not all 0"
        )
    has_stances = any(run.stances for run in runs)
    lines: list[RunLine] = []
    partial: list[str] = []
    disagreeing = imputed = left_out = 0
    for topic in dict.fromkeys(topic for run in runs for topic in run.rankings):
        weighted = [
            (run, weight)
            for run, weight in zip(runs, weights, strict=True)
            if topic in run.rankings
        ]
        if not any(weight for _, weight in weighted):
            raise UsageError(
                f"topic {topic}: only runs of weight 0 have it; weigh one of them, or leave them out"
            )
        if len(weighted) < len(runs):
            partial.append(topic)
        rankings = [run.rankings[topic] for run, _ in weighted]
        kept: list[tuple[ScoredDocument, str]] = []
        for scored in fuse(rankings, [weight for _, weight in weighted], settings):
            if len(kept) == depth:
                break
            key = topic, scored.document_id
            stances = [run.stances[key] for run, _ in weighted if key in run.stances]
            stance = (
                stances[0]
                if stances
                else _impute_stance(*key, task)
                if has_stances
                else NO_STANCE_COLUMN
            )
            disagreeing += len(set(stances)) > 1
            imputed += has_stances and not stances and stance is not None
            left_out += stance is None
            if stance is not None:
                kept.append((scored, stance))
        scores = make_strictly_decreasing([scored.score for scored, _ in kept])
        lines += [
            RunLine(topic, stance, scored.document_id, rank, score, tag)
            for rank, (score, (scored, stance)) in enumerate(
                zip(scores, kept, strict=True), start=1
            )
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
