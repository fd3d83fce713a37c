"""Reranking by tournaments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from touche_llm.data.records import ScoredDocument
from touche_llm.prompts.purposes import MAX_DOCUMENTS
from touche_llm.ranking.comparer import Comparer, ComparisonKind
from touche_llm.ranking.registry import ComparingMethod, RankingStep, register
from touche_llm.ranking.scores import rank_by_value


class Tournament(ComparingMethod):
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
        """Rank the documents by their points in all tournaments, equal ones in the given order.

        The totals are divided by the highest, so that the scores are from 0 to 1. A group without an
        answer keeps its order.
        """
        tournaments = [
            _Tournament(number=number, documents=documents, settings=self, comparer=comparer)
            for number in range(self.rounds)
        ]
        points_by_tournament = await comparer.run_all(_Tournament.play, tournaments)

        totals: dict[str, float] = {}
        for document in documents:
            totals[document] = sum(points[document] for points in points_by_tournament)

        highest_total = max(totals.values(), default=1.0)
        scores = {document: total / highest_total for document, total in totals.items()}
        return rank_by_value(scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tournament:
    """One of several tournaments of the same documents.

    Attributes:
        number: Number of the tournament, from 0, which decides its shuffles.
        documents: Documents, best first.
        settings: Settings of the tournaments.
        comparer: Comparisons by the model.
    """

    number: int
    documents: Sequence[str]
    settings: Tournament
    comparer: Comparer

    async def play(self) -> dict[str, float]:
        """Play the tournament, and return the points of each document.

        Each stage that a document survives gives it one point. The final orders the documents that
        fit in one group: of n, the best gets one more point, the next 1 - 1/n, and so on.
        """
        points = dict.fromkeys(self.documents, 0.0)
        remaining = list(self.documents)
        stage = 0
        while len(remaining) > self.settings.group:
            remaining = await self._play_stage(remaining, stage)
            for document in remaining:
                points[document] += 1.0
            stage += 1

        final_groups = await self._order_groups([remaining], stage)
        finalists = final_groups[0]
        for place, document in enumerate(finalists):
            points[document] += 1.0 - place / len(finalists)
        return points

    async def _play_stage(self, documents: Sequence[str], stage: int) -> list[str]:
        """Return the documents that advance from the groups of a stage, in their given order.

        Half of each group advances, so that none of the best `group / 2` documents can be
        eliminated by meeting the others of them.
        """
        groups = self._deal_into_groups(documents)
        ordered_groups = await self._order_groups(groups, stage)

        winners_per_group = self.settings.group // 2
        winners: set[str] = set()
        for group in ordered_groups:
            winners.update(group[:winners_per_group])
        return [document for document in documents if document in winners]

    def _deal_into_groups(self, documents: Sequence[str]) -> list[Sequence[str]]:
        """Return groups that have about the same share of the best documents.

        Like the seeds of a championship, three groups get the documents 1, 4, 7 and so on; 2, 5, 8;
        and 3, 6, 9.
        """
        group_count = math.ceil(len(documents) / self.settings.group)
        return [documents[group::group_count] for group in range(group_count)]

    async def _order_groups(
        self, groups: Sequence[Sequence[str]], stage: int
    ) -> list[Sequence[str]]:
        """Return the documents of each group from best to worst.

        A group without an answer keeps its order. Each group is shown shuffled, since models favour
        some positions in a prompt.
        """
        shown_groups: list[list[str]] = []
        for index, group in enumerate(groups):
            shown = list(group)
            generator = self.comparer.make_random(self.settings.seed, self.number, stage, index)
            generator.shuffle(shown)
            shown_groups.append(shown)

        answers = await self.comparer.run_all(self._order_group, shown_groups)
        ordered_groups: list[Sequence[str]] = []
        for group, answer in zip(groups, answers, strict=True):
            ordered_groups.append(group if answer is None else answer)
        return ordered_groups

    async def _order_group(self, shown: list[str]) -> list[str] | None:
        """Return a group from best to worst; None without an answer."""
        if len(shown) < 2:
            return shown
        return await self.comparer.order(shown)


register(
    RankingStep(
        name="tournament",
        method=Tournament,
        summary="groups of at most 10, five of each go on; points of two tournaments",
        requests="about N/2",
        reference="after TourRank, arXiv 2406.11678",
        order=60,
    )
)
