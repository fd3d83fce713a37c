"""Pairwise comparison of neighbours, from last to first, in several passes of a bubble sort.

PRP-Sliding-K (Qin et al., arXiv 2306.17563): k passes put the best k documents in place.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from pydantic import Field

from touche_llm.data.records import ScoredDocument
from touche_llm.data.settings import Section
from touche_llm.ranking.comparer import Comparer, MakeRandom, RequestBounds
from touche_llm.ranking.order import score_positions


class SlidingSettings(Section):
    """Settings of the passes.

    Attributes:
        passes: Number of passes, and so of best documents that are put in place.
        both_orders: Whether to compare each pair in both orders.
    """

    passes: int = Field(10, ge=1)
    both_orders: bool = True


def bound_requests(documents: int, settings: SlidingSettings, _: MakeRandom) -> RequestBounds:
    """Return the bounds of the requests for so many documents.

    The first pass compares all neighbours. If no document moves, the others have nothing to compare; if all move, their
    pairs are new.
    """
    last, orders = documents - 1, 1 + settings.both_orders
    passes = range(min(settings.passes, last))
    return RequestBounds(Counter({2: last * orders}), 0, sum(last - number for number in passes) * orders)


async def rerank(documents: list[str], comparer: Comparer, settings: SlidingSettings) -> list[ScoredDocument]:
    """Rank the documents in several passes; a pair without an answer keeps its order.

    Each pass follows two places behind the one before, so several run concurrently. A pair that an earlier pass
    compared is not sent again.
    """
    order = list(documents)
    last = len(order) - 1
    passes = min(settings.passes, last)
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
                if await comparer.choose_best(pair, both_orders=settings.both_orders) == pair[1]:
                    order[place - 1], order[place] = order[place], order[place - 1]
                settled[number][place].set_result(None)
        finally:
            # If a pass fails, the passes behind it fail too, rather than wait forever.
            for future in settled[number]:
                future.cancel()

    await comparer.run_all(bubble, range(passes))
    return score_positions(order)
