"""Reranking by insertion."""

from __future__ import annotations

from collections.abc import Sequence

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import Comparer
from touche_llm.ranking.registry import RankingStep, register
from touche_llm.ranking.scores import score_positions
from touche_llm.ranking.setwise import Setwise


class Insertion(Setwise):
    """Few questions: the given ranking is trusted, and only documents that beat the last of the best move up.

    Setwise insertion, Podolak et al., arXiv 2504.10509.
    """

    def bound_comparisons(self, documents: int) -> int:
        """Return the number of comparisons if each document below the best ones is inserted by binary search."""
        others = max(0, documents - self.top)
        # One with the last of the best, and those of the search among the best above it.
        per_document = 1 + (self.top - 1).bit_length()
        insertions = others * per_document
        if self.both_orders:
            insertions *= 2
        return super().bound_comparisons(min(documents, self.top)) + insertions

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the best `top` documents, followed by the others in their order.

        The first `top` documents are sorted with a heap. The others come in blocks of `children`.
        """
        best = await self.heapsort(documents[: self.top], comparer)
        for start in range(self.top, len(documents), self.children):
            block = documents[start : start + self.children]
            best = await self._insert_block(block, best, comparer)

        others = [document for document in documents if document not in best]
        return score_positions(best + others)

    async def _insert_block(
        self, block: Sequence[str], best: Sequence[str], comparer: Comparer
    ) -> list[str]:
        """Return the best documents after a block of others was compared with them.

        One question compares the last of the best, shown first, with the block. If it wins, or the
        question has no answer, the block is finished. Otherwise the winner is inserted among the
        best by binary search, the last of the best drops out, and the rest of the block is
        compared again.
        """
        best = list(best)
        block = list(block)
        while block:
            last_of_best = best[-1]
            shown = [last_of_best, *block]
            winner = await comparer.choose_best(shown, both_orders=self.both_orders)
            if winner is None or winner == last_of_best:
                break
            block.remove(winner)
            best.pop()
            place = await self._find_place(winner, best, comparer)
            best.insert(place, winner)
        return best

    async def _find_place(self, document: str, best: Sequence[str], comparer: Comparer) -> int:
        """Return how many of the best stay above the document.

        If a question has no answer, the document stays below the one that it is compared with.
        """
        low = 0
        high = len(best)
        while low < high:
            middle = (low + high) // 2
            pair = [best[middle], document]
            winner = await comparer.choose_best(pair, both_orders=self.both_orders)
            if winner == document:
                high = middle
            else:
                low = middle + 1
        return low


register(
    RankingStep(
        name="insertion",
        method=Insertion,
        summary=(
            "the order so far is trusted: only a document that beats the tenth best "
            "moves up among the best ten"
        ),
        requests="depends on the answers",
        reference="after arXiv 2504.10509",
        order=40,
    )
)
