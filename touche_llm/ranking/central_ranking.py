"""Central ranking of several rankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations


def find_central_ranking(rankings: Sequence[Sequence[str]]) -> list[str]:
    """Find a ranking of low total Kendall distance to the given rankings of the same documents.

    Starting from the mean ranks (Borda) and from each of the rankings, single documents are moved
    as long as that lowers the number of pairs on which the rankings disagree with the result. The
    best of these local optima of Kemeny's criterion is returned, since the global optimum is
    NP-hard to find. None of the given rankings has a lower total distance, so the distance is at
    most twice the minimum.
    """
    first = rankings[0]
    # above[a][b]: number of rankings in which a is above b.
    above = {document: dict.fromkeys(first, 0) for document in first}
    for ranking in rankings:
        for better, worse in combinations(ranking, 2):
            above[better][worse] += 1
    borda = sorted(first, key=lambda document: -sum(above[document].values()))
    optima = [_find_local_optimum(start, above) for start in (borda, *rankings)]
    return min(
        optima,
        key=lambda order: sum(above[worse][better] for better, worse in combinations(order, 2)),
    )


def _find_local_optimum(start: Sequence[str], above: Mapping[str, Mapping[str, int]]) -> list[str]:
    order = list(start)
    has_moved = True
    while has_moved:
        has_moved = False
        for document in list(order):
            at = order.index(document)
            rest = order[:at] + order[at + 1 :]
            # Disagreements of the document with the others, for each place that it could take.
            costs = [sum(above[other][document] for other in rest)]
            for other in rest:
                costs.append(costs[-1] - above[other][document] + above[document][other])
            place = min(range(len(costs)), key=costs.__getitem__)
            if costs[place] < costs[at]:
                rest.insert(place, document)
                order, has_moved = rest, True
    return order
