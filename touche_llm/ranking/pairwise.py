"""Pairwise reranking: all pairs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations, permutations
from statistics import fmean
from typing import ClassVar

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import Comparer, ComparisonKind
from touche_llm.ranking.registry import ComparingMethod, RankingStep, register
from touche_llm.ranking.scores import rank_by_value


class Pairwise(ComparingMethod):
    """Comparison of all pairs: a document's score is its mean probability to win.

    PRP-Allpair (Qin et al., arXiv 2306.17563), with the probability of the answer in place of the
    answer.

    Attributes:
        both_orders: Whether to compare each pair in both orders, against position bias; else the
            better one is first.
    """

    kind: ClassVar[ComparisonKind] = "best"
    both_orders: bool = True

    @property
    def max_shown(self) -> int:
        """Both documents of a pair."""
        return 2

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the documents by their mean probability to win against the others.

        A pair without an answer, in one of its orders, is left out of the means of both documents. A
        document without any pair keeps its place. k documents take k(k - 1) requests, or half of
        that in one order.
        """
        if self.both_orders:
            await self._request_all_answers(documents, comparer)

        # The comparer takes the answers that it has from memory, and requests the others.
        compare = partial(comparer.estimate_best, both_orders=self.both_orders)
        estimates = await comparer.run_all(compare, combinations(documents, 2))

        wins: dict[str, list[float]] = {document: [] for document in documents}
        for estimate in estimates:
            if estimate is None:
                continue
            for document, probability in estimate.items():
                wins[document].append(probability)

        mean_wins = {document: _mean(wins[document]) for document in documents}
        return rank_by_value(mean_wins)

    async def _request_all_answers(self, documents: list[str], comparer: Comparer) -> None:
        """Request the answers to all ordered pairs: (A, B), (A, C), (B, A), (B, C) and so on.

        Requests that show the same document first follow each other, so that a server's prefix
        cache serves their common beginning. The comparer keeps the answers for later.
        """
        await comparer.run_all(comparer.estimate_best, permutations(documents, 2))


def _mean(probabilities: Sequence[float]) -> float | None:
    """Return the mean of probabilities; None if there is none."""
    return fmean(probabilities) if probabilities else None


register(
    RankingStep(
        name="pairwise",
        method=Pairwise,
        summary="all pairs in both orders, the mean probability to win",
        requests="N(N − 1)",
        reference="PRP, arXiv 2306.17563",
        # All pairs of many more would not fit in memory.
        max_depth=200,
        order=10,
    )
)
