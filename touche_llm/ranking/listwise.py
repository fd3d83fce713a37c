"""Listwise comparison: windows slide from the end of the ranking to its beginning, each put in order by one answer.

Sun et al., arXiv 2304.09542 (RankGPT); several shuffles of a window are permutation self-consistency (Tang et al.,
arXiv 2310.07712).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from touche_llm.data.records import ScoredDocument
from touche_llm.prompts.answers import MAX_DOCUMENTS
from touche_llm.ranking.comparer import Comparer
from touche_llm.ranking.order import score_positions


class ListwiseSettings(BaseModel):
    """The windows.

    Attributes:
        window: documents that one answer orders.
        stride: by how much the next window begins earlier; what it leaves is how many documents two windows share.
        shuffles: how often each window is asked, the first time in order, then shuffled; the central ranking of the
            answers stands.
        seed: of the shuffles.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    window: int = Field(20, ge=2, le=MAX_DOCUMENTS)
    stride: int = Field(10, ge=1)
    shuffles: int = Field(1, ge=1)
    seed: int = 0

    @model_validator(mode="after")
    def _overlap(self) -> ListwiseSettings:
        if self.stride >= self.window:
            raise ValueError("stride must be smaller than window, or nothing could move from one window to the next")
        return self


async def rerank(documents: list[str], comparer: Comparer, settings: ListwiseSettings) -> list[ScoredDocument]:
    """The documents after one pass of the windows. A window without any answer keeps its order, as a failure."""
    order = list(documents)
    end = len(order)
    while end > 1:
        start = max(0, end - settings.window)
        order[start:end] = await _ordered(order[start:end], f"{start}-{end}", comparer, settings)
        if start == 0:
            break
        end -= settings.stride
    return score_positions(order)


async def _ordered(window: list[str], name: str, comparer: Comparer, settings: ListwiseSettings) -> list[str]:
    shown = [list(window) for _ in range(settings.shuffles)]
    for number, each in enumerate(shown[1:], start=1):
        comparer.make_random(settings.seed, name, number).shuffle(each)
    answers = [each for each in await comparer.run_all(comparer.order, shown) if each is not None]
    return central_ranking(answers) if answers else window


def central_ranking(rankings: Sequence[Sequence[str]]) -> list[str]:
    """A ranking of low Kendall distance to all of the given ones, which rank the same documents.

    From the mean ranks (Borda), and from each of the rankings, single documents are moved while that lowers the number
    of pairs on which the rankings disagree with it: the best local optimum of Kemeny's criterion, whose global one is
    hard to find. None of the rankings is nearer to all of them, so its distance is at most twice the least possible.
    """
    first = rankings[0]
    if len(rankings) == 1:
        return list(first)
    # above[a][b]: in how many rankings a stands above b.
    above = {each: dict.fromkeys(first, 0) for each in first}
    for ranking in rankings:
        for better, worse in combinations(ranking, 2):
            above[better][worse] += 1
    borda = sorted(first, key=lambda each: -sum(above[each].values()))
    optima = [_local_optimum(start, above) for start in (borda, *rankings)]
    return min(optima, key=lambda order: sum(above[worse][better] for better, worse in combinations(order, 2)))


def _local_optimum(start: Sequence[str], above: Mapping[str, Mapping[str, int]]) -> list[str]:
    order = list(start)
    moved = True
    while moved:
        moved = False
        for each in list(order):
            at = order.index(each)
            rest = order[:at] + order[at + 1 :]
            # Disagreements of `each` with the others, for every place that it could have.
            costs = [sum(above[other][each] for other in rest)]
            for other in rest:
                costs.append(costs[-1] - above[other][each] + above[each][other])
            place = min(range(len(costs)), key=costs.__getitem__)
            if costs[place] < costs[at]:
                rest.insert(place, each)
                order, moved = rest, True
    return order
