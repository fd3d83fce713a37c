"""The steps of a ranking, one after the other: `judge,pairwise:10` orders by judgments, then the best ten by pairs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from touche_llm.data.records import ScoredDocument
from touche_llm.ranking import insertion, listwise, pairwise, setwise, sliding, tournament
from touche_llm.ranking.balance import BalanceSettings, balance
from touche_llm.ranking.comparer import Comparer, Kind
from touche_llm.ranking.fusion import FusionStepSettings, fuse
from touche_llm.ranking.listwise import ListwiseSettings
from touche_llm.ranking.pairwise import PairwiseSettings
from touche_llm.ranking.setwise import SetwiseSettings
from touche_llm.ranking.sliding import SlidingSettings
from touche_llm.ranking.tournament import TournamentSettings
from touche_llm.tasks.base import FIRST_STAGE

JUDGE, FUSION, BALANCE = "judge", "fusion", "balance"


class RankingSettings(BaseModel):
    """How the steps rank, each in its own section.

    `document_tokens` is how many tokens of each document a comparison shows at most; where the context does not hold
    that many of each, it shows fewer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    document_tokens: int = Field(512, ge=16)
    pairwise: PairwiseSettings = PairwiseSettings()
    sliding: SlidingSettings = SlidingSettings()
    setwise: SetwiseSettings = SetwiseSettings()
    insertion: SetwiseSettings = SetwiseSettings()
    listwise: ListwiseSettings = ListwiseSettings()
    tournament: TournamentSettings = TournamentSettings()
    fusion: FusionStepSettings = FusionStepSettings()
    balance: BalanceSettings = BalanceSettings()

    @model_validator(mode="after")
    def _weighs_what_there_is(self) -> RankingSettings:
        names = (FIRST_STAGE, JUDGE, *METHODS, FUSION)
        unknown = [name for name in self.fusion.weights if name not in names]
        if unknown:
            raise ValueError(
                f"fusion.weights: {', '.join(unknown)}: no ranking of that name; there is {', '.join(names)}"
            )
        return self


@dataclass(frozen=True, slots=True)
class Method:
    """A way of ranking documents by comparing them.

    Attributes:
        rerank: gets the documents, best first, and gives the same ones, best first, with scores between 0 and 1.
        asks: the kind of question, which is the name of its prompt.
        max_depth: most documents; all pairs of many more would fill the memory.
    """

    rerank: Callable[[list[str], Comparer, Any], Awaitable[list[ScoredDocument]]]
    kind: Kind
    max_depth: int = 1000


METHODS: Mapping[str, Method] = {
    "pairwise": Method(pairwise.rerank, "best", max_depth=200),
    "sliding": Method(sliding.rerank, "best"),
    "setwise": Method(setwise.rerank, "best"),
    "insertion": Method(insertion.rerank, "best"),
    "listwise": Method(listwise.rerank, "order"),
    "tournament": Method(tournament.rerank, "order"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the ranking: its name, and how many of the best documents it puts in order (0 for `judge`: all)."""

    name: str
    depth: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.depth}" if self.depth else self.name


def parse_steps(texts: Sequence[str]) -> tuple[Step, ...]:
    """The steps that are written as `judge` or `name:depth`.

    Raises:
        ValueError: no such step, a depth that is missing or too small, or `judge` elsewhere than at the beginning.
    """
    steps = tuple(_parse(text) for text in texts)
    if not steps:
        raise ValueError(f"must name a step: {JUDGE}, or one of {', '.join(_DEEP)} with a depth, as pairwise:10")
    if any(step.name == JUDGE for step in steps[1:]):
        raise ValueError(f"{JUDGE} orders everything by the judgments, so it can only be the first step")
    return steps


_DEEP = (*METHODS, FUSION, BALANCE)
_DEEPEST = 1000


def _parse(text: str) -> Step:
    name, colon, depth = text.strip().partition(":")
    if name == JUDGE:
        if colon:
            raise ValueError(f"{text!r:.80}: {JUDGE} orders all documents, so it is written without a number")
        return Step(JUDGE)
    if name not in _DEEP:
        raise ValueError(
            f"{text!r:.80}: no such step; write {JUDGE}, or with a number of documents, as pairwise:10, one of "
            f"{', '.join(_DEEP)}"
        )
    most = METHODS[name].max_depth if name in METHODS else _DEEPEST
    if not depth.isascii() or not depth.isdigit() or len(depth) > 9 or not 2 <= int(depth) <= most:
        raise ValueError(f"{text!r:.80}: needs the number of documents to put in order, from 2 to {most}, as {name}:10")
    return Step(name, int(depth))


def list_comparison_kinds(steps: Sequence[Step]) -> tuple[Kind, ...]:
    """The kinds of question that the steps ask the model; none where they ask nothing."""
    return tuple(sorted({METHODS[step.name].kind for step in steps if step.name in METHODS}))


def check_fusion(steps: Sequence[Step], settings: FusionStepSettings) -> None:
    """Raise ValueError where a fusion gives no weight to any of the rankings before it."""
    before = [FIRST_STAGE]
    for step in steps:
        if step.name == FUSION and not any(settings.weights.get(name, 1.0) for name in before):
            raise ValueError(
                f"ranking.fusion.weights: {', '.join(before)}, all that is there before {step}, have 0: nothing is "
                "left to rank by"
            )
        if step.name != BALANCE:
            before.append(step.name)


async def rank_topic(
    first_stage: list[ScoredDocument],
    judged: list[ScoredDocument],
    steps: Sequence[Step],
    settings: RankingSettings,
    comparer: Callable[[Step], Comparer],
    stances: Mapping[str, str],
    sides: Sequence[str],
) -> list[ScoredDocument]:
    """The ranking of one topic after all steps.

    Each step puts the best documents so far in order; those below stay. Its scores, between 0 and 1, are raised by one
    for each step, so that they stay above those of the documents that it did not see.

    Args:
        first_stage: the documents in the order of the first stage, with scores from 0 to 1.
        judged: the same documents by their judgments, with scores up to 1.
        steps: in order.
        settings: of all steps.
        comparer: makes what a step asks with.
        stances: the label of each document.
        sides: the labels that take a side.
    """
    begins = JUDGE if steps and steps[0].name == JUDGE else FIRST_STAGE
    ranking = judged if begins == JUDGE else first_stage
    worth = {each.document_id: each.score for each in judged}
    # What a fusion puts together, with scores as they were found: the latest first, which decides where all agree.
    rankings = [(FIRST_STAGE, first_stage)]
    if begins == JUDGE:
        rankings.insert(0, (JUDGE, judged))
    for level, step in enumerate(steps, start=1):
        top, rest = ranking[: step.depth], ranking[step.depth :]
        if step.name == JUDGE or len(top) < 2:
            continue
        if step.name == BALANCE:
            ranking = balance(top, worth, stances, sides, settings.balance) + rest
            continue
        documents = [each.document_id for each in top]
        if step.name == FUSION:
            parts = [[each for each in part if each.document_id in documents] for _, part in rankings]
            weights = [settings.fusion.weights.get(name, 1.0) for name, _ in rankings]
            if not any(weights):
                continue  # a topic that could not be compared has nothing of what is to be fused
            found = fuse(parts, weights, settings.fusion)
        else:
            found = await METHODS[step.name].rerank(documents, comparer(step), getattr(settings, step.name))
        ranking = [ScoredDocument(each.document_id, level + each.score) for each in found] + rest
        rankings.insert(0, (step.name, found))
    return ranking
