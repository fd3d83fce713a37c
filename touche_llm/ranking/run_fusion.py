"""Fusion of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from touche_llm.data.records import RunLine
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.data.runs.writing import NO_STANCE_COLUMN, make_strictly_decreasing
from touche_llm.errors import UsageError
from touche_llm.ranking.fusion import FusionFormula, WeightedRanking, fuse
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
    formula: FusionFormula,
    *,
    task: Task | None,
    depth: int,
    tag: str,
) -> FusedRun:
    """Fuse runs topic by topic, each topic from the runs that have it.

    Args:
        runs: Runs, read with the labels of the task.
        weights: One weight per run.
        formula: Formula of the fusion.
        task: Task of the runs, for documents without a stance; may be None if no document or
            every document has a stance.
        depth: Maximum number of documents per topic.
        tag: Tag of the fused run.

    Returns:
        Fused run, with the topics in the order in which the runs first have them.

    Raises:
        UsageError: Weights are missing, negative, infinite or all 0; only runs of weight 0 have a
            topic; or a document needs a task for its stance.
    """
    _check_weights(weights, len(runs))
    weighted_runs = [_WeightedRun(run, weight) for run, weight in zip(runs, weights, strict=True)]
    stances = _StanceChooser(runs, task)

    topics = [
        _fuse_topic(topic_id, weighted_runs, formula, stances, depth)
        for topic_id in _list_topics(runs)
    ]
    return _make_fused_run(topics, run_count=len(runs), tag=tag)


def _make_fused_run(topics: Sequence[_FusedTopic], run_count: int, tag: str) -> FusedRun:
    """Return the lines of fused topics, with counts of what a user should know of.

    Args:
        topics: Fused topics.
        run_count: Number of the fused runs.
        tag: Tag of the fused run.
    """
    lines: list[RunLine] = []
    documents: list[_FusedDocument] = []
    for topic in topics:
        lines.extend(_make_lines(topic, tag))
        documents.extend(topic.documents)

    return FusedRun(
        lines=lines,
        partial=[topic.topic_id for topic in topics if topic.run_count < run_count],
        disagreeing=sum(document.stance.is_disputed for document in documents),
        imputed=sum(document.stance.is_imputed for document in documents),
        left_out=sum(topic.left_out for topic in topics),
    )


def _check_weights(weights: Sequence[float], run_count: int) -> None:
    """Raise UsageError unless each run has a finite weight of at least 0, and one is above 0."""
    is_complete = len(weights) == run_count
    are_in_range = all(0 <= weight < math.inf for weight in weights)
    has_positive = any(weight > 0 for weight in weights)
    if is_complete and are_in_range and has_positive:
        return

    given = ", ".join(map(str, weights))
    raise UsageError(
        f"weights: {given}; give one of at least 0 to each of {run_count} runs, not all 0"
    )


def _list_topics(runs: Sequence[ParsedRun]) -> list[str]:
    """Return the ids of all topics, in the order in which the runs first have them."""
    topic_ids = [topic_id for run in runs for topic_id in run.rankings]
    return list(dict.fromkeys(topic_ids))


@dataclass(frozen=True, slots=True)
class _WeightedRun:
    """A run with its weight in the fusion."""

    run: ParsedRun
    weight: float


@dataclass(frozen=True, slots=True)
class _FusedStance:
    """Stance of a document in the fused run.

    Attributes:
        label: Label, or what the stance column keeps without stances.
        is_disputed: Whether runs have different stances of the document.
        is_imputed: Whether no run has a stance of the document.
    """

    label: str
    is_disputed: bool = False
    is_imputed: bool = False


@dataclass(frozen=True, slots=True)
class _FusedDocument:
    """Document of the fused run."""

    document_id: str
    score: float
    stance: _FusedStance


@dataclass(frozen=True, slots=True, kw_only=True)
class _FusedTopic:
    """Fused ranking of a topic.

    Attributes:
        documents: Documents, best first.
        run_count: Number of runs that have the topic.
        left_out: Number of documents left out for lack of a stance.
    """

    topic_id: str
    documents: list[_FusedDocument]
    run_count: int
    left_out: int


def _fuse_topic(
    topic_id: str,
    weighted_runs: Sequence[_WeightedRun],
    formula: FusionFormula,
    stances: _StanceChooser,
    depth: int,
) -> _FusedTopic:
    """Fuse the rankings of one topic, and keep the best `depth` documents that get a stance."""
    rankings = _list_rankings(topic_id, weighted_runs)
    documents: list[_FusedDocument] = []
    left_out = 0
    for scored in fuse(rankings, formula):
        if len(documents) == depth:
            break

        stance = stances.choose(topic_id, scored.document_id)
        if stance is None:
            left_out += 1
        else:
            documents.append(_FusedDocument(scored.document_id, scored.score, stance))

    return _FusedTopic(
        topic_id=topic_id,
        documents=documents,
        run_count=len(rankings),
        left_out=left_out,
    )


def _list_rankings(topic_id: str, weighted_runs: Sequence[_WeightedRun]) -> list[WeightedRanking]:
    """Return the rankings of a topic by the runs that have it.

    Raises:
        UsageError: All of these runs have weight 0.
    """
    rankings: list[WeightedRanking] = []
    for weighted in weighted_runs:
        ranking = weighted.run.rankings.get(topic_id)
        if ranking is not None:
            rankings.append(WeightedRanking(ranking, weighted.weight))

    if not any(ranking.weight for ranking in rankings):
        raise UsageError(
            f"topic {topic_id}: only runs of weight 0 have it; weigh one of them, or leave them out"
        )
    return rankings


def _make_lines(topic: _FusedTopic, tag: str) -> list[RunLine]:
    """Return the lines of a topic, with ranks from 1 and strictly decreasing scores."""
    scores = make_strictly_decreasing([document.score for document in topic.documents])

    lines: list[RunLine] = []
    for document, score in zip(topic.documents, scores, strict=True):
        line = RunLine(
            topic_id=topic.topic_id,
            stance=document.stance.label,
            document_id=document.document_id,
            rank=len(lines) + 1,
            score=score,
            tag=tag,
        )
        lines.append(line)
    return lines


class _StanceChooser:
    """Chooser of the stances of a fused run.

    Attributes:
        runs: Fused runs; an earlier one's stances come first.
        has_stances: Whether any run has a stance.
        task: Task with the label for an unknown stance, if known.
    """

    def __init__(self, runs: Sequence[ParsedRun], task: Task | None) -> None:
        """Take the runs, and the task, if any, with the label for an unknown stance."""
        self.runs = runs
        self.has_stances = any(run.stances for run in runs)
        self.task = task

    def choose(self, topic_id: str, document_id: str) -> _FusedStance | None:
        """Choose the stance of a document; return None if the document must be left out.

        If no run has a stance of any document, the stance column keeps `Q0`. Otherwise the first
        run with a stance of the document decides. A document without a stance gets the task's label
        for an unknown stance, and is left out if the task has no such label.

        Raises:
            UsageError: The document has no stance, and there is no task with a label for that.
        """
        if not self.has_stances:
            return _FusedStance(NO_STANCE_COLUMN)

        key = (topic_id, document_id)
        labels = [run.stances[key] for run in self.runs if key in run.stances]
        if labels:
            is_disputed = len(set(labels)) > 1
            return _FusedStance(labels[0], is_disputed=is_disputed)

        if self.task is None:
            raise UsageError(
                f"topic {topic_id}, document {document_id}: has no stance in any run, other documents have one; "
                "give `task: NAME`, whose label for an unknown stance it then gets"
            )
        if self.task.unknown_stance is None:
            return None
        return _FusedStance(self.task.unknown_stance, is_imputed=True)
