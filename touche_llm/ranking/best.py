"""Methods whose answers choose the best of several documents: of two, in pairs, or of several, in a heap."""

from __future__ import annotations

import asyncio
from itertools import combinations, permutations
from statistics import fmean
from typing import ClassVar

from pydantic import Field

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import MAX_CHOICES, Comparer, ComparisonKind, RankingMethod
from touche_llm.ranking.scores import rank_by_value, score_positions


class Pairwise(RankingMethod):
    """Comparison of all pairs: a document's score is its mean probability to win.

    PRP-Allpair (Qin et al., arXiv 2306.17563), with the probability of the answer in place of the
    answer.

    Attributes:
        both_orders: Whether to compare each pair in both orders, against position bias; else the
            better one is first.
    """

    kind: ClassVar[ComparisonKind] = "best"
    # All pairs of many more would not fit in memory.
    max_depth: ClassVar[int] = 200

    both_orders: bool = True

    @property
    def max_shown(self) -> int:
        """Both documents of a pair."""
        return 2

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the documents by their mean probability to win against the others.

        A pair counts for neither document if one of its orders has no answer; a document without
        any pair keeps its place. k documents take k(k - 1) requests, or half of that in one order.
        Requests that show the same document first are sent one after the other, for the server's
        prefix cache, before the orders of a pair are combined.
        """
        if self.both_orders:
            await comparer.run_all(comparer.estimate_best, permutations(documents, 2))

        async def compare(pair: tuple[str, str]) -> dict[str, float] | None:
            return await comparer.estimate_best(pair, both_orders=self.both_orders)

        wins: dict[str, list[float]] = {document: [] for document in documents}
        for answer in await comparer.run_all(compare, list(combinations(documents, 2))):
            for document, share in (answer or {}).items():
                wins[document].append(share)
        return rank_by_value(
            {document: fmean(shares) if shares else None for document, shares in wins.items()}
        )


class Sliding(RankingMethod):
    """Comparison of neighbours, from last to first; k passes put the best k documents in place.

    PRP-Sliding-K (Qin et al., arXiv 2306.17563), a bubble sort.

    Attributes:
        passes: Number of passes, and so of best documents that are put in place.
        both_orders: Whether to compare each pair in both orders.
    """

    kind: ClassVar[ComparisonKind] = "best"

    passes: int = Field(10, ge=1)
    both_orders: bool = True

    @property
    def max_shown(self) -> int:
        """Both documents of a pair."""
        return 2

    def bound_comparisons(self, documents: int) -> int:
        """Return the number of comparisons if each pass has new neighbours."""
        last = documents - 1
        return sum(last - number for number in range(min(self.passes, last))) * (
            1 + self.both_orders
        )

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the documents in several passes; a pair without an answer keeps its order.

        Each pass follows two places behind the one before, so several run concurrently. A pair that
        an earlier pass compared is not sent again.
        """
        order = list(documents)
        last = len(order) - 1
        passes = min(self.passes, last)
        # settled[p][place]: pass p has compared the documents at place - 1 and place.
        loop = asyncio.get_running_loop()
        settled: list[list[asyncio.Future[None]]] = [
            [loop.create_future() for _ in order] for _ in range(passes)
        ]

        async def bubble(number: int) -> None:
            try:
                for place in range(last, number, -1):
                    if number:
                        # The document above is the one that the pass before left there.
                        await settled[number - 1][place - 1]
                    pair = (order[place - 1], order[place])
                    if await comparer.choose_best(pair, both_orders=self.both_orders) == pair[1]:
                        order[place - 1], order[place] = order[place], order[place - 1]
                    settled[number][place].set_result(None)
            finally:
                # If a pass fails, the passes behind it fail too, rather than wait forever.
                for future in settled[number]:
                    future.cancel()

        await comparer.run_all(bubble, range(passes))
        return score_positions(order)


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


def _count_levels(node: int, size: int, width: int) -> int:
    """Return the number of nodes with children on the leftmost path down from a node."""
    levels = 0
    while (node := width * node + 1) < size:
        levels += 1
    return levels
