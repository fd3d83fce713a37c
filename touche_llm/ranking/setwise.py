"""Setwise reranking with a heap: one question chooses the best of several documents.

After Zhuang et al., arXiv 2310.09497, with the choice read from the probabilities of the labels.
"""

from __future__ import annotations

from pydantic import Field

from touche_llm.data.records import ScoredDocument
from touche_llm.data.settings import Section
from touche_llm.ranking.comparer import MAX_CHOICES, Comparer
from touche_llm.ranking.order import score_positions


class SetwiseSettings(Section):
    """Settings of the heap.

    Attributes:
        children: Number of children of a node; a question shows a node and its children.
        top: Number of best documents to sort; the others follow in their given order.
        both_orders: Whether to compare in the reversed order too.
    """

    children: int = Field(3, ge=1, lt=MAX_CHOICES)
    top: int = Field(10, ge=1)
    both_orders: bool = False


async def rerank(documents: list[str], comparer: Comparer, settings: SetwiseSettings) -> list[ScoredDocument]:
    """Rank the best `top` documents by heapsort, followed by the others in their order."""
    best = await heapsort(documents, comparer, settings)
    return score_positions(best + [document for document in documents if document not in best])


async def heapsort(documents: list[str], comparer: Comparer, settings: SetwiseSettings) -> list[str]:
    """Return the best `top` documents, best first.

    Subtrees are built concurrently; a node waits only for the nodes below it. If a question has no answer, the
    document with the best given rank wins.
    """
    heap = list(documents)
    before = {document: place for place, document in enumerate(documents)}
    width = settings.children

    def children(node: int) -> range:
        return range(width * node + 1, min(width * node + width + 1, len(heap)))

    async def build(node: int) -> None:
        if children(node):
            await comparer.run_all(build, children(node))
            await sift(node)

    async def sift(node: int) -> None:
        while below := children(node):
            shown = [heap[node], *(heap[child] for child in below)]
            winner = await comparer.choose_best(shown, both_orders=settings.both_orders)
            if winner is None:
                winner = min(shown, key=before.__getitem__)
            if winner == heap[node]:
                return
            child = below[shown.index(winner) - 1]
            heap[node], heap[child] = heap[child], heap[node]
            node = child

    await build(0)
    best: list[str] = []
    while heap and len(best) < settings.top:
        best.append(heap[0])
        last = heap.pop()
        if heap:
            heap[0] = last
            if len(best) < settings.top:
                await sift(0)
    return best


async def rerank_by_insertion(
    documents: list[str], comparer: Comparer, settings: SetwiseSettings
) -> list[ScoredDocument]:
    """Rank the best `top` documents, followed by the others in their order, with few questions.

    The given ranking is trusted, and only documents that beat the last of the best move up (setwise insertion, Podolak
    et al., arXiv 2504.10509).

    The first `top` documents are sorted with a heap. The others come in blocks of `children`: one question compares
    the last of the best, shown first, with a block. If it wins, the block is finished. Otherwise the winner is inserted
    among the best by binary search, the last of the best drops out, and the rest of the block is compared again. If a
    question has no answer, the order stays.
    """
    top = documents[: settings.top]
    best = await heapsort(top, comparer, settings)
    for start in range(settings.top, len(documents), settings.children):
        block = documents[start : start + settings.children]
        while block:
            winner = await comparer.choose_best([best[-1], *block], both_orders=settings.both_orders)
            if winner is None or winner == best[-1]:
                break
            block.remove(winner)
            best.pop()
            best.insert(await _find_place(winner, best, comparer, settings), winner)
    return score_positions(best + [document for document in documents if document not in best])


async def _find_place(document: str, best: list[str], comparer: Comparer, settings: SetwiseSettings) -> int:
    """Return how many of the best stay above the document."""
    low, high = 0, len(best)
    while low < high:
        middle = low + (high - low) // 2
        if await comparer.choose_best([best[middle], document], both_orders=settings.both_orders) == document:
            high = middle
        else:
            low = middle + 1
    return low
