"""Reranking by tournaments."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from touche_llm.data.records import ScoredDocument
from touche_llm.prompts.purposes import MAX_DOCUMENTS
from touche_llm.ranking.comparer import Comparer, ComparisonKind, RankingMethod
from touche_llm.ranking.scores import rank_by_value


class Tournament(RankingMethod):
    """Tournaments: groups are ordered, the best of each advance, and points add up over several tournaments.

    After TourRank (Chen et al., arXiv 2406.11678). The groups of a stage, and the tournaments, run
    concurrently.

    Attributes:
        group: Maximum number of documents in a group.
        rounds: Number of tournaments, each with its own shuffles.
        seed: Seed of the shuffles.
    """

    kind: ClassVar[ComparisonKind] = "order"

    group: int = Field(10, ge=2, le=MAX_DOCUMENTS)
    rounds: int = Field(2, ge=1)
    seed: int = 0

    @property
    def max_shown(self) -> int:
        """All documents of a group."""
        return self.group

    async def rerank(self, documents: list[str], comparer: Comparer) -> list[ScoredDocument]:
        """Rank the documents by their points, equal ones in the given order.

        From each group `group / 2` documents advance, so that no draw can eliminate one of the best
        `group / 2`. A won stage gives one point. The final orders the documents that fit in one
        group; each gains the fraction of them that it is not ranked behind. A group without an
        answer keeps its order.
        """

        async def play(number: int) -> dict[str, float]:
            return await self._play(documents, number, comparer)

        tournaments = await comparer.run_all(play, range(self.rounds))
        points = {
            document: sum(tournament[document] for tournament in tournaments)
            for document in documents
        }
        highest = max(points.values(), default=1.0)
        return rank_by_value({document: value / highest for document, value in points.items()})

    async def _play(
        self, documents: list[str], number: int, comparer: Comparer
    ) -> dict[str, float]:
        points = dict.fromkeys(documents, 0.0)
        left = list(documents)
        stage = 0
        while len(left) > self.group:
            count = -(-len(left) // self.group)
            # Spreads the best documents over the groups, like the seeds of a championship.
            groups = [left[first::count] for first in range(count)]
            winners = set()
            for group in await self._order_groups(groups, comparer, number, stage):
                winners.update(group[: self.group // 2])
            left = [document for document in left if document in winners]
            for document in left:
                points[document] += 1.0
            stage += 1
        (final,) = await self._order_groups([left], comparer, number, stage)
        for place, document in enumerate(final):
            points[document] += 1.0 - place / len(final)
        return points

    async def _order_groups(
        self, groups: list[list[str]], comparer: Comparer, number: int, stage: int
    ) -> list[list[str]]:
        """Order each group, shown shuffled, so that no position in the prompt always favours the same document."""
        shuffled = [list(group) for group in groups]
        for index, group in enumerate(shuffled):
            comparer.make_random(self.seed, number, stage, index).shuffle(group)

        async def order(group: list[str]) -> list[str] | None:
            return await comparer.order(group) if len(group) > 1 else group

        answers = await comparer.run_all(order, shuffled)
        return [answer or group for answer, group in zip(answers, groups, strict=True)]
