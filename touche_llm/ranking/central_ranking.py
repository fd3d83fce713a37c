"""Central ranking of several rankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

# above[a][b]: number of rankings in which a is above b.
Above = Mapping[str, Mapping[str, int]]


def find_central_ranking(rankings: Sequence[Sequence[str]]) -> list[str]:
    """Find a ranking of low total Kendall distance to the given rankings of the same documents.

    Starting from the mean ranks (Borda) and from each of the rankings, single documents are moved
    as long as that lowers the number of pairs on which the rankings disagree with the result. The
    best of these local optima of Kemeny's criterion is returned, since the global optimum is
    NP-hard to find. None of the given rankings has a lower total distance, so the distance is at
    most twice the minimum.
    """
    above = _count_above(rankings)
    borda = sorted(rankings[0], key=lambda document: -sum(above[document].values()))

    optima = [_find_local_optimum(start, above) for start in (borda, *rankings)]
    return min(optima, key=lambda order: _count_disagreements(order, above))


def _count_above(rankings: Sequence[Sequence[str]]) -> Above:
    """Count in how many rankings each document is above each other one."""
    documents = rankings[0]
    above = {document: dict.fromkeys(documents, 0) for document in documents}
    for ranking in rankings:
        for better, worse in combinations(ranking, 2):
            above[better][worse] += 1
    return above


def _count_disagreements(order: Sequence[str], above: Above) -> int:
    """Count the pairs, ranking by ranking, that the rankings have the other way round."""
    return sum(above[worse][better] for better, worse in combinations(order, 2))


def _find_local_optimum(start: Sequence[str], above: Above) -> list[str]:
    """Move single documents of an order as long as that lowers its disagreements."""
    order = list(start)
    has_moved = True
    while has_moved:
        before = list(order)
        for document in before:
            order = _move_to_best_place(document, order, above)
        has_moved = order != before
    return order


def _move_to_best_place(document: str, order: Sequence[str], above: Above) -> list[str]:
    """Return the order with a document at its place of fewest disagreements.

    It stays where no place has fewer, and of several best places it takes the first.
    """
    place = order.index(document)
    others = [other for other in order if other != document]
    disagreements = _count_disagreements_by_place(document, others, above)

    best_place = disagreements.index(min(disagreements))
    if disagreements[best_place] == disagreements[place]:
        return list(order)
    return [*others[:best_place], document, *others[best_place:]]


def _count_disagreements_by_place(document: str, others: Sequence[str], above: Above) -> list[int]:
    """Count the disagreements of a document with the others, for each place among them."""
    # At the first place, each ranking that has another document above disagrees.
    count = sum(above[other][document] for other in others)
    counts = [count]
    for passed in others:
        count += above[document][passed] - above[passed][document]
        counts.append(count)
    return counts
