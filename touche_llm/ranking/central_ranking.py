"""Central ranking of several rankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

# above[a][b]: number of rankings in which a is above b.
Above = Mapping[str, Mapping[str, int]]


def find_central_ranking(rankings: Sequence[Sequence[str]]) -> list[str]:
    """Find a ranking that disagrees with the given rankings of the same documents on few pairs.

    The ranking with the fewest disagreements (Kemeny) is NP-hard to find. So the search starts from
    the order by mean rank (Borda) and from each given ranking, and moves single documents of each
    start as long as that lowers its disagreements. The best result is returned. It is at least as
    good as the best given ranking, which has at most twice the fewest disagreements.
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
    """Return the order with a document moved to its place of fewest disagreements.

    The document stays if no other place has fewer; of several best places it takes the first.
    """
    place = order.index(document)
    others = [other for other in order if other != document]
    # At place i the document is just above others[i].
    disagreements = _count_disagreements_by_place(document, others, above)

    fewest = min(disagreements)
    if disagreements[place] == fewest:
        return list(order)
    best_place = disagreements.index(fewest)
    return [*others[:best_place], document, *others[best_place:]]


def _count_disagreements_by_place(document: str, others: Sequence[str], above: Above) -> list[int]:
    """Count how often rankings disagree with each place that a document can have among others.

    With two others there are three places: above both, between them, and below both. A ranking
    disagrees once for each other document that it has on the other side of the document.

    Args:
        document: Document to place among the others.
        others: The other documents, in their order.
        above: For each two documents, how many rankings have the first above the second.

    Returns:
        Number of disagreements for each place, from above all others to below all others.
    """
    # If the document is above all others, rankings with another one above it disagree.
    count = sum(above[other][document] for other in others)
    counts = [count]
    for other in others:
        # One place further down, the document is below this other one.
        now_agreeing = above[other][document]
        now_disagreeing = above[document][other]
        count += now_disagreeing - now_agreeing
        counts.append(count)
    return counts
