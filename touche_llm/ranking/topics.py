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
from touche_llm.judging.requests import Done, Requester
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
    TopicInputs,
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
    topic: TopicInputs,
    steps: Sequence[Step],
    settings: RankingSettings,
    models: StepModels,
) -> PartialRanking:
    """Rank the documents of one topic in several steps, as `judge` and then `pairwise:10`.

    Each step reranks the best documents of the ranking so far; the documents below stay below.
    """
    # Rankings that a later step may fuse, the latest first, since it breaks ties.
    fusable = _list_initial_rankings(topic, steps)
    ranking = fusable[0].ranking
    for number, step in enumerate(steps, start=1):
        method = settings.find_method(step.name)
        top = ranking.take(step.depth)
        below = ranking.drop(step.depth)
        # `judge` has no method, since its ranking is one of the initial ones.
        if method is None or len(top) < 2:
            continue

        if isinstance(method, ReorderingMethod):
            new_order = method.reorder(top.documents, topic)
            ranking = _join(top.reorder(new_order), below)
            continue

        reranked = await _rerank(top.documents, step, method, models, fusable)
        if reranked:
            new_top = _raise_scores(reranked, top.documents, number)
            ranking = _join(new_top, below)
            fusable.insert(0, NamedRanking(step.name, PartialRanking(reranked, [])))
    return ranking


def _list_initial_rankings(topic: TopicInputs, steps: Sequence[Step]) -> list[NamedRanking]:
    """Return the rankings of a topic before its steps; the steps begin with the first of them.

    It is the ranking by judgments if `judge` is the first step, and else that of the first stage.
    """
    first_stage = NamedRanking(FIRST_STAGE, PartialRanking(topic.first_stage, []))
    if steps and steps[0].name == JUDGE:
        return [NamedRanking(JUDGE, topic.judged.ranking), first_stage]
    return [first_stage]


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
    """Rerank documents by the method of a step; return no document to leave the order as it is.

    Args:
        documents: Documents, best first.
        step: Step of the ranking.
        method: Method of the step, with its settings.
        models: Models that compare or score documents.
        earlier: Rankings that the step may fuse, the latest first.
    """
    match method:
        case ComparingMethod():
            return await method.rerank(documents, models.make_comparer(step))
        case ScoringMethod():
            return await method.rerank(documents, models.score)
        case CombiningMethod():
            return method.combine(documents, earlier)
    raise TypeError(f"step {step}: {type(method).__name__} is none of the methods of the registry")


def _raise_scores(
    reranked: Sequence[ScoredDocument], documents: Sequence[str], number: int
) -> PartialRanking:
    """Return the ranking of a step with scores that no document of an earlier step exceeds.

    Step n adds n to its scores from 0 to 1: those of step 1 are from 1 to 2, of step 2 from 2 to 3.

    Args:
        reranked: Documents that the step ranked, with scores from 0 to 1.
        documents: All documents that the step could rank. Documents that it left out come last, in
            their order.
        number: Number of the step, from 1.
    """
    scored: list[ScoredDocument] = []
    for document in reranked:
        scored.append(ScoredDocument(document.document_id, number + document.score))

    reranked_ids = {document.document_id for document in reranked}
    for document_id in documents:
        if document_id not in reranked_ids:
            scored.append(ScoredDocument(document_id, float(number)))
    return PartialRanking(scored, [])


@dataclass(frozen=True, slots=True)
class RankingPlan:
    """How all topics are ranked, and with which documents and models; None for what no step needs.

    Attributes:
        weights: Weights of grades and first-stage score.
        objective: Criterion of the comparisons.
        prompts: Prompts of the comparisons, by kind.
        requester: Client of the model, and the builder of its requests for comparisons.
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
    requester: Requester | None = None
    reranker: PoolingClient | None = None

    @property
    def clients(self) -> list[ModelClient | PoolingClient]:
        """Clients of the model that compares and of the cross-encoder, if a step needs them."""
        clients: list[ModelClient | PoolingClient] = []
        if self.requester is not None:
            clients.append(self.requester.client)
        if self.reranker is not None:
            clients.append(self.reranker)
        return clients

    @property
    def concurrency(self) -> int:
        """Maximum number of comparisons at a time; 1 if no step compares."""
        return 1 if self.requester is None else self.requester.concurrency

    def choose_steps(self, topic: Topic) -> tuple[Step, ...]:
        """Return the steps for a topic.

        The prompts of some tasks name two objects to compare, as bicycle and car. If the objects of
        a topic are unknown, no prompt can be rendered, and only steps without a model remain.
        """
        needs_objects = self.task.objects_answer is not None
        if not needs_objects or topic.objects is not None:
            return self.steps
        # Models read the texts of documents; the other steps reorder ids and scores.
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

    Requests of all topics share the requester's concurrency.

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

    # All topics are ranked at once, since the slots limit the requests.
    concurrent_topics = max(len(topics), 1)
    ranked_topics = await map_in_order(rank_one, topics, concurrent_topics)
    return _collect_topics(ranked_topics)


def _collect_topics(ranked_topics: Sequence[_RankedTopic]) -> RankedTopics:
    """Return the lines, comparisons and failures of all topics, topic by topic."""
    lines: list[RunLine] = []
    comparisons: list[Comparison] = []
    failures: list[Failure] = []
    for ranked in ranked_topics:
        lines.extend(ranked.lines)
        for comparer in ranked.comparers:
            comparisons.extend(comparer.comparisons)
            failures.extend(comparer.failures)
    return RankedTopics(lines=lines, comparisons=comparisons, failures=failures)


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
        inputs = self._make_inputs(topic.id)
        steps = self.plan.choose_steps(topic)
        models = _TopicModels(topic, self.plan, self.slots)
        ranking = await rank_topic(inputs, steps, self.plan.settings, models)

        lines = _make_lines(topic.id, ranking, inputs.stances, self.plan)
        return _RankedTopic(lines, models.comparers)

    def _make_inputs(self, topic_id: str) -> TopicInputs:
        """Return the documents of a topic, ranked by the first stage and by their judgments.

        Documents without a stance are left out, since each line of a run needs one.
        """
        candidates = self.candidates.get(topic_id, [])
        judgments = self.judgments.get(topic_id, {})
        stances = self.stances.get(topic_id, {})

        ranked = rank_by_first_stage(candidates)
        first_stage = [document for document in ranked if document.document_id in stances]
        judged = rank_by_judgment(
            first_stage,
            judgments,
            self.plan.weights,
            self.plan.task.aspects,
        )
        return TopicInputs(
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
    max_documents = plan.task.documents_per_topic.max
    documents = ranking.take(max_documents).fill_scores()
    scores = make_strictly_decreasing([document.score for document in documents])

    lines: list[RunLine] = []
    for document, score in zip(documents, scores, strict=True):
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
        """Return the comparer of a step, and keep it, since it collects comparisons and failures.

        Raises:
            ValueError: The plan has no model or no documents to compare.
        """
        plan = self._plan
        if plan.requester is None or plan.documents is None:
            raise ValueError(
                f"step {step}: compares documents; give the plan requester and documents"
            )

        comparer = Comparer(
            step=str(step),
            topic=self._topic,
            documents=plan.documents,
            question=plan.task.question,
            prompts=plan.prompts,
            requester=plan.requester,
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
            ValueError: The plan has no cross-encoder or no documents to score.
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
