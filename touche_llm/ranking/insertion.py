"""Setwise insertion: the ranking so far is trusted, and only what beats the last of the best moves up among them.

After Podolak et al., arXiv 2504.10509.
"""

from __future__ import annotations

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import Comparer
from touche_llm.ranking.order import score_positions
from touche_llm.ranking.setwise import SetwiseSettings, heapsort


async def rerank(documents: list[str], comparer: Comparer, settings: SetwiseSettings) -> list[ScoredDocument]:
    """The best `top` in order, then the others.

    The first `top` documents are sorted with a heap. The others come in blocks of `children`: one question shows the
    last of the best, first, and a block. Where it is the best of them the block is done with; otherwise the best of the
    block takes its place among the best, found by halving, the last of the best drops out, and the rest of the block is
    asked about again. Where a question has no answer, the ranking before holds.
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
            best.insert(await _place(winner, best, comparer, settings), winner)
    return score_positions(best + [each for each in documents if each not in best])


async def _place(document: str, best: list[str], comparer: Comparer, settings: SetwiseSettings) -> int:
    """How many of the best stay above the document."""
    low, high = 0, len(best)
    while low < high:
        middle = low + (high - low) // 2
        if await comparer.choose_best([best[middle], document], both_orders=settings.both_orders) == document:
            high = middle
        else:
            low = middle + 1
    return low
