"""Ranking of all topics: each goes through the steps by itself, concurrently with the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from touche_llm.data.concurrency import Slots, map_in_order
from touche_llm.data.records import Candidate, Comparison, Failure, Judgment, RunLine, Topic
from touche_llm.data.trec_runs import make_strictly_decreasing
from touche_llm.judging.pointwise import Documents, Done, RequestBuilder
from touche_llm.llm.counts import Counts
from touche_llm.prompts.prompt import Prompt
from touche_llm.ranking.comparer import Comparer, Kind
from touche_llm.ranking.cross_encoder import CrossEncoder, Score
from touche_llm.ranking.order import rank_by_first_stage, rank_by_judgment, replace_marks
from touche_llm.ranking.steps import METHODS, RankingSettings, Step, rank_topic
from touche_llm.tasks.base import Task
from touche_llm.tasks.definition import Objective


@dataclass(frozen=True, slots=True)
class RankingPlan:
    """How all topics are ranked."""

    task: Task
    weights: Mapping[str, float]
    steps: tuple[Step, ...]
    settings: RankingSettings
    tag: str


@dataclass(frozen=True, slots=True)
class ComparisonResources:
    """Request builder, prompts, documents and criterion of the steps that compare documents."""

    builder: RequestBuilder
    prompts: Mapping[str, Prompt]
    documents: Documents
    objective: Objective


@dataclass(frozen=True, slots=True)
class RankingModels:
    """The models that the steps use; None for a model that no step needs."""

    comparisons: ComparisonResources | None = None
    cross_encoder: CrossEncoder | None = None

    @property
    def counts(self) -> Counts | None:
        """Counts of the requests to show with the progress, those of comparisons if there are any."""
        if self.comparisons is not None:
            return self.comparisons.builder.model.counts
        return None if self.cross_encoder is None else self.cross_encoder.client.counts

    def check_results(self) -> None:
        """Raise ReplayMiss if the cache of a replay lacked a result, and EngineError if no label could be read."""
        if self.comparisons is not None:
            self.comparisons.builder.model.raise_on_misses()
            self.comparisons.builder.model.raise_on_unread()
        if self.cross_encoder is not None:
            self.cross_encoder.client.raise_on_misses()


NO_MODELS = RankingModels()


@dataclass(slots=True)
class RankedTopics:
    """The lines of a run, with the comparisons behind them and the failed ones, topic by topic."""

    lines: list[RunLine] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


async def rank_topics(
    topics: list[Topic],
    candidates: Mapping[str, list[Candidate]],
    judgments: Mapping[str, Mapping[str, Judgment]],
    stances: Mapping[str, Mapping[str, str]],
    plan: RankingPlan,
    models: RankingModels,
    done: Done,
) -> RankedTopics:
    """Rank the candidates of all topics; documents without a stance label are left out.

    Requests of all topics share the builder's concurrency; those of earlier topics go first, so that a server's prefix
    cache serves the requests of a topic together.
    """
    resources = models.comparisons
    slots = Slots(resources.builder.concurrency) if resources is not None else None

    async def rank_one(item: tuple[int, Topic]) -> tuple[list[RunLine], list[Comparer]]:
        position, topic = item
        labels = stances.get(topic.id, {})
        ranked = rank_by_first_stage(candidates.get(topic.id, []))
        first_stage = [scored for scored in ranked if scored.document_id in labels]
        judged = rank_by_judgment(first_stage, judgments.get(topic.id, {}), plan.weights, plan.task.scales)
        comparers: list[Comparer] = []
        unanswered: set[tuple[Kind, tuple[str, ...]]] = set()

        def use_model(step: Step) -> Comparer | Score:
            if METHODS[step.name].kind is None:
                assert models.cross_encoder is not None
                return partial(models.cross_encoder.score, topic)
            assert resources is not None and slots is not None
            comparer = Comparer(
                step=str(step),
                topic=topic,
                position=position,
                documents=resources.documents,
                question=plan.task.question,
                prompts=resources.prompts,
                builder=resources.builder,
                slots=slots,
                objective=resources.objective,
                document_tokens=plan.settings.document_tokens,
                unanswered=unanswered,
            )
            comparers.append(comparer)
            return comparer

        steps = _select_steps(topic, plan)
        ranking = await rank_topic(first_stage, judged, steps, plan.settings, use_model, labels, plan.task.sides)
        ranking = ranking[: plan.task.max_per_topic]
        scores = make_strictly_decreasing(replace_marks(ranking))
        done()
        return [
            RunLine(topic.id, labels[scored.document_id], scored.document_id, rank, score, plan.tag)
            for rank, (scored, score) in enumerate(zip(ranking, scores, strict=True), start=1)
        ], comparers

    result = RankedTopics()
    for lines, comparers in await map_in_order(rank_one, enumerate(topics), max(len(topics), 1)):
        result.lines += lines
        for comparer in comparers:
            result.comparisons += comparer.comparisons
            result.failures += comparer.failures
    return result


def _select_steps(topic: Topic, plan: RankingPlan) -> tuple[Step, ...]:
    """Leave out steps with a model if the topic's objects are unknown; the failure to find them is recorded."""
    if plan.task.objects_answer is None or topic.objects is not None:
        return plan.steps
    return tuple(step for step in plan.steps if step.name not in METHODS)
