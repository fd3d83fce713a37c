"""Central ranking of several rankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

# above[a][b]: number of rankings in which a is above b.
Above = Mapping[str, Mapping[str, int]]


def find_central_ranking(rankings: Sequence[Sequence[str]]) -> list[str]:
    """Find a ranking that disagrees with the given rankings of the same documents on few pairs.

    The best such ranking (Kemeny) is NP-hard to find. So several orders are improved by moves of
    single documents, and the best result is returned: the mean ranks (Borda) and each of the given
    rankings. As none of these is better, it has at most twice the fewest disagreements.
    """
    above = _count_above(rankings)
    starts = [_rank_by_mean_rank(rankings[0], above), *rankings]
    improved = [_find_local_optimum(start, above) for start in starts]
    return min(improved, key=lambda order: _count_disagreements(order, above))


def _rank_by_mean_rank(documents: Sequence[str], above: Above) -> list[str]:
    """Rank documents by their mean ranks, equal ones in the given order."""
    # The more often a document is above others, the better is its mean rank.
    return sorted(documents, key=lambda document: -sum(above[document].values()))


def _count_above(rankings: Sequence[Sequence[str]]) -> Above:
    """Count for each pair of documents how many rankings have the first above the second.

    Returns:
        Counts by first and second document.
    """
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
    """Move single documents of an order until no such move lowers its disagreements."""
    order = list(start)
    while True:
        improved = order
        for document in order:
            improved = _move_to_best_place(document, improved, above)
        if improved == order:
            return order
        order = improved


def _move_to_best_place(document: str, order: Sequence[str], above: Above) -> list[str]:
    """Return the order with a document at its place of fewest disagreements.

    It stays where no place has fewer, and of several best places it takes the first.
    """
    place = order.index(document)
    others = [other for other in order if other != document]
    disagreements = _count_disagreements_by_place(document, others, above)

    fewest = min(disagreements)
    if disagreements[place] == fewest:
        return list(order)
    best_place = disagreements.index(fewest)
    return [*others[:best_place], document, *others[best_place:]]


def _count_disagreements_by_place(document: str, others: Sequence[str], above: Above) -> list[int]:
    """Count the disagreements of rankings with an order, for each place of a document in it.

    Only the pairs of the document with another one are counted.

    Args:
        document: Document to place among the others.
        others: The other documents, in their order.
        above: For each two documents, how many rankings have the first above the second.

    Returns:
        Numbers for the places from above all others to below them.
    """
    # Above all others, each ranking that has one of them above the document disagrees.
    count = sum(above[other][document] for other in others)
    counts = [count]
    for other in others:
        # At the next place, the other one is above the document.
        agreeing = above[other][document]
        disagreeing = above[document][other]
        count += disagreeing - agreeing
        counts.append(count)
    return counts
