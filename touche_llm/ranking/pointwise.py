"""Ranking by each document's own judgment."""

from __future__ import annotations

from collections.abc import Mapping

from touche_llm.records import Candidate, Judgment, RunLine
from touche_llm.runs import strictly_decreasing
from touche_llm.tasks.base import Task, Weights

HIGHEST_GRADE = 3


def rank(
    candidates: list[Candidate], judgments: Mapping[str, Judgment], task: Task, weights: Weights, tag: str
) -> list[RunLine]:
    """The ranking of one topic.

    A judged document's score is the weighted mean of relevance/3, quality/3 and the first-stage score scaled to 0..1
    within the topic (1 where all are equal); equal scores keep their first-stage order. Documents without a judgment
    follow in first-stage order with the task's label for an unknown stance. The list ends at the task's limit.

    Args:
        candidates: of one topic, by rank.
        judgments: of that topic, by document id.
        task: gives the label and the limit.
        weights: not all zero.
        tag: the run's tag.
    """
    lowest = min((candidate.score for candidate in candidates), default=0.0)
    span = max((candidate.score for candidate in candidates), default=0.0) - lowest
    total = weights.relevance + weights.quality + weights.first_stage

    def score(candidate: Candidate) -> float:
        judgment = judgments[candidate.document_id]
        first_stage = (candidate.score - lowest) / span if span else 1.0
        return (
            weights.relevance * judgment.relevance / HIGHEST_GRADE
            + weights.quality * judgment.quality / HIGHEST_GRADE
            + weights.first_stage * first_stage
        ) / total

    judged = [(score(each), each) for each in candidates if each.document_id in judgments]
    judged.sort(key=lambda pair: (-pair[0], pair[1].rank))
    # 0 is the least that a judged document can score, so the rest goes below.
    rest = [(-1.0, each) for each in candidates if each.document_id not in judgments]
    ranking = (judged + rest)[: task.most_per_topic]
    scores = strictly_decreasing([value for value, _ in ranking])
    lines = []
    for position, (value, (_, candidate)) in enumerate(zip(scores, ranking, strict=True), start=1):
        judgment = judgments.get(candidate.document_id)
        stance = judgment.stance if judgment else task.unknown_stance
        lines.append(RunLine(candidate.topic_id, stance, candidate.document_id, position, value, tag))
    return lines
