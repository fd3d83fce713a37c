"""Pairwise reranking by sliding windows, as bubble sort."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from pydantic import Field

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import Comparer, ComparisonKind, RankingMethod
from touche_llm.ranking.scores import score_positions


class Sliding(RankingMethod):
    """Comparison of neighbours, from last to first; k passes put the best k documents in place.

    PRP-Sliding-K (Qin et al., arXiv 2306.17563), a bubble sort.

    Attributes:
        passes: Number of passes, and so of best documents that are put in place.
        both_orders: Whether to compare each pair in both orders.
    """

    kind: ClassVar[ComparisonKind] = "best"

    passes: int = Field(10, ge=1)
    both_orders: bool = True

    @property
    def max_shown(self) -> int:
        """Both documents of a pair."""
        return 2

    def bound_comparisons(self, documents: int) -> int:
        """Return the number of comparisons if each pass has new neighbours."""
        last = documents - 1
        return sum(last - number for number in range(min(self.passes, last))) * (
            1 + self.both_orders
        )

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the documents in several passes; a pair without an answer keeps its order.

        Each pass follows two places behind the one before, so several run concurrently. A pair that
        an earlier pass compared is not sent again.
        """
        order = list(documents)
        last = len(order) - 1
        passes = min(self.passes, last)
        # settled[p][place]: pass p has compared the documents at place - 1 and place.
        loop = asyncio.get_running_loop()
        settled: list[list[asyncio.Future[None]]] = [
            [loop.create_future() for _ in order] for _ in range(passes)
        ]

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
