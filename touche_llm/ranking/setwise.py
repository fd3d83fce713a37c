"""Setwise reranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import MAX_CHOICES, Comparer, ComparisonKind
from touche_llm.ranking.registry import ComparingMethod, RankingStep, register
from touche_llm.ranking.scores import score_positions


class Setwise(ComparingMethod):
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
        total = 0
        for node in range(documents):
            total += _count_levels(node, documents, self.children)
        # The best document leaves the heap, which is sifted again until `top` documents have left.
        smallest_heap = max(2, documents - self.top + 1)
        for size in range(smallest_heap, documents):
            total += _count_levels(0, size, self.children)
        return 2 * total if self.both_orders else total

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the best `top` documents by heapsort, followed by the others in their order."""
        best = await self.heapsort(documents, comparer)
        others = [document for document in documents if document not in best]
        return score_positions(best + others)

    async def heapsort(self, documents: list[str], comparer: Comparer) -> list[str]:
        """Return the best `top` documents, best first.

        Subtrees are built concurrently; a node waits only for the nodes below it. If a question has
        no answer, the document with the best given rank wins.
        """
        heap = _Heap(
            documents=documents,
            children=self.children,
            both_orders=self.both_orders,
            comparer=comparer,
        )
        await heap.build(0)

        best = [heap.root]
        while len(heap) > 1 and len(best) < self.top:
            await heap.remove_root()
            best.append(heap.root)
        return best


class _Heap:
    """A heap of documents, each of which the model prefers to its children.

    Attributes:
        nodes: Documents; the children of a node are at the places of `_list_children`.
        given_ranks: Rank of each document before the sort, from 0.
        width: Maximum number of children of a node.
        both_orders: Whether to compare in the reversed order too.
        comparer: Comparisons by the model.
    """

    def __init__(
        self,
        *,
        documents: Sequence[str],
        children: int,
        both_orders: bool,
        comparer: Comparer,
    ) -> None:
        """Take the documents in their given order, which `build` makes a heap."""
        self.nodes = list(documents)
        self.given_ranks = {document: rank for rank, document in enumerate(documents)}
        self.width = children
        self.both_orders = both_orders
        self.comparer = comparer

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def root(self) -> str:
        """The best document."""
        return self.nodes[0]

    async def build(self, node: int) -> None:
        """Make the subtree of a node a heap."""
        children = self._list_children(node)
        if children:
            await self.comparer.run_all(self.build, children)
            await self._sift(node)

    async def remove_root(self) -> None:
        """Remove the best document from a heap of two or more."""
        self.nodes[0] = self.nodes.pop()
        await self._sift(0)

    def _list_children(self, node: int) -> range:
        """Return the places of the children of a node."""
        first = self.width * node + 1
        return range(first, min(first + self.width, len(self.nodes)))

    async def _sift(self, node: int) -> None:
        """Move the document of a node down, until it is better than its children."""
        children = self._list_children(node)
        while children:
            best = await self._find_best([node, *children])
            if best == node:
                return
            self.nodes[node], self.nodes[best] = self.nodes[best], self.nodes[node]
            node = best
            children = self._list_children(node)

    async def _find_best(self, nodes: Sequence[int]) -> int:
        """Return the node with the best document of several, as the model answers."""
        shown = [self.nodes[node] for node in nodes]
        winner = await self.comparer.choose_best(shown, both_orders=self.both_orders)
        if winner is None:
            winner = min(shown, key=self.given_ranks.__getitem__)
        return nodes[shown.index(winner)]


def _count_levels(node: int, size: int, width: int) -> int:
    """Return the number of nodes with children on the leftmost path down from a node."""
    levels = 0
    first_child = width * node + 1
    while first_child < size:
        levels += 1
        first_child = width * first_child + 1
    return levels


register(
    RankingStep(
        name="setwise",
        method=Setwise,
        summary="a heap whose questions choose among four; the best 10 in order",
        requests="depends on the answers",
        reference="arXiv 2310.09497",
        order=30,
    )
)
