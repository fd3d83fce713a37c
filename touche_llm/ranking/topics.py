"""Rankings of topics, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

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
from touche_llm.ranking.comparer import Comparands, Comparer
from touche_llm.ranking.cross_encoder import DocumentScorer
from touche_llm.ranking.registry import (
    CombiningMethod,
    ComparingMethod,
    RankingMethod,
    ReorderingMethod,
    ScoringMethod,
)
from touche_llm.ranking.scores import (
    NamedRanking,
    PartialRanking,
    TopicDocuments,
    rank_by_first_stage,
    rank_by_judgment,
)
from touche_llm.ranking.steps import JUDGE, RankingSettings, Step, needs_texts
from touche_llm.retrieval.corpus import Documents
from touche_llm.tasks.parts import FIRST_STAGE, Objective
from touche_llm.tasks.task import Task


class StepModels(Protocol):
    """Models of the steps of one topic."""

    def make_comparer(self, step: Step) -> Comparer:
        """Return the comparer of a step."""

    async def score(self, documents: Sequence[str]) -> list[float]:
        """Return the scores of the cross-encoder, in the order of the documents."""


async def rank_topic(
    topic: TopicDocuments,
    steps: Sequence[Step],
    settings: RankingSettings,
    models: StepModels,
) -> PartialRanking:
    """Rank the documents of one topic in several steps.

    Each step reranks the best documents so far; those below stay. Its scores, between 0 and 1, are
    raised by the number of the step, so that they stay above those of the documents that it did not
    rerank.
    """
    # The latest comes first, since it breaks ties of a fusion.
    earlier = [NamedRanking(FIRST_STAGE, PartialRanking(topic.first_stage, []))]
    if steps and steps[0].name == JUDGE:
        earlier.insert(0, NamedRanking(JUDGE, topic.judged.ranking))

    ranking = earlier[0].ranking
    for number, step in enumerate(steps, start=1):
        method = settings.find_method(step.name)
        top = ranking.take(step.depth)
        if method is None or len(top) < 2:
            continue

        below = ranking.drop(step.depth)
        if isinstance(method, ReorderingMethod):
            order = method.reorder(top.documents, topic)
            ranking = _join(top.reorder(order), below)
            continue

        found = await _rerank(top.documents, step, method, models, earlier)
        if found:
            ranking = _join(_raise_scores(found, top.documents, number), below)
            earlier.insert(0, NamedRanking(step.name, PartialRanking(found, [])))
    return ranking


def _join(top: PartialRanking, below: PartialRanking) -> PartialRanking:
    """Return one ranking of two, of which the second has scores only if all of the first have one."""
    return PartialRanking(top.scored + below.scored, top.unscored + below.unscored)


async def _rerank(
    documents: list[str],
    step: Step,
    method: RankingMethod,
    models: StepModels,
    earlier: Sequence[NamedRanking],
) -> list[ScoredDocument]:
    """Rerank documents by the method of a step; return none to leave the order as it is."""
    match method:
        case ComparingMethod():
            return await method.rerank(documents, models.make_comparer(step))
        case ScoringMethod():
            return await method.rerank(documents, models.score)
        case CombiningMethod():
            return method.combine(documents, earlier)
    raise TypeError(f"step {step}: {type(method).__name__} is none of the methods of the registry")


def _raise_scores(
    found: Sequence[ScoredDocument], documents: Sequence[str], number: int
) -> PartialRanking:
    """Return the ranking of a step above those of earlier ones.

    Args:
        found: Documents that the step ranked, with scores from 0 to 1.
        documents: All documents that it could rank; the others come last, in their order.
        number: Number of the step, from 1.
    """
    scored = [ScoredDocument(document.document_id, number + document.score) for document in found]
    ranked = {document.document_id for document in found}
    for document_id in documents:
        if document_id not in ranked:
            scored.append(ScoredDocument(document_id, number + 0.0))
    return PartialRanking(scored, [])


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
        clients: list[ModelClient | PoolingClient] = []
        if self.builder is not None:
            clients.append(self.builder.model)
        if self.reranker is not None:
            clients.append(self.reranker)
        return clients

    @property
    def concurrency(self) -> int:
        """Maximum number of comparisons at a time; 1 if no step compares."""
        return 1 if self.builder is None else self.builder.concurrency

    def choose_steps(self, topic: Topic) -> tuple[Step, ...]:
        """Return the steps for a topic: without objects, where a task needs them, those without a model.

        The failure to find the objects is recorded already.
        """
        lacks_objects = self.task.objects_answer is not None and topic.objects is None
        if not lacks_objects:
            return self.steps
        return tuple(step for step in self.steps if not needs_texts([step]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedTopics:
    """Rankings of all topics, each topic by topic.

    Attributes:
        lines: Lines of the run.
        comparisons: Comparisons behind them.
        failures: Failed comparisons.
    """

    lines: list[RunLine]
    comparisons: list[Comparison]
    failures: list[Failure]


async def rank_topics(
    topics: list[Topic],
    candidates: Mapping[str, list[Candidate]],
    judgments: Mapping[str, Mapping[str, Judgment]],
    stances: Mapping[str, Mapping[str, str]],
    plan: RankingPlan,
    done: Done,
) -> RankedTopics:
    """Rank the candidates of all topics.

    Requests of all topics share the builder's concurrency.

    Args:
        topics: Topics, in the order of the run.
        candidates: Candidates by topic.
        judgments: Judgments by topic and document.
        stances: Stances by topic and document; documents without one are left out.
        plan: Plan of the ranking.
        done: Is called after each topic.
    """
    ranker = _TopicRanker(
        candidates=candidates,
        judgments=judgments,
        stances=stances,
        plan=plan,
        slots=asyncio.Semaphore(plan.concurrency),
    )

    async def rank_one(topic: Topic) -> _RankedTopic:
        ranked = await ranker.rank(topic)
        done()
        return ranked

    ranked_topics = await map_in_order(rank_one, topics, max(len(topics), 1))
    comparers = [comparer for ranked in ranked_topics for comparer in ranked.comparers]
    return RankedTopics(
        lines=[line for ranked in ranked_topics for line in ranked.lines],
        comparisons=[comparison for comparer in comparers for comparison in comparer.comparisons],
        failures=[failure for comparer in comparers for failure in comparer.failures],
    )


@dataclass(frozen=True, slots=True)
class _RankedTopic:
    """Ranking of one topic.

    Attributes:
        lines: Lines of the run.
        comparers: Comparers of the steps, with their comparisons and failures.
    """

    lines: list[RunLine]
    comparers: list[Comparer]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopicRanker:
    """Ranker of single topics.

    Attributes:
        candidates: Candidates by topic.
        judgments: Judgments by topic and document.
        stances: Stances by topic and document.
        plan: Plan of the ranking.
        slots: Limit on concurrent comparisons of all topics.
    """

    candidates: Mapping[str, list[Candidate]]
    judgments: Mapping[str, Mapping[str, Judgment]]
    stances: Mapping[str, Mapping[str, str]]
    plan: RankingPlan
    slots: asyncio.Semaphore

    async def rank(self, topic: Topic) -> _RankedTopic:
        """Rank the documents of a topic that have a stance."""
        documents = self._gather_documents(topic.id)
        models = _TopicModels(topic, self.plan, self.slots)
        steps = self.plan.choose_steps(topic)
        ranking = await rank_topic(documents, steps, self.plan.settings, models)

        lines = _make_lines(topic.id, ranking, documents.stances, self.plan)
        return _RankedTopic(lines, models.comparers)

    def _gather_documents(self, topic_id: str) -> TopicDocuments:
        """Return the documents of a topic that have a stance, by first stage and by judgments."""
        stances = self.stances.get(topic_id, {})
        ranked = rank_by_first_stage(self.candidates.get(topic_id, []))
        first_stage = [document for document in ranked if document.document_id in stances]
        judged = rank_by_judgment(
            first_stage,
            self.judgments.get(topic_id, {}),
            self.plan.weights,
            self.plan.task.aspects,
        )
        return TopicDocuments(
            first_stage=first_stage,
            judged=judged,
            stances=stances,
            sides=self.plan.task.sides,
        )


def _make_lines(
    topic_id: str,
    ranking: PartialRanking,
    stances: Mapping[str, str],
    plan: RankingPlan,
) -> list[RunLine]:
    """Return the lines of a topic: as many as the task takes, with strictly decreasing scores."""
    kept = ranking.take(plan.task.documents_per_topic.max).fill_scores()
    scores = make_strictly_decreasing([document.score for document in kept])

    lines: list[RunLine] = []
    for document, score in zip(kept, scores, strict=True):
        line = RunLine(
            topic_id=topic_id,
            stance=stances[document.document_id],
            document_id=document.document_id,
            rank=len(lines) + 1,
            score=score,
            tag=plan.tag,
        )
        lines.append(line)
    return lines


class _TopicModels:
    """Models of the steps of one topic, with the comparers that were made.

    Attributes:
        comparers: Comparers of the steps so far.
    """

    def __init__(self, topic: Topic, plan: RankingPlan, slots: asyncio.Semaphore) -> None:
        """Take the topic, the plan with the models, and the limit on concurrent comparisons."""
        self.comparers: list[Comparer] = []
        self._topic = topic
        self._plan = plan
        self._slots = slots
        # Shared by the steps, so that no failed comparison is sent again.
        self._unanswered: set[Comparands] = set()

    def make_comparer(self, step: Step) -> Comparer:
        """Return the comparer of a step, and keep it for its comparisons and failures.

        Raises:
            ValueError: The plan lacks what comparisons need.
        """
        plan = self._plan
        if plan.builder is None or plan.documents is None:
            raise ValueError(
                f"step {step}: compares documents; give the plan builder and documents"
            )
        comparer = Comparer(
            step=str(step),
            topic=self._topic,
            documents=plan.documents,
            question=plan.task.question,
            prompts=plan.prompts,
            builder=plan.builder,
            slots=self._slots,
            objective=plan.objective,
            document_tokens=plan.settings.document_tokens,
            unanswered=self._unanswered,
        )
        self.comparers.append(comparer)
        return comparer

    async def score(self, documents: Sequence[str]) -> list[float]:
        """Return the scores of the cross-encoder, in the order of the documents.

        Raises:
            ValueError: The plan lacks what the cross-encoder needs.
        """
        plan = self._plan
        if plan.reranker is None or plan.documents is None:
            raise ValueError("scores of documents: give the plan reranker and documents")
        scorer = DocumentScorer(
            client=plan.reranker,
            settings=plan.settings.cross_encoder,
            question=plan.task.question,
            documents=plan.documents,
            topic=self._topic,
        )
        return await scorer.score(documents)
