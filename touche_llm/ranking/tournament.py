"""A tournament: groups are ordered, the best of each go on, and points are added over several tournaments.

After TourRank (Chen et al., arXiv 2406.11678). Groups of a stage, and tournaments, do not wait for each other.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from touche_llm.data.records import ScoredDocument
from touche_llm.prompts.answers import MAX_DOCUMENTS
from touche_llm.ranking.comparer import Comparer
from touche_llm.ranking.order import rank_by_value


class TournamentSettings(BaseModel):
    """The tournaments.

    Attributes:
        group: most documents of a group.
        rounds: tournaments, each with shuffles of its own.
        seed: of the shuffles.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    group: int = Field(10, ge=2, le=MAX_DOCUMENTS)
    rounds: int = Field(2, ge=1)
    seed: int = 0


async def rerank(documents: list[str], comparer: Comparer, settings: TournamentSettings) -> list[ScoredDocument]:
    """The documents by their points; equal ones in the order in which they came.

    Of each group half as many go on as a group has at most, so that no draw throws out one of the best that many. A
    stage won gives a point. Those left when one group holds all are put in order, which gives the fraction of them
    that a document does not stand behind. Where a group has no answer its order so far holds.
    """

    async def play(number: int) -> dict[str, float]:
        return await _tournament(documents, number, comparer, settings)

    tournaments = await comparer.run_all(play, range(settings.rounds))
    points = {each: sum(tournament[each] for tournament in tournaments) for each in documents}
    most = max(points.values(), default=1.0)
    return rank_by_value({each: value / most for each, value in points.items()})


async def _tournament(
    documents: list[str], number: int, comparer: Comparer, settings: TournamentSettings
) -> dict[str, float]:
    points = dict.fromkeys(documents, 0.0)
    left = list(documents)
    stage = 0
    while len(left) > settings.group:
        count = -(-len(left) // settings.group)
        # As seeds are spread over the groups of a championship.
        groups = [left[first::count] for first in range(count)]
        winners = set()
        for group in await _ordered(groups, comparer, settings, number, stage):
            winners.update(group[: settings.group // 2])
        left = [each for each in left if each in winners]
        for each in left:
            points[each] += 1.0
        stage += 1
    (final,) = await _ordered([left], comparer, settings, number, stage)
    for place, each in enumerate(final):
        points[each] += 1.0 - place / len(final)
    return points


async def _ordered(
    groups: list[list[str]], comparer: Comparer, settings: TournamentSettings, number: int, stage: int
) -> list[list[str]]:
    """Each group in order, asked shuffled, so that no place in the prompt favours the same document every time."""
    shown = [list(group) for group in groups]
    for index, group in enumerate(shown):
        comparer.make_random(settings.seed, number, stage, index).shuffle(group)

    async def order(group: list[str]) -> list[str] | None:
        return await comparer.order(group) if len(group) > 1 else group

    answers = await comparer.run_all(order, shown)
    return [answer or group for answer, group in zip(answers, groups, strict=True)]
