"""A ranking step: the best document is found by elimination, with few requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking.comparer import MAX_CHOICES, Comparer, ComparisonKind
from touche_llm.ranking.registry import ComparingMethod, RankingStep, register
from touche_llm.ranking.scores import score_positions
from touche_llm.settings.section import Option


class Knockout(ComparingMethod):
    """Groups, the best of each of which advances, until one document is left.

    Attributes:
        group: Maximum number of documents in a group.
    """

    kind: ClassVar[ComparisonKind] = "best"

    group: Annotated[
        int,
        Option("--knockout-group", "Documents in a group of the step knockout", "Ranking"),
    ] = Field(4, ge=2, le=MAX_CHOICES)

    @property
    def max_shown(self) -> int:
        """All documents of a group."""
        return self.group

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Put the winner first; the others keep their order."""

        async def choose(group: Sequence[str]) -> str:
            winner = await comparer.choose_best(group) if len(group) > 1 else None
            return winner or group[0]

        left = documents
        while len(left) > 1:
            starts = range(0, len(left), self.group)
            groups = [left[start : start + self.group] for start in starts]
            left = await comparer.run_all(choose, groups)

        (winner,) = left
        others = [document for document in documents if document != winner]
        return score_positions([winner, *others])


register(
    RankingStep(
        name="knockout",
        method=Knockout,
        summary="groups of four, the best of each of which advances; the winner becomes the first",
        requests="about N/3",
    )
)
