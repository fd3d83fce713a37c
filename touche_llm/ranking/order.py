"""Conversion of orders and values into rankings with scores between 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from touche_llm.data.records import ScoredDocument


def score_positions(documents: Sequence[str]) -> list[ScoredDocument]:
    """Give documents, best first, evenly decreasing scores from 1 that stay above 0."""
    return [ScoredDocument(document, 1.0 - place / len(documents)) for place, document in enumerate(documents)]


def rank_by_value(values: Mapping[str, float | None]) -> list[ScoredDocument]:
    """Rank documents by descending value, equal ones in the given order.

    A document whose value is None keeps its given place, with the score of the document above it.
    """
    known = [(document, value) for document, value in values.items() if value is not None]
    ranking = [ScoredDocument(document, value) for document, value in sorted(known, key=lambda item: -item[1])]
    for place, (document, value) in enumerate(values.items()):
        if value is None:
            ranking.insert(place, ScoredDocument(document, ranking[place - 1].score if place else 1.0))
    return ranking


def scale_scores(ranking: Sequence[ScoredDocument]) -> list[float]:
    """Scale the scores of a ranking to 0..1; return 1 for all if they are equal."""
    lowest = min((scored.score for scored in ranking), default=0.0)
    span = max((scored.score for scored in ranking), default=0.0) - lowest
    return [(scored.score - lowest) / span if span else 1.0 for scored in ranking]
