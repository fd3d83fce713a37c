"""From what a method found to a ranking with scores between 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from touche_llm.data.records import ScoredDocument


def score_positions(documents: Sequence[str]) -> list[ScoredDocument]:
    """A ranking that is known by its order alone: the scores fall evenly from 1 and stay above 0."""
    return [ScoredDocument(each, 1.0 - place / len(documents)) for place, each in enumerate(documents)]


def rank_by_value(values: Mapping[str, float | None]) -> list[ScoredDocument]:
    """Documents by descending value; equal ones in the order in which they are given.

    A document whose value is None keeps the place that it was given at, with the score of the one above it.
    """
    known = [(each, value) for each, value in values.items() if value is not None]
    ranking = [ScoredDocument(each, value) for each, value in sorted(known, key=lambda item: -item[1])]
    for place, (each, value) in enumerate(values.items()):
        if value is None:
            ranking.insert(place, ScoredDocument(each, ranking[place - 1].score if place else 1.0))
    return ranking


def scale_scores(ranking: Sequence[ScoredDocument]) -> list[float]:
    """The scores of a ranking, the lowest as 0 and the highest as 1; 1 where all are equal."""
    lowest = min((each.score for each in ranking), default=0.0)
    span = max((each.score for each in ranking), default=0.0) - lowest
    return [(each.score - lowest) / span if span else 1.0 for each in ranking]
