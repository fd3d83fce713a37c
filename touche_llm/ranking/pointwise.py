"""Ranking by each document's own judgment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from touche_llm.data.records import HIGHEST_GRADE, Candidate, Scored
from touche_llm.ranking.order import scaled
from touche_llm.tasks.base import FIRST_STAGE

# Below every score, so that what the model was asked about stays above what it was not.
_INHERITED, _UNJUDGED = -1.0, -2.0


class Graded(Protocol):
    """A judgment, or what the ranking needs of it."""

    @property
    def grades(self) -> Mapping[str, float]:
        """By name, from 0 to 3."""
        ...

    @property
    def source(self) -> str:
        """See Judgment."""
        ...


def by_first_stage(candidates: list[Candidate]) -> list[Scored]:
    """The candidates of one topic in their order, with their scores scaled to 0..1 (1 where all are equal)."""
    scored = [Scored(each.document_id, each.score) for each in candidates]
    return [Scored(each.document_id, score) for each, score in zip(scored, scaled(scored), strict=True)]


def by_judgment(
    first_stage: list[Scored], judgments: Mapping[str, Graded], weights: Mapping[str, float]
) -> list[Scored]:
    """The same documents by their judgments.

    A judged document's score is the weighted mean of its grades/3 and the first-stage score; equal scores keep their
    first-stage order. Documents that only inherit their grades follow in the order of the candidates, which comes from
    those. Documents without a judgment come last, in that order too.

    Args:
        first_stage: the documents of one topic, with scores from 0 to 1.
        judgments: of that topic, by document id.
        weights: of the grades and of the first stage, by name; not all zero.
    """

    def score(each: Scored) -> float:
        judgment = judgments.get(each.document_id)
        if judgment is None:
            return _UNJUDGED
        return _INHERITED if judgment.source == "inherited" else graded(judgment, weights, each.score)

    scored = [Scored(each.document_id, score(each)) for each in first_stage]
    return sorted(scored, key=lambda each: -each.score)


def graded(judgment: Graded, weights: Mapping[str, float], first_stage: float | None = None) -> float:
    """The weighted mean of a judgment's grades/3 and, if given, of the first-stage score, all between 0 and 1.

    It is 0 where all that the judgment has weighs nothing.
    """
    parts = {name: grade / HIGHEST_GRADE for name, grade in judgment.grades.items()}
    if first_stage is not None:
        parts[FIRST_STAGE] = first_stage
    total = sum(weights[name] for name in parts)
    return sum(weights[name] * value for name, value in parts.items()) / total if total else 0.0
