"""Pairwise comparison of all pairs: a document's score is its mean probability to win.

PRP-Allpair (Qin et al., arXiv 2306.17563), with the probability of the answer in place of the answer.
"""

from __future__ import annotations

from itertools import combinations, permutations
from statistics import fmean

from pydantic import BaseModel, ConfigDict

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import Comparer
from touche_llm.ranking.order import rank_by_value


class PairwiseSettings(BaseModel):
    """`both_orders`: each pair is asked in both orders, since models prefer a place; else the better one first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    both_orders: bool = True


async def rerank(documents: list[str], comparer: Comparer, settings: PairwiseSettings) -> list[ScoredDocument]:
    """The documents by their mean probability to win against each other one.

    A pair without an answer, in one of the orders asked, counts for neither; a document without any pair keeps its
    place. k documents take k(k - 1) requests, or half of that in one order. Those that show the same document first
    are sent one after the other, for the server's prefix cache, before they are put together.
    """
    pairs = list(combinations(documents, 2))
    if settings.both_orders:
        await comparer.run_all(comparer.estimate_best, permutations(documents, 2))

    async def compare(pair: tuple[str, str]) -> dict[str, float] | None:
        return await comparer.estimate_best(pair, both_orders=settings.both_orders)

    wins: dict[str, list[float]] = {each: [] for each in documents}
    for answer in await comparer.run_all(compare, pairs):
        for each, share in (answer or {}).items():
            wins[each].append(share)
    return rank_by_value({each: fmean(shares) if shares else None for each, shares in wins.items()})
