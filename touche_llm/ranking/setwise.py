"""Setwise comparison in a heap: one question chooses the best of several documents.

Zhuang et al., arXiv 2310.09497, with the choice read from the probabilities of the labels.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from touche_llm.ranking.comparing import MOST_TO_CHOOSE_FROM, Comparer
from touche_llm.ranking.order import by_position
from touche_llm.records import Scored


class SetwiseSettings(BaseModel):
    """How the heap is built and used.

    Attributes:
        children: of a node; a question shows a node and its children.
        top: so many of the best are put in order; the others follow as they came.
        both_orders: ask in the reversed order too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    children: int = Field(3, ge=1, lt=MOST_TO_CHOOSE_FROM)
    top: int = Field(10, ge=1)
    both_orders: bool = False


async def rerank(documents: list[str], comparer: Comparer, settings: SetwiseSettings) -> list[Scored]:
    """The best `top` in order, by heapsort, then the others."""
    best = await heapsort(documents, comparer, settings)
    return by_position(best + [each for each in documents if each not in best])


async def heapsort(documents: list[str], comparer: Comparer, settings: SetwiseSettings) -> list[str]:
    """The best `top` documents, best first.

    Nodes of one level of the heap are put right together; taking the best out waits for its own answers alone. Where a
    question has no answer the node stays above its children, as the ranking before has it.
    """
    heap = list(documents)
    width = settings.children

    async def sift(node: int) -> None:
        while True:
            below = range(width * node + 1, min(width * node + width + 1, len(heap)))
            if not below:
                return
            shown = [heap[node], *(heap[child] for child in below)]
            winner = await comparer.winner(shown, both_orders=settings.both_orders)
            if winner is None or winner == heap[node]:
                return
            child = below[shown.index(winner) - 1]
            heap[node], heap[child] = heap[child], heap[node]
            node = child

    for level in reversed(_levels(len(heap), width)):
        await comparer.together(sift, level)
    best: list[str] = []
    while heap and len(best) < settings.top:
        best.append(heap[0])
        last = heap.pop()
        if heap:
            heap[0] = last
            if len(best) < settings.top:
                await sift(0)
    return best


def _levels(size: int, width: int) -> list[range]:
    """The nodes of each level of a heap, from the root down."""
    levels, first, count = [], 0, 1
    while first < size:
        levels.append(range(first, min(first + count, size)))
        first, count = first + count, count * width
    return levels
