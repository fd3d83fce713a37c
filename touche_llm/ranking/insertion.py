"""Reranking by insertion."""

from __future__ import annotations

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import Comparer
from touche_llm.ranking.scores import score_positions
from touche_llm.ranking.setwise import Setwise


class Insertion(Setwise):
    """Few questions: the given ranking is trusted, and only documents that beat the last of the best move up.

    Setwise insertion, Podolak et al., arXiv 2504.10509.
    """

    def bound_comparisons(self, documents: int) -> int:
        """Return the number of comparisons if each document below the best ones is inserted by binary search."""
        rest = max(0, documents - self.top)
        insertions = rest * (1 + (self.top - 1).bit_length()) * (1 + self.both_orders)
        return super().bound_comparisons(min(documents, self.top)) + insertions

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the best `top` documents, followed by the others in their order.

        The first `top` documents are sorted with a heap. The others come in blocks of `children`:
        one question compares the last of the best, shown first, with a block. If it wins, the block
        is finished. Otherwise the winner is inserted among the best by binary search, the last of
        the best drops out, and the rest of the block is compared again. If a question has no
        answer, the order stays.
        """
        best = await self.heapsort(documents[: self.top], comparer)
        for start in range(self.top, len(documents), self.children):
            block = documents[start : start + self.children]
            while block:
                winner = await comparer.choose_best(
                    [best[-1], *block], both_orders=self.both_orders
                )
                if winner is None or winner == best[-1]:
                    break
                block.remove(winner)
                best.pop()
                best.insert(await self._find_place(winner, best, comparer), winner)
        return score_positions(best + [document for document in documents if document not in best])

    async def _find_place(self, document: str, best: list[str], comparer: Comparer) -> int:
        """Return how many of the best stay above the document."""
        low, high = 0, len(best)
        while low < high:
            middle = low + (high - low) // 2
            if (
                await comparer.choose_best([best[middle], document], both_orders=self.both_orders)
                == document
            ):
                high = middle
            else:
                low = middle + 1
        return low
