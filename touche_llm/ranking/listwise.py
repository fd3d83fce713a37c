"""Listwise reranking by sliding windows."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from touche_llm.data.records import ScoredDocument
from touche_llm.prompts.purposes import MAX_DOCUMENTS
from touche_llm.ranking.central_ranking import find_central_ranking
from touche_llm.ranking.comparer import Comparer, ComparisonKind, RankingMethod
from touche_llm.ranking.scores import score_positions


class Listwise(RankingMethod):
    """Windows that slide from the end of the ranking to its start, each ordered by one answer.

    After RankGPT (Sun et al., arXiv 2304.09542). Several shuffles of a window are permutation
    self-consistency (Tang et al., arXiv 2310.07712).

    Attributes:
        window: Number of documents that one answer orders.
        stride: Number of places by which the next window starts earlier; two windows share `window
            - stride` documents.
        shuffles: Number of answers per window, the first in ranking order, the others shuffled; the
            central ranking of the answers is used.
        seed: Seed of the shuffles.
    """

    kind: ClassVar[ComparisonKind] = "order"

    window: int = Field(20, ge=2, le=MAX_DOCUMENTS)
    stride: int = Field(10, ge=1)
    shuffles: int = Field(1, ge=1)
    seed: int = 0

    @model_validator(mode="after")
    def _check_overlap(self) -> Self:
        if self.stride >= self.window:
            raise ValueError(
                "stride must be smaller than window, or nothing could move from one window to the next"
            )
        return self

    @property
    def max_shown(self) -> int:
        """All documents of a window."""
        return self.window

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the documents in one pass of the windows.

        A window without any answer keeps its order.
        """
        order = list(documents)
        for end in range(len(order), 1, -self.stride):
            start = max(0, end - self.window)
            # The first answer is on the present order.
            orders = [order[start:end] for _ in range(self.shuffles)]
            for number, shuffled in enumerate(orders[1:], start=1):
                comparer.make_random(self.seed, f"{start}-{end}", number).shuffle(shuffled)
            answers = [
                answer
                for answer in await comparer.run_all(comparer.order, orders)
                if answer is not None
            ]
            if answers:
                order[start:end] = find_central_ranking(answers)
            if start == 0:
                break
        return score_positions(order)
