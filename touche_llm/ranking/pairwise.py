"""Pairwise comparison of all pairs: a document's score is its mean probability to win.

PRP-Allpair (Qin et al., arXiv 2306.17563), with the probability of the answer in place of the answer.
"""

from __future__ import annotations

from itertools import combinations, permutations
from statistics import fmean

from touche_llm.data.records import ScoredDocument
from touche_llm.data.settings import Section
from touche_llm.ranking.comparer import Comparer, MakeRandom, RequestBounds
from touche_llm.ranking.order import rank_by_value


class PairwiseSettings(Section):
    """Settings of the comparison.

    Attributes:
        both_orders: Whether to compare each pair in both orders, against position bias; else the better one is first.
    """

    both_orders: bool = True


def bound_requests(documents: int, settings: PairwiseSettings, _: MakeRandom) -> RequestBounds:
    """Return the bounds of the requests for so many documents, which are the number of pairs."""
    return RequestBounds.exactly({2: documents * (documents - 1) // (1 if settings.both_orders else 2)})


async def rerank(documents: list[str], comparer: Comparer, settings: PairwiseSettings) -> list[ScoredDocument]:
    """Rank the documents by their mean probability to win against the others.

    A pair counts for neither document if one of its orders has no answer; a document without any pair keeps its place.
    k documents take k(k - 1) requests, or half of that in one order. Requests that show the same document first are
    sent one after the other, for the server's prefix cache, before the orders of a pair are combined.
    """
    pairs = list(combinations(documents, 2))
    if settings.both_orders:
        await comparer.run_all(comparer.estimate_best, permutations(documents, 2))

    async def compare(pair: tuple[str, str]) -> dict[str, float] | None:
        return await comparer.estimate_best(pair, both_orders=settings.both_orders)

    wins: dict[str, list[float]] = {document: [] for document in documents}
    for answer in await comparer.run_all(compare, pairs):
        for document, share in (answer or {}).items():
            wins[document].append(share)
    return rank_by_value({document: fmean(shares) if shares else None for document, shares in wins.items()})
