"""Orders of documents by scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from touche_llm.data.records import Candidate, Judgment, ScoredDocument
from touche_llm.judging.grades import combine_grades
from touche_llm.tasks.parts import Scale

# Documents of one topic with their scores, best first.
Ranked = Sequence[ScoredDocument | Candidate]


def score_positions(documents: Sequence[str]) -> list[ScoredDocument]:
    """Give documents, best first, evenly decreasing scores from 1 that stay above 0."""
    ranking: list[ScoredDocument] = []
    for place, document in enumerate(documents):
        score = 1.0 - place / len(documents)
        ranking.append(ScoredDocument(document, score))
    return ranking


def rank_by_value(values: Mapping[str, float | None]) -> list[ScoredDocument]:
    """Rank documents by descending value, equal ones in the given order.

    A document whose value is None keeps its given place, with the score of the document above it,
    or 1 at the first place.
    """
    known = [
        ScoredDocument(document, value) for document, value in values.items() if value is not None
    ]
    ranking = sorted(known, key=lambda scored: -scored.score)

    for place, (document, value) in enumerate(values.items()):
        if value is None:
            score = ranking[place - 1].score if place > 0 else 1.0
            ranking.insert(place, ScoredDocument(document, score))
    return ranking


def scale_scores(ranking: Ranked) -> list[float]:
    """Scale the scores of a ranking to 0..1; return 1 for all if they are equal."""
    scores = [scored.score for scored in ranking]
    if not scores:
        return []

    lowest = min(scores)
    span = max(scores) - lowest
    if span == 0:
        return [1.0] * len(scores)
    return [(score - lowest) / span for score in scores]


# Marks in place of scores, below every score, so that documents that the model judged stay above
# the others.
_INHERITED, _UNJUDGED = -1.0, -2.0


def is_judged(document: ScoredDocument) -> bool:
    """Return whether a document of a ranking has a score, not a mark of `rank_by_judgment`."""
    return document.score >= 0.0


def replace_marks(ranking: Sequence[ScoredDocument]) -> list[float]:
    """Return the scores of a ranking, the lowest of them in place of a mark: who scales scores knows no marks."""
    lowest = min((document.score for document in ranking if is_judged(document)), default=0.0)
    return [max(document.score, lowest) for document in ranking]


def rank_by_first_stage(candidates: list[Candidate]) -> list[ScoredDocument]:
    """Rank the candidates of one topic in their order, with scores scaled to 0..1 (1 if all are equal)."""
    scores = scale_scores(candidates)
    return [
        ScoredDocument(candidate.document_id, score)
        for candidate, score in zip(candidates, scores, strict=True)
    ]


def rank_by_judgment(
    first_stage: list[ScoredDocument],
    judgments: Mapping[str, Judgment],
    weights: Mapping[str, float],
    scales: Mapping[str, Scale],
) -> list[ScoredDocument]:
    """Rank the documents by their judgments.

    A judged document's score is the weighted mean of its grades and the first-stage score; equal
    scores keep their first-stage order. Documents with inherited grades follow in first-stage
    order, which is based on those grades. Documents without a judgment come last, also in
    first-stage order. Both have a mark for a score, see `is_judged`.
    """

    def score(document: ScoredDocument) -> float:
        judgment = judgments.get(document.document_id)
        if judgment is None:
            return _UNJUDGED
        if judgment.source == "inherited":
            return _INHERITED
        return combine_grades(judgment, weights, scales, document.score)

    scored = [ScoredDocument(document.document_id, score(document)) for document in first_stage]
    return sorted(scored, key=lambda document: -document.score)
