"""Listwise reranking by sliding windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import Field, model_validator

from touche_llm.data.records import ScoredDocument
from touche_llm.prompts.purposes import MAX_DOCUMENTS
from touche_llm.ranking.central_ranking import find_central_ranking
from touche_llm.ranking.comparer import Comparer, ComparisonKind
from touche_llm.ranking.registry import ComparingMethod, RankingStep, register
from touche_llm.ranking.scores import score_positions


class Listwise(ComparingMethod):
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
        """Rank two or more documents with a window that slides from the last ones to the first.

        A window without any answer keeps its order.
        """
        order = list(documents)
        for window in self._list_windows(len(order)):
            shown = order[window.start : window.stop]
            ordered = await self._order_window(shown, window.start, comparer)
            order[window.start : window.stop] = ordered
        return score_positions(order)

    def _list_windows(self, document_count: int) -> list[range]:
        """Return the places of each window, the last places first."""
        windows: list[range] = []
        end = document_count
        while True:
            start = max(0, end - self.window)
            windows.append(range(start, end))
            if start == 0:
                return windows
            end -= self.stride

    async def _order_window(
        self, documents: Sequence[str], start: int, comparer: Comparer
    ) -> Sequence[str]:
        """Return the documents of a window in the central order of several answers.

        The documents keep their order if no request has an answer.

        Args:
            documents: Documents in their present order.
            start: Place of the first document in the ranking, from 0.
            comparer: Comparisons by the model.
        """
        shown_orders = self._list_shown_orders(documents, start, comparer)
        answers = await comparer.run_all(comparer.order, shown_orders)
        usable = [answer for answer in answers if answer is not None]
        if not usable:
            return documents
        return find_central_ranking(usable)

    def _list_shown_orders(
        self, documents: Sequence[str], start: int, comparer: Comparer
    ) -> list[list[str]]:
        """Return the orders in which requests show the documents of a window.

        The first request shows the present order, and each other one a shuffle, since models favour
        some positions in a prompt.
        """
        # Each window has other shuffles, which are the same in every run.
        window_name = f"{start}-{start + len(documents)}"
        shown_orders = [list(documents)]
        for number in range(1, self.shuffles):
            shuffled = list(documents)
            generator = comparer.make_random(self.seed, window_name, number)
            generator.shuffle(shuffled)
            shown_orders.append(shuffled)
        return shown_orders


register(
    RankingStep(
        name="listwise",
        method=Listwise,
        summary=(
            "windows of 20, each put in order by one answer, sliding by 10; with "
            "`shuffles`, the central ranking of several answers"
        ),
        requests="about N/10",
        reference="RankGPT, arXiv 2304.09542; arXiv 2310.07712",
        order=50,
    )
)
