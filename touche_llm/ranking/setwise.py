"""Setwise reranking."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import MAX_CHOICES, Comparer, ComparisonKind, RankingMethod
from touche_llm.ranking.scores import score_positions


class Setwise(RankingMethod):
    """Heapsort of the best documents: one question chooses the best of a node and its children.

    After Zhuang et al., arXiv 2310.09497, with the choice read from the probabilities of the
    labels.

    Attributes:
        children: Number of children of a node; a question shows a node and its children.
        top: Number of best documents to sort; the others follow in their given order.
        both_orders: Whether to compare in the reversed order too.
    """

    kind: ClassVar[ComparisonKind] = "best"

    children: int = Field(3, ge=1, lt=MAX_CHOICES)
    top: int = Field(10, ge=1)
    both_orders: bool = False

    @property
    def max_shown(self) -> int:
        """A node with all of its children, or the last of the best with a block."""
        return self.children + 1

    def bound_comparisons(self, documents: int) -> int:
        """Return the number of comparisons if each sift ends at a leaf of the leftmost path, one of the longest.

        With one child per node, several of these are equal, and the maximum is a few too high.
        """
        sifts = [(node, documents) for node in range(documents)]
        sifts += [(0, size) for size in range(max(2, documents - self.top + 1), documents)]
        return sum(_count_levels(node, size, self.children) for node, size in sifts) * (
            1 + self.both_orders
        )

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the best `top` documents by heapsort, followed by the others in their order."""
        best = await self.heapsort(documents, comparer)
        return score_positions(best + [document for document in documents if document not in best])

    async def heapsort(self, documents: list[str], comparer: Comparer) -> list[str]:
        """Return the best `top` documents, best first.

        Subtrees are built concurrently; a node waits only for the nodes below it. If a question has
        no answer, the document with the best given rank wins.
        """
        heap = list(documents)
        before = {document: place for place, document in enumerate(documents)}
        width = self.children

        def children(node: int) -> range:
            return range(width * node + 1, min(width * node + width + 1, len(heap)))

        async def build(node: int) -> None:
            if children(node):
                await comparer.run_all(build, children(node))
                await sift(node)

        async def sift(node: int) -> None:
            while below := children(node):
                shown = [heap[node], *(heap[child] for child in below)]
                winner = await comparer.choose_best(shown, both_orders=self.both_orders)
                if winner is None:
                    winner = min(shown, key=before.__getitem__)
                if winner == heap[node]:
                    return
                child = below[shown.index(winner) - 1]
                heap[node], heap[child] = heap[child], heap[node]
                node = child

        await build(0)
        best: list[str] = []
        while heap and len(best) < self.top:
            best.append(heap[0])
            last = heap.pop()
            if heap:
                heap[0] = last
                if len(best) < self.top:
                    await sift(0)
        return best


def _count_levels(node: int, size: int, width: int) -> int:
    """Return the number of nodes with children on the leftmost path down from a node."""
    levels = 0
    while (node := width * node + 1) < size:
        levels += 1
    return levels
