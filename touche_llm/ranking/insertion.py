"""Setwise insertion: the given ranking is trusted, and only documents that beat the last of the best move up.

After Podolak et al., arXiv 2504.10509.
"""

from __future__ import annotations

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import Comparer
from touche_llm.ranking.order import score_positions
from touche_llm.ranking.setwise import SetwiseSettings, heapsort


async def rerank(documents: list[str], comparer: Comparer, settings: SetwiseSettings) -> list[ScoredDocument]:
    """Rank the best `top` documents, followed by the others in their order.

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
