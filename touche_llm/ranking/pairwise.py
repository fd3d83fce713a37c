"""Pairwise comparison: of all pairs, or of neighbours in several passes of a bubble sort.

PRP-Allpair and PRP-Sliding-K (Qin et al., arXiv 2306.17563), with the probability of the answer in place of the answer.
"""

from __future__ import annotations

import asyncio
from itertools import combinations, permutations
from statistics import fmean
from typing import ClassVar

from pydantic import Field

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import Comparer, ComparisonKind, RankingMethod
from touche_llm.ranking.order import rank_by_value, score_positions


class Pairwise(RankingMethod):
    """Comparison of all pairs: a document's score is its mean probability to win.

    Attributes:
        both_orders: Whether to compare each pair in both orders, against position bias; else the better one is first.
    """

    kind: ClassVar[ComparisonKind] = "best"
    # All pairs of many more would not fit in memory.
    max_depth: ClassVar[int] = 200

    both_orders: bool = True

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the documents by their mean probability to win against the others.

        A pair counts for neither document if one of its orders has no answer; a document without any pair keeps its
        place. k documents take k(k - 1) requests, or half of that in one order. Requests that show the same document
        first are sent one after the other, for the server's prefix cache, before the orders of a pair are combined.
        """
        if self.both_orders:
            await comparer.run_all(comparer.estimate_best, permutations(documents, 2))

        async def compare(pair: tuple[str, str]) -> dict[str, float] | None:
            return await comparer.estimate_best(pair, both_orders=self.both_orders)

        wins: dict[str, list[float]] = {document: [] for document in documents}
        for answer in await comparer.run_all(compare, list(combinations(documents, 2))):
            for document, share in (answer or {}).items():
                wins[document].append(share)
        return rank_by_value({document: fmean(shares) if shares else None for document, shares in wins.items()})


class Sliding(RankingMethod):
    """Comparison of neighbours, from last to first; k passes put the best k documents in place.

    Attributes:
        passes: Number of passes, and so of best documents that are put in place.
        both_orders: Whether to compare each pair in both orders.
    """

    kind: ClassVar[ComparisonKind] = "best"

    passes: int = Field(10, ge=1)
    both_orders: bool = True

    def bound_comparisons(self, documents: int) -> int:
        """Return the number of comparisons if each pass has new neighbours."""
        last = documents - 1
        return sum(last - number for number in range(min(self.passes, last))) * (1 + self.both_orders)

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the documents in several passes; a pair without an answer keeps its order.

        Each pass follows two places behind the one before, so several run concurrently. A pair that an earlier pass
        compared is not sent again.
        """
        order = list(documents)
        last = len(order) - 1
        passes = min(self.passes, last)
        # settled[p][place]: pass p has compared the documents at place - 1 and place.
        loop = asyncio.get_running_loop()
        settled: list[list[asyncio.Future[None]]] = [[loop.create_future() for _ in order] for _ in range(passes)]

        async def bubble(number: int) -> None:
            try:
                for place in range(last, number, -1):
                    if number:
                        # The document above is the one that the pass before left there.
                        await settled[number - 1][place - 1]
                    pair = (order[place - 1], order[place])
                    if await comparer.choose_best(pair, both_orders=self.both_orders) == pair[1]:
                        order[place - 1], order[place] = order[place], order[place - 1]
                    settled[number][place].set_result(None)
            finally:
                # If a pass fails, the passes behind it fail too, rather than wait forever.
                for future in settled[number]:
                    future.cancel()

        await comparer.run_all(bubble, range(passes))
        return score_positions(order)
