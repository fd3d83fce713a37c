"""Pairwise reranking by sliding windows, as bubble sort."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import Comparer, ComparisonKind
from touche_llm.ranking.registry import ComparingMethod, RankingStep, register
from touche_llm.ranking.scores import score_positions


class Sliding(ComparingMethod):
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
        pairs = documents - 1
        passes = min(self.passes, pairs)
        total = sum(pairs - number for number in range(passes))
        return 2 * total if self.both_orders else total

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the documents in several passes; a pair without an answer keeps its order.

        Each pass follows two places behind the one before, so several run concurrently. A pair that
        an earlier pass compared is not sent again.
        """
        sort = _BubbleSort(documents, self, comparer)
        await comparer.run_all(sort.run_pass, range(len(sort.settled)))
        return score_positions(sort.order)


class _BubbleSort:
    """Documents in the order of several concurrent passes.

    Attributes:
        order: Documents in their present order.
        settled: For each pass and place, a future that is done once the pass has compared the
            documents at the place and above it.
    """

    def __init__(self, documents: Sequence[str], settings: Sliding, comparer: Comparer) -> None:
        """Prepare the passes over the documents, in the running event loop."""
        self.order = list(documents)
        self.comparer = comparer
        self.both_orders = settings.both_orders

        loop = asyncio.get_running_loop()
        self.settled: list[list[asyncio.Future[None]]] = []
        for _ in range(min(settings.passes, len(documents) - 1)):
            self.settled.append([loop.create_future() for _ in documents])

    async def run_pass(self, number: int) -> None:
        """Compare neighbours from the last ones up to those that earlier passes put in place.

        Args:
            number: Number of the pass, from 0.
        """
        last = len(self.order) - 1
        try:
            for place in range(last, number, -1):
                if number > 0:
                    # The document above is the one that the pass before leaves there.
                    await self.settled[number - 1][place - 1]
                await self._compare_with_above(place)
                self.settled[number][place].set_result(None)
        finally:
            # If a pass fails, the passes behind it fail too, rather than wait forever.
            for future in self.settled[number]:
                future.cancel()

    async def _compare_with_above(self, place: int) -> None:
        """Exchange the document at a place and the one above it if the model prefers the lower one."""
        upper = self.order[place - 1]
        lower = self.order[place]
        winner = await self.comparer.choose_best([upper, lower], both_orders=self.both_orders)
        if winner == lower:
            self.order[place - 1] = lower
            self.order[place] = upper


register(
    RankingStep(
        name="sliding",
        method=Sliding,
        summary="pairs of neighbours from the last to the first, 10 passes",
        requests="at most twice 10 N",
        reference="PRP, arXiv 2306.17563",
        order=20,
    )
)
