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
    """Heapsort of the best documents: one comparison chooses the best of a node and its children.

    After Zhuang et al., arXiv 2310.09497, with the choice read from the probabilities of the
    labels.

    Attributes:
        children: Number of children of a node; a comparison shows a node and its children.
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

    def bound_comparisons(self, document_count: int) -> int:
        """Return the maximum number of comparisons, for the estimate of a dry run.

        Heapsort needs most if each document that it sifts sinks to the bottom of the heap.
        """
        # With one child per node, some of the counted comparisons are the same, so that the bound
        # is a few too high.
        comparisons = 0
        # To build the heap, the document of each node is sifted once.
        for node in range(document_count):
            comparisons += _bound_sift(node, document_count, self.children)

        # Whenever the best document is removed, the last one takes its place and is sifted.
        removal_count = min(self.top, document_count) - 1
        for removal in range(1, removal_count + 1):
            remaining_count = document_count - removal
            comparisons += _bound_sift(0, remaining_count, self.children)

        if self.both_orders:
            comparisons *= 2
        return comparisons

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the best `top` documents by heapsort, followed by the others in their order."""
        best = await self.heapsort(documents, comparer)
        others = [document for document in documents if document not in best]
        return score_positions(best + others)

    async def heapsort(self, documents: list[str], comparer: Comparer) -> list[str]:
        """Return the best `top` documents, best first.

        If a comparison has no answer, the document with the best given rank wins.
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
        documents: Documents by node, which is the place in this list: the root is at 0, and the
            children of a node at the places of `_list_children`.
        given_ranks: Rank of each document before the sort, from 0.
        children: Maximum number of children of a node.
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
        self.documents = list(documents)
        self.given_ranks = {document: rank for rank, document in enumerate(documents)}
        self.children = children
        self.both_orders = both_orders
        self.comparer = comparer

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def root(self) -> str:
        """The best document."""
        return self.documents[0]

    async def build(self, node: int) -> None:
        """Make the subtree of a node a heap, of which independent parts are built concurrently."""
        children = self._list_children(node)
        if children:
            await self.comparer.run_all(self.build, children)
            await self._sift(node)

    async def remove_root(self) -> None:
        """Remove the best document from a heap of two or more."""
        self.documents[0] = self.documents.pop()
        await self._sift(0)

    def _list_children(self, node: int) -> range:
        """Return the places of the children of a node."""
        first = self.children * node + 1
        return range(first, min(first + self.children, len(self.documents)))

    async def _sift(self, node: int) -> None:
        """Move the document of a node down the heap, until it is better than its children."""
        children = self._list_children(node)
        while children:
            best = await self._find_best([node, *children])
            if best == node:
                return

            self.documents[node], self.documents[best] = self.documents[best], self.documents[node]
            node = best
            children = self._list_children(node)

    async def _find_best(self, nodes: Sequence[int]) -> int:
        """Return the node whose document the model chooses as the best.

        Without an answer, it is the one whose document had the best rank before the sort.
        """
        node_by_document = {self.documents[node]: node for node in nodes}
        shown = list(node_by_document)
        winner = await self.comparer.choose_best(shown, both_orders=self.both_orders)
        if winner is None:
            winner = min(shown, key=self.given_ranks.__getitem__)
        return node_by_document[winner]


def _bound_sift(node: int, heap_size: int, children: int) -> int:
    """Return the number of comparisons if the document of a node sinks to the bottom of the heap.

    It sinks along the first children, since no other way down is longer.
    """
    comparisons = 0
    first_child = children * node + 1
    while first_child < heap_size:
        comparisons += 1
        first_child = children * first_child + 1
    return comparisons


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
