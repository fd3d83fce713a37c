"""Methods whose answers order several documents: sliding windows, and tournaments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import ClassVar, Self

from pydantic import Field, model_validator

from touche_llm.data.records import ScoredDocument
from touche_llm.prompts.purposes import MAX_DOCUMENTS
from touche_llm.ranking.comparer import Comparer, ComparisonKind, RankingMethod
from touche_llm.ranking.scores import rank_by_value, score_positions


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


def find_central_ranking(rankings: Sequence[Sequence[str]]) -> list[str]:
    """Find a ranking of low total Kendall distance to the given rankings of the same documents.

    Starting from the mean ranks (Borda) and from each of the rankings, single documents are moved
    as long as that lowers the number of pairs on which the rankings disagree with the result. The
    best of these local optima of Kemeny's criterion is returned, since the global optimum is
    NP-hard to find. None of the given rankings has a lower total distance, so the distance is at
    most twice the minimum.
    """
    first = rankings[0]
    # above[a][b]: number of rankings in which a is above b.
    above = {document: dict.fromkeys(first, 0) for document in first}
    for ranking in rankings:
        for better, worse in combinations(ranking, 2):
            above[better][worse] += 1
    borda = sorted(first, key=lambda document: -sum(above[document].values()))
    optima = [_find_local_optimum(start, above) for start in (borda, *rankings)]
    return min(
        optima,
        key=lambda order: sum(above[worse][better] for better, worse in combinations(order, 2)),
    )


def _find_local_optimum(start: Sequence[str], above: Mapping[str, Mapping[str, int]]) -> list[str]:
    order = list(start)
    has_moved = True
    while has_moved:
        has_moved = False
        for document in list(order):
            at = order.index(document)
            rest = order[:at] + order[at + 1 :]
            # Disagreements of the document with the others, for each place that it could take.
            costs = [sum(above[other][document] for other in rest)]
            for other in rest:
                costs.append(costs[-1] - above[other][document] + above[document][other])
            place = min(range(len(costs)), key=costs.__getitem__)
            if costs[place] < costs[at]:
                rest.insert(place, document)
                order, has_moved = rest, True
    return order
