"""Reranking by insertion."""

from __future__ import annotations

from collections.abc import Sequence

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import Comparer
from touche_llm.ranking.registry import RankingStep, register
from touche_llm.ranking.scores import score_positions
from touche_llm.ranking.setwise import Setwise


class Insertion(Setwise):
    """Few comparisons: the given ranking is trusted, and only documents that beat the last of the best move up.

    Setwise insertion, Podolak et al., arXiv 2504.10509.
    """

    def bound_comparisons(self, document_count: int) -> int:
        """Return the maximum number of comparisons, for the estimate of a dry run.

        It is reached if each document below the best ones is inserted among them.
        """
        # The first documents are sorted with a heap. This bound counts both orders if needed.
        sorted_count = min(document_count, self.top)
        sort_comparisons = super().bound_comparisons(sorted_count)

        # Each other document is compared with the last of the best, and if it wins, inserted among
        # the best above. A binary search in n documents takes at most n.bit_length() comparisons.
        inserted_count = document_count - sorted_count
        search_comparisons = (self.top - 1).bit_length()
        insertion_comparisons = inserted_count * (1 + search_comparisons)
        if self.both_orders:
            insertion_comparisons *= 2
        return sort_comparisons + insertion_comparisons

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
        """Return the best documents after those of a block had the chance to become one of them.

        One comparison chooses among the last of the best and the block. While a document of the
        block wins, it is inserted among the best, the last of them drops out, and the rest of the
        block is compared again. A comparison without an answer ends this.
        """
        best = list(best)
        waiting = list(block)
        while waiting:
            last_of_best = best[-1]
            shown = [last_of_best, *waiting]
            winner = await comparer.choose_best(shown, both_orders=self.both_orders)
            if winner is None or winner == last_of_best:
                break

            # The winner takes a place of the best, whose number stays the same.
            waiting.remove(winner)
            best.remove(last_of_best)
            place = await self._find_place(winner, best, comparer)
            best.insert(place, winner)
        return best

    async def _find_place(self, document: str, best: Sequence[str], comparer: Comparer) -> int:
        """Return the place of a document among the best, from 0, by binary search.

        If a comparison has no answer, the document stays below the one that it is compared with.
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
