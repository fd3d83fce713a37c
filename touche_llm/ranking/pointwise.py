"""Ranking by each document's own judgment."""

from __future__ import annotations

from collections.abc import Mapping

from touche_llm.records import HIGHEST_GRADE, Candidate, Judgment, RunLine
from touche_llm.runs import strictly_decreasing
from touche_llm.tasks.base import FIRST_STAGE, Task


def rank(
    candidates: list[Candidate],
    judgments: Mapping[str, Judgment],
    task: Task,
    weights: Mapping[str, float],
    tag: str,
) -> list[RunLine]:
    """The ranking of one topic.

    A judged document's score is the weighted mean of its grades/3 and the first-stage score scaled to 0..1 within the
    topic (1 where all are equal); equal scores keep their first-stage order. Documents that only inherit their grades
    follow in the order of the candidates, which comes from those. Documents without a judgment come last, in that
    order too, with the task's label for an unknown stance, or not at all where it has none. The list ends at the task's
    limit.

    Args:
        candidates: of one topic, by rank.
        judgments: of that topic, by document id.
        task: gives the label and the limit.
        weights: of the grades and of the first stage, by name; not all zero.
        tag: the run's tag.
    """
    lowest = min((candidate.score for candidate in candidates), default=0.0)
    span = max((candidate.score for candidate in candidates), default=0.0) - lowest

    def score(candidate: Candidate, judgment: Judgment) -> float:
        return graded(judgment, weights, (candidate.score - lowest) / span if span else 1.0)

    ranking: list[tuple[float, Candidate, str]] = []
    for candidate in candidates:
        judgment = judgments.get(candidate.document_id)
        # A score lies between 0 and 1, so what the model was asked about stays above what it was not.
        if judgment is None and task.unknown_stance is not None:
            ranking.append((-2.0, candidate, task.unknown_stance))
        elif judgment is not None:
            value = -1.0 if judgment.source == "inherited" else score(candidate, judgment)
            ranking.append((value, candidate, judgment.stance))
    ranking.sort(key=lambda each: (-each[0], each[1].rank))
    ranking = ranking[: task.most_per_topic]
    scores = strictly_decreasing([value for value, _, _ in ranking])
    return [
        RunLine(candidate.topic_id, stance, candidate.document_id, position, value, tag)
        for position, (value, (_, candidate, stance)) in enumerate(zip(scores, ranking, strict=True), start=1)
    ]


def graded(judgment: Judgment, weights: Mapping[str, float], first_stage: float | None = None) -> float:
    """The weighted mean of a judgment's grades/3 and, if given, of the first-stage score, all between 0 and 1.

    It is 0 where all that the judgment has weighs nothing.
    """
    parts = {name: grade / HIGHEST_GRADE for name, grade in judgment.grades.items()}
    if first_stage is not None:
        parts[FIRST_STAGE] = first_stage
    total = sum(weights[name] for name in parts)
    return sum(weights[name] * value for name, value in parts.items()) / total if total else 0.0
