"""Ranking by each document's own judgment."""

from __future__ import annotations

from collections.abc import Mapping

from touche_llm.data.records import Candidate, ScoredDocument
from touche_llm.judging.grades import GradedDocument, combine_grades
from touche_llm.ranking.order import scale_scores

# Below every score, so that what the model was asked about stays above what it was not.
_INHERITED, _UNJUDGED = -1.0, -2.0


def rank_by_first_stage(candidates: list[Candidate]) -> list[ScoredDocument]:
    """The candidates of one topic in their order, with their scores scaled to 0..1 (1 where all are equal)."""
    scored = [ScoredDocument(each.document_id, each.score) for each in candidates]
    return [ScoredDocument(each.document_id, score) for each, score in zip(scored, scale_scores(scored), strict=True)]


def rank_by_judgment(
    first_stage: list[ScoredDocument], judgments: Mapping[str, GradedDocument], weights: Mapping[str, float]
) -> list[ScoredDocument]:
    """The same documents by their judgments.

    A judged document's score is the weighted mean of its grades/3 and the first-stage score; equal scores keep their
    first-stage order. Documents that only inherit their grades follow in the order of the candidates, which comes from
    those. Documents without a judgment come last, in that order too.

    Args:
        first_stage: the documents of one topic, with scores from 0 to 1.
        judgments: of that topic, by document id.
        weights: of the grades and of the first stage, by name; not all zero.
    """

    def score(each: ScoredDocument) -> float:
        judgment = judgments.get(each.document_id)
        if judgment is None:
            return _UNJUDGED
        return _INHERITED if judgment.source == "inherited" else combine_grades(judgment, weights, each.score)

    scored = [ScoredDocument(each.document_id, score(each)) for each in first_stage]
    return sorted(scored, key=lambda each: -each.score)
