"""Steps of a ranking: `judge,pairwise:10` ranks by judgments, then the best ten by pairwise comparison."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import Field, model_validator

from touche_llm.data.records import ScoredDocument
from touche_llm.data.settings import Section
from touche_llm.ranking import cross_encoder, listwise, pairwise, setwise, sliding, tournament
from touche_llm.ranking.comparer import Comparer, Kind, MakeRandom, RequestBounds, make_random
from touche_llm.ranking.cross_encoder import CrossEncoderSettings, Score
from touche_llm.ranking.fusion import FusionStepSettings, fuse
from touche_llm.ranking.listwise import ListwiseSettings
from touche_llm.ranking.order import BalanceSettings, balance, is_judged
from touche_llm.ranking.pairwise import PairwiseSettings
from touche_llm.ranking.setwise import SetwiseSettings
from touche_llm.ranking.sliding import SlidingSettings
from touche_llm.ranking.tournament import TournamentSettings
from touche_llm.tasks.definition import FIRST_STAGE

JUDGE, FUSION, BALANCE = "judge", "fusion", "balance"


class RankingSettings(Section):
    """Settings of the steps, each in its own section.

    Attributes:
        document_tokens: Maximum number of tokens per document in a comparison; fewer if the context is too short.
    """

    document_tokens: int = Field(512, ge=16)
    pairwise: PairwiseSettings = PairwiseSettings()
    sliding: SlidingSettings = SlidingSettings()
    setwise: SetwiseSettings = SetwiseSettings()
    insertion: SetwiseSettings = SetwiseSettings()
    listwise: ListwiseSettings = ListwiseSettings()
    tournament: TournamentSettings = TournamentSettings()
    cross_encoder: CrossEncoderSettings = CrossEncoderSettings()
    fusion: FusionStepSettings = FusionStepSettings()
    balance: BalanceSettings = BalanceSettings()

    @model_validator(mode="after")
    def _check_fusion_weights(self) -> RankingSettings:
        names = (FIRST_STAGE, JUDGE, *METHODS, FUSION)
        unknown = [name for name in self.fusion.weights if name not in names]
        if unknown:
            raise ValueError(
                f"fusion.weights: {', '.join(unknown)}: no ranking of that name; known: {', '.join(names)}"
            )
        return self


@dataclass(frozen=True, slots=True)
class Method:
    """A method of reranking documents with a model.

    Attributes:
        rerank: Takes documents, best first, and returns them, best first, with scores between 0 and 1.
        kind: Kind of comparison, which is also the name of its prompt; None if a cross-encoder scores the documents.
        bound_requests: Returns the bounds of its comparisons of a number of documents.
        max_depth: Maximum number of documents; all pairs of many more would not fit in memory.
    """

    rerank: Callable[[list[str], Any, Any], Awaitable[list[ScoredDocument]]]
    kind: Kind | None
    bound_requests: Callable[[int, Any, MakeRandom], RequestBounds] | None = None
    max_depth: int = 1000


METHODS: Mapping[str, Method] = {
    "pairwise": Method(pairwise.rerank, "best", pairwise.bound_requests, max_depth=200),
    "sliding": Method(sliding.rerank, "best", sliding.bound_requests),
    "setwise": Method(setwise.rerank, "best", setwise.bound_requests),
    "insertion": Method(setwise.rerank_by_insertion, "best", setwise.bound_insertion_requests),
    "listwise": Method(listwise.rerank, "order", listwise.bound_requests),
    "tournament": Method(tournament.rerank, "order", tournament.bound_requests),
    "cross_encoder": Method(cross_encoder.rerank, None),
}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the ranking: its name, and how many of the best documents it ranks (0 for `judge`: all)."""

    name: str
    depth: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.depth}" if self.depth else self.name


def parse_steps(texts: Sequence[str]) -> tuple[Step, ...]:
    """Parse steps that are written as `judge` or `name:depth`.

    Raises:
        ValueError: A step is unknown, its depth is missing or out of range, or `judge` is not the first step.
    """
    steps = tuple(_parse(text) for text in texts)
    if not steps:
        raise ValueError(f"must name a step: {JUDGE}, or one of {', '.join(_WITH_DEPTH)} with a depth, as pairwise:10")
    if any(step.name == JUDGE for step in steps[1:]):
        raise ValueError(f"{JUDGE} ranks all documents by their judgments, so it can only be the first step")
    return steps


_WITH_DEPTH = (*METHODS, FUSION, BALANCE)
_MAX_DEPTH = 1000


def _parse(text: str) -> Step:
    name, colon, depth = text.strip().partition(":")
    if name == JUDGE:
        if colon:
            raise ValueError(f"{text!r:.80}: {JUDGE} ranks all documents; write it without a number")
        return Step(JUDGE)
    if name not in _WITH_DEPTH:
        raise ValueError(
            f"{text!r:.80}: no such step; write {JUDGE}, or with a number of documents, as pairwise:10, one of "
            f"{', '.join(_WITH_DEPTH)}"
        )
    most = METHODS[name].max_depth if name in METHODS else _MAX_DEPTH
    if not depth.isascii() or not depth.isdigit() or len(depth) > 9 or not 2 <= int(depth) <= most:
        raise ValueError(f"{text!r:.80}: needs the number of documents to rank, from 2 to {most}, as {name}:10")
    return Step(name, int(depth))


def bound_requests(
    kind: Kind, steps: Sequence[Step], settings: RankingSettings, topic_id: str, documents: int
) -> RequestBounds:
    """Return the bounds of the comparisons of one kind that steps request for a topic with so many documents."""
    found = []
    for step in steps:
        method = METHODS.get(step.name)
        if method is not None and method.kind == kind and method.bound_requests is not None and documents > 1:
            random = partial(make_random, str(step), topic_id)
            found.append(method.bound_requests(min(step.depth, documents), getattr(settings, step.name), random))
    return RequestBounds.join(found)


def list_comparison_kinds(steps: Sequence[Step]) -> tuple[Kind, ...]:
    """Return the kinds of comparison that the steps request from the model."""
    kinds = (METHODS[step.name].kind for step in steps if step.name in METHODS)
    return tuple(sorted({kind for kind in kinds if kind is not None}))


def needs_cross_encoder(steps: Sequence[Step]) -> bool:
    """Return whether a step scores documents with a cross-encoder."""
    return any(step.name in METHODS and METHODS[step.name].kind is None for step in steps)


def needs_texts(steps: Sequence[Step]) -> bool:
    """Return whether a model sees the documents' texts in a step."""
    return any(step.name in METHODS for step in steps)


def check_balance(steps: Sequence[Step], sides: Collection[str]) -> None:
    """Raise ValueError if a step balances the sides of a task that has none."""
    for step in steps:
        if step.name == BALANCE and not sides:
            raise ValueError(f"{step}: the task has no stances to balance; leave this step out")


def check_fusion(steps: Sequence[Step], settings: FusionStepSettings) -> None:
    """Raise ValueError if a step fuses rankings that all have weight 0."""
    before = [FIRST_STAGE]
    for step in steps:
        if step.name == FUSION and not any(settings.weights.get(name, 1.0) for name in before):
            raise ValueError(
                f"{step}: all rankings before it ({', '.join(before)}) have weight 0 in `fusion.weights`; give one of "
                "them a weight above 0"
            )
        if step.name != BALANCE:
            before.append(step.name)


async def rank_topic(
    first_stage: list[ScoredDocument],
    judged: list[ScoredDocument],
    steps: Sequence[Step],
    settings: RankingSettings,
    use_model: Callable[[Step], Comparer | Score],
    stances: Mapping[str, str],
    sides: Sequence[str],
) -> list[ScoredDocument]:
    """Rank the documents of one topic in several steps.

    Each step reranks the best documents so far; those below stay. Its scores, between 0 and 1, are raised by the number
    of the step, so that they stay above those of the documents that it did not rerank.

    Args:
        first_stage: Documents in first-stage order, with scores from 0 to 1.
        judged: The same documents ranked by their judgments, with scores up to 1.
        steps: Steps in order.
        settings: Settings of all steps.
        use_model: Returns the comparer of a step, or the scores of the cross-encoder.
        stances: Stance label of each document.
        sides: Labels that take a side.
    """
    worth = {scored.document_id: scored.score for scored in judged}
    # The rankings to fuse, with their own scores; the latest comes first, since it breaks ties.
    rankings = [(FIRST_STAGE, first_stage)]
    if steps and steps[0].name == JUDGE:
        rankings.insert(0, (JUDGE, judged))
    ranking = rankings[0][1]
    for level, step in enumerate(steps, start=1):
        top, rest = ranking[: step.depth], ranking[step.depth :]
        if step.name == JUDGE or len(top) < 2:
            continue
        if step.name == BALANCE:
            ranking = balance(top, worth, stances, sides, settings.balance) + rest
            continue
        documents = [scored.document_id for scored in top]
        if step.name == FUSION:
            found = _fuse(documents, rankings, settings.fusion)
            if not found:
                continue
        else:
            found = await METHODS[step.name].rerank(documents, use_model(step), getattr(settings, step.name))
        ranked = {scored.document_id for scored in found}
        below = [ScoredDocument(document, 0.0) for document in documents if document not in ranked]
        ranking = [ScoredDocument(scored.document_id, level + scored.score) for scored in [*found, *below]] + rest
        rankings.insert(0, (step.name, found))
    return ranking


def _fuse(
    documents: Sequence[str], rankings: Sequence[tuple[str, list[ScoredDocument]]], settings: FusionStepSettings
) -> list[ScoredDocument]:
    """Fuse the rankings of these documents.

    If scores of judgments are interpolated, they are scaled over the documents that have one, and only these are
    fused.

    Returns:
        The fused documents; empty if no ranking with a weight has any, as where a topic could not be compared.
    """
    weights = [settings.weights.get(name, 1.0) for name, _ in rankings]
    parts = [[scored for scored in part if scored.document_id in documents] for _, part in rankings]
    fused = set(documents)
    for number, (name, _) in enumerate(rankings):
        if name == JUDGE and weights[number] and settings.method == "interpolation":
            parts[number] = [scored for scored in parts[number] if is_judged(scored)]
            fused = {scored.document_id for scored in parts[number]}
    if not fused or not any(weights):
        return []
    return [scored for scored in fuse(parts, weights, settings) if scored.document_id in fused]
