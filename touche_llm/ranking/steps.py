"""Steps of a ranking: `judge,pairwise:10` ranks by judgments, then the best ten by pairwise comparison.

A ranking method is a class with its settings (`RankingMethod`) and a field of `RankingSettings`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from pydantic import Field, model_validator

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import (
    Candidate,
    Comparison,
    Failure,
    Judgment,
    RunLine,
    ScoredDocument,
    Topic,
)
from touche_llm.data.runs.writing import make_strictly_decreasing
from touche_llm.engines.pooling import PoolingClient
from touche_llm.judging.requests import Done, RequestBuilder
from touche_llm.llm.model import ModelClient
from touche_llm.prompts.prompt import Prompt
from touche_llm.ranking.balance import BalanceSettings, balance
from touche_llm.ranking.comparer import Comparands, Comparer, ComparisonKind, RankingMethod
from touche_llm.ranking.cross_encoder import CrossEncoderSettings, ScoreDocuments, score_documents
from touche_llm.ranking.fusion import FusionSettings, fuse
from touche_llm.ranking.insertion import Insertion
from touche_llm.ranking.listwise import Listwise
from touche_llm.ranking.pairwise import Pairwise
from touche_llm.ranking.scores import (
    is_judged,
    rank_by_first_stage,
    rank_by_judgment,
    replace_marks,
)
from touche_llm.ranking.setwise import Setwise
from touche_llm.ranking.sliding import Sliding
from touche_llm.ranking.tournament import Tournament
from touche_llm.retrieval.corpus import Documents
from touche_llm.settings.section import AnswerKey, Section, Trust
from touche_llm.tasks.parts import FIRST_STAGE, Objective
from touche_llm.tasks.task import Task

JUDGE, FUSION, BALANCE, CROSS_ENCODER = "judge", "fusion", "balance", "cross_encoder"


class RankingSettings(Section):
    """Settings of the steps, each in its own section.

    The steps with a model are the fields that are methods.

    Attributes:
        document_tokens: Maximum number of tokens per document in a comparison; fewer if the context
            is too short.
    """

    document_tokens: Annotated[int, AnswerKey.ENTERS] = Field(512, ge=16)
    # Settings of methods decide which documents are compared, and in which orders. A comparison of
    # the same documents in the same order is the same request, whichever method sends it.
    pairwise: Annotated[Pairwise, AnswerKey.STAYS_OUT] = Pairwise()
    sliding: Annotated[Sliding, AnswerKey.STAYS_OUT] = Sliding()
    setwise: Annotated[Setwise, AnswerKey.STAYS_OUT] = Setwise()
    insertion: Annotated[Insertion, AnswerKey.STAYS_OUT] = Insertion()
    listwise: Annotated[Listwise, AnswerKey.STAYS_OUT] = Listwise()
    tournament: Annotated[Tournament, AnswerKey.STAYS_OUT] = Tournament()
    cross_encoder: Annotated[CrossEncoderSettings, Trust.ACTS] = CrossEncoderSettings()
    fusion: Annotated[FusionSettings, AnswerKey.STAYS_OUT] = FusionSettings()
    balance: Annotated[BalanceSettings, AnswerKey.STAYS_OUT] = BalanceSettings()

    @model_validator(mode="after")
    def _check_fusion_weights(self) -> RankingSettings:
        names = (FIRST_STAGE, JUDGE, *METHODS, FUSION)
        unknown = [name for name in self.fusion.weights if name not in names]
        if unknown:
            raise ValueError(
                f"fusion.weights: {', '.join(unknown)}: no ranking of that name; known: {', '.join(names)}"
            )
        return self


METHODS: Mapping[str, type[RankingMethod]] = {
    name: method
    for name, setting in RankingSettings.model_fields.items()
    if isinstance(method := setting.annotation, type) and issubclass(method, RankingMethod)
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
        ValueError: A step is unknown, its depth is missing or out of range, or `judge` is not the
            first step.
    """
    steps = tuple(_parse(text) for text in texts or ("",))
    if any(step.name == JUDGE for step in steps[1:]):
        raise ValueError(
            f"{JUDGE} ranks all documents by their judgments, so it can only be the first step"
        )
    return steps


_WITH_DEPTH = (*METHODS, FUSION, BALANCE)


def _parse(text: str) -> Step:
    name, _, depth = text.strip().partition(":")
    if text.strip() == JUDGE:
        return Step(JUDGE)
    if name not in _WITH_DEPTH:
        raise ValueError(
            f"{text!r:.80}: no such step; write {JUDGE}, or with a number of documents, as pairwise:10, one of "
            f"{', '.join(_WITH_DEPTH)}"
        )
    limit = METHODS.get(name, RankingMethod).max_depth
    if re.fullmatch("[0-9]{1,4}", depth) is None or not 2 <= int(depth) <= limit:
        raise ValueError(
            f"{text!r:.80}: needs the number of documents to rank, from 2 to {limit}, as {name}:10"
        )
    return Step(name, int(depth))


def list_comparison_kinds(steps: Sequence[Step]) -> tuple[ComparisonKind, ...]:
    """Return the kinds of comparison that the steps request from the model."""
    kinds = (METHODS[step.name].kind for step in steps if step.name in METHODS)
    return tuple(sorted({kind for kind in kinds if kind is not None}))


def count_shown_documents(steps: Sequence[Step], settings: RankingSettings) -> dict[str, int]:
    """Return how many documents the comparisons of the steps show at most, by purpose of their prompt."""
    shown: dict[str, int] = {}
    for step in steps:
        if step.name not in METHODS:
            continue

        method: RankingMethod = getattr(settings, step.name)
        if method.kind is None:
            continue

        shown_by_step = min(method.max_shown, step.depth)
        shown[method.kind] = max(shown_by_step, shown.get(method.kind, 0))
    return shown


def needs_texts(steps: Sequence[Step]) -> bool:
    """Return whether a model sees the documents' texts in a step."""
    return any(step.name in METHODS for step in steps)


def check_balance(steps: Sequence[Step], sides: Collection[str], setting: str) -> None:
    """Raise ValueError, naming `setting`, if a step balances the sides of a task that has none."""
    if not sides and any(step.name == BALANCE for step in steps):
        raise ValueError(f"{setting}: the task has no stances to balance; leave this step out")


async def rank_topic(
    first_stage: list[ScoredDocument],
    judged: list[ScoredDocument],
    steps: Sequence[Step],
    settings: RankingSettings,
    use_model: Callable[[Step], Comparer | ScoreDocuments],
    stances: Mapping[str, str],
    sides: Sequence[str],
) -> list[ScoredDocument]:
    """Rank the documents of one topic in several steps.

    Each step reranks the best documents so far; those below stay. Its scores, between 0 and 1, are
    raised by the number of the step, so that they stay above those of the documents that it did not
    rerank.

    The first stage has scores from 0 to 1, the same documents ranked by their judgments have scores
    up to 1. `sides` are the labels that take a side. `use_model` returns the comparer of a step, or
    the scores of the cross-encoder.
    """
    scores = {scored.document_id: scored.score for scored in judged}
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
            ranking = balance(top, scores, stances, sides, settings.balance) + rest
            continue
        documents = [scored.document_id for scored in top]
        if step.name == FUSION:
            found = _fuse(documents, rankings, settings.fusion)
            if not found:
                continue
        else:
            found = await getattr(settings, step.name).rerank(documents, use_model(step))
        ranked = {scored.document_id for scored in found}
        below = [ScoredDocument(document, 0.0) for document in documents if document not in ranked]
        ranking = [
            ScoredDocument(scored.document_id, level + scored.score) for scored in [*found, *below]
        ] + rest
        rankings.insert(0, (step.name, found))
    return ranking


def _fuse(
    documents: Sequence[str],
    rankings: Sequence[tuple[str, list[ScoredDocument]]],
    settings: FusionSettings,
) -> list[ScoredDocument]:
    """Fuse the rankings of these documents.

    If scores of judgments are interpolated, they are scaled over the documents that have one, and
    only these are fused.

    Returns:
        The fused documents; empty if no ranking with a weight has any, as where a topic could not
        be compared.
    """
    weights = [settings.weights.get(name, 1.0) for name, _ in rankings]
    fused = set(documents)
    parts = [[scored for scored in part if scored.document_id in fused] for _, part in rankings]
    for number, (name, _) in enumerate(rankings):
        if name == JUDGE and weights[number] and settings.method == "interpolation":
            parts[number] = [scored for scored in parts[number] if is_judged(scored)]
            fused = {scored.document_id for scored in parts[number]}
    if not fused or not any(weights):
        return []
    return [scored for scored in fuse(parts, weights, settings) if scored.document_id in fused]


@dataclass(frozen=True, slots=True)
class RankingPlan:
    """How all topics are ranked, and with which documents and models; None for what no step needs.

    Attributes:
        weights: Weights of grades and first-stage score.
        objective: Criterion of the comparisons.
        prompts: Prompts of the comparisons, by kind.
        builder: Builder of the requests for comparisons.
        reranker: Client of the cross-encoder.
    """

    task: Task
    weights: Mapping[str, float]
    steps: tuple[Step, ...]
    settings: RankingSettings
    tag: str = "touche-llm"
    objective: Objective = "both"
    documents: Documents | None = None
    prompts: Mapping[str, Prompt] = field(default_factory=dict)
    builder: RequestBuilder | None = None
    reranker: PoolingClient | None = None

    @property
    def clients(self) -> list[ModelClient | PoolingClient]:
        """Clients of the model that compares and of the cross-encoder, as far as steps need them."""
        model = None if self.builder is None else self.builder.model
        return [client for client in (model, self.reranker) if client is not None]

    def make_comparer(
        self, step: Step, topic: Topic, slots: asyncio.Semaphore, unanswered: set[Comparands]
    ) -> Comparer:
        """Return the comparer of a step for a topic."""
        assert self.builder is not None and self.documents is not None
        return Comparer(
            step=str(step),
            topic=topic,
            documents=self.documents,
            question=self.task.question,
            prompts=self.prompts,
            builder=self.builder,
            slots=slots,
            objective=self.objective,
            document_tokens=self.settings.document_tokens,
            unanswered=unanswered,
        )

    def score_for(self, topic: Topic) -> ScoreDocuments:
        """Return the function that scores documents for a topic."""
        assert self.reranker is not None and self.documents is not None
        settings = self.settings.cross_encoder
        return partial(
            score_documents, self.reranker, settings, self.task.question, self.documents, topic
        )


async def rank_topics(
    topics: list[Topic],
    candidates: Mapping[str, list[Candidate]],
    judgments: Mapping[str, Mapping[str, Judgment]],
    stances: Mapping[str, Mapping[str, str]],
    plan: RankingPlan,
    done: Done,
) -> tuple[list[RunLine], list[Comparison], list[Failure]]:
    """Rank the candidates of all topics; documents without a stance label are left out.

    Returns the lines of the run, the comparisons behind them and the failed ones, each topic by
    topic. Requests of all topics share the builder's concurrency.
    """
    slots = asyncio.Semaphore(plan.builder.concurrency) if plan.builder is not None else None

    async def rank_one(topic: Topic) -> tuple[list[RunLine], list[Comparer]]:
        labels = stances.get(topic.id, {})
        ranked = rank_by_first_stage(candidates.get(topic.id, []))
        first_stage = [scored for scored in ranked if scored.document_id in labels]
        judged = rank_by_judgment(
            first_stage, judgments.get(topic.id, {}), plan.weights, plan.task.aspects
        )
        comparers: list[Comparer] = []
        unanswered: set[Comparands] = set()

        def use_model(step: Step) -> Comparer | ScoreDocuments:
            if step.name == CROSS_ENCODER:
                return plan.score_for(topic)
            assert slots is not None
            comparers.append(plan.make_comparer(step, topic, slots, unanswered))
            return comparers[-1]

        steps = plan.steps
        if plan.task.objects_answer is not None and topic.objects is None:
            # The failure to find the objects is recorded already.
            steps = tuple(step for step in steps if step.name not in METHODS)
        ranking = await rank_topic(
            first_stage, judged, steps, plan.settings, use_model, labels, plan.task.sides
        )
        ranking = ranking[: plan.task.documents_per_topic.max]
        scores = make_strictly_decreasing(replace_marks(ranking))
        done()
        return [
            RunLine(topic.id, labels[scored.document_id], scored.document_id, rank, score, plan.tag)
            for rank, (scored, score) in enumerate(zip(ranking, scores, strict=True), start=1)
        ], comparers

    ranked = await map_in_order(rank_one, topics, max(len(topics), 1))
    comparers = [comparer for _, of_topic in ranked for comparer in of_topic]
    return (
        [line for lines, _ in ranked for line in lines],
        [comparison for comparer in comparers for comparison in comparer.comparisons],
        [failure for comparer in comparers for failure in comparer.failures],
    )
