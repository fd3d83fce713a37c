"""Pairwise reranking by sliding windows, as bubble sort."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
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

    def bound_comparisons(self, document_count: int) -> int:
        """Return the maximum number of comparisons, for the estimate of a dry run.

        It is reached if no pair of neighbours meets in two passes.
        """
        # Each pass puts one document in place, which the next one no longer compares.
        neighbours = document_count - 1
        passes = min(self.passes, neighbours)
        comparisons = sum(neighbours - number for number in range(passes))
        if self.both_orders:
            comparisons *= 2
        return comparisons

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the documents in several passes; a pair without an answer keeps its order.

        The passes run concurrently, each two places behind the previous one: see
        `_BubbleSort.run_pass`. A pair that an earlier pass compared is not sent again.
        """
        pass_count = min(self.passes, len(documents) - 1)
        passes = _make_passes(pass_count, place_count=len(documents))
        sort = _BubbleSort(list(documents), comparer, self.both_orders)
        await comparer.run_all(sort.run_pass, passes)
        return score_positions(sort.order)


class _Pass:
    """One pass of a bubble sort, from the last place up, and how far it is.

    Attributes:
        number: Number of the pass, from 0.
    """

    def __init__(self, number: int, place_count: int, previous: _Pass | None) -> None:
        """Prepare a pass, which can wait for places of the previous one.

        Args:
            number: Number of the pass, from 0.
            place_count: Number of documents.
            previous: Previous pass; None for the first.
        """
        self.number = number
        self._previous = previous

        # The future of a place is done once the pass has compared the documents at the place and
        # just above it.
        loop = asyncio.get_running_loop()
        self._compared: list[asyncio.Future[None]] = [
            loop.create_future() for _ in range(place_count)
        ]

    async def wait_for_previous(self, place: int) -> None:
        """Wait until the previous pass, if any, has compared the documents at and above a place.

        Raises:
            CancelledError: The previous pass failed.
        """
        if self._previous is not None:
            await self._previous._compared[place]

    def mark_compared(self, place: int) -> None:
        """Let the next pass compare the documents below a place."""
        self._compared[place].set_result(None)

    def end(self) -> None:
        """Cancel the next pass if it still waits, which is so if this one failed."""
        for comparison in self._compared:
            comparison.cancel()


def _make_passes(count: int, place_count: int) -> list[_Pass]:
    """Return passes over so many places, each of which follows behind the one before."""
    passes: list[_Pass] = []
    previous: _Pass | None = None
    for number in range(count):
        previous = _Pass(number, place_count, previous)
        passes.append(previous)
    return passes


@dataclass(frozen=True, slots=True)
class _BubbleSort:
    """A sort of documents by several concurrent passes.

    Attributes:
        order: Documents in their present order.
        comparer: Comparisons by the model.
        both_orders: Whether to compare each pair in both orders.
    """

    order: list[str]
    comparer: Comparer
    both_orders: bool

    async def run_pass(self, one_pass: _Pass) -> None:
        """Compare neighbours from the last place upwards, so that the best document rises.

        Pass n stops at place n, since each of the n passes before it has put one document in its
        final place at the top. Passes run concurrently: a pass compares two places only after the
        previous one has finished with both.
        """
        last_place = len(self.order) - 1
        try:
            for place in range(last_place, one_pass.number, -1):
                # The previous pass uses `place - 1` for the last time to compare it with the place
                # above it.
                await one_pass.wait_for_previous(place - 1)
                await self._compare_with_above(place)
                one_pass.mark_compared(place)
        finally:
            one_pass.end()

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
