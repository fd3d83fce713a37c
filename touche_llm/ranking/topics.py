"""Ranking all topics: each goes through the steps by itself, and none waits for another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from touche_llm.data.records import Candidate, Comparison, Failure, Judgment, RunLine, Topic
from touche_llm.data.trec_runs import make_strictly_decreasing
from touche_llm.judging.pointwise import Documents, Done, RequestBuilder
from touche_llm.llm.concurrency import Slots, in_order
from touche_llm.prompts.prompt import Prompt
from touche_llm.ranking.comparer import Comparer, Kind
from touche_llm.ranking.pointwise import rank_by_first_stage, rank_by_judgment
from touche_llm.ranking.steps import METHODS, RankingSettings, Step, rank_topic
from touche_llm.tasks.base import Aim, Task


@dataclass(frozen=True, slots=True)
class ComparisonResources:
    """What steps that compare documents need: how to ask, with which prompts, and where the texts are."""

    builder: RequestBuilder
    prompts: Mapping[str, Prompt]
    documents: Documents
    aim: Aim


@dataclass(slots=True)
class RankedTopics:
    """The lines of a run, and the comparisons behind them and their failures, topic by topic."""

    lines: list[RunLine] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


async def rank_topics(
    topics: list[Topic],
    candidates: Mapping[str, list[Candidate]],
    judgments: Mapping[str, Mapping[str, Judgment]],
    stances: Mapping[str, Mapping[str, str]],
    task: Task,
    weights: Mapping[str, float],
    steps: tuple[Step, ...],
    settings: RankingSettings,
    resources: ComparisonResources | None,
    tag: str,
    done: Done,
) -> RankedTopics:
    """The rankings of all topics.

    Requests of all topics share the builder's concurrency; those of earlier topics go first, so that a server's prefix
    cache serves a topic's part together.

    Args:
        topics: in the order of the run.
        candidates: by topic.
        judgments: by topic and document.
        stances: by topic and document; a document without one is left out.
        task: gives the labels and the limit.
        weights: of the grades and of the first stage.
        steps: of the ranking.
        settings: of the steps.
        resources: None where no step compares.
        tag: the run's.
        done: called after each topic.
    """
    slots = Slots(resources.builder.concurrency) if resources is not None else None

    async def rank_one(item: tuple[int, Topic]) -> tuple[list[RunLine], list[Comparer]]:
        position, topic = item
        labels = stances.get(topic.id, {})
        first = [each for each in rank_by_first_stage(candidates.get(topic.id, [])) if each.document_id in labels]
        judged = rank_by_judgment(first, judgments.get(topic.id, {}), weights)
        comparers: list[Comparer] = []
        unanswered: set[tuple[Kind, tuple[str, ...]]] = set()

        def comparer(step: Step) -> Comparer:
            assert resources is not None and slots is not None
            comparers.append(
                Comparer(
                    step=str(step),
                    topic=topic,
                    position=position,
                    documents=resources.documents,
                    question=task.question,
                    prompts=resources.prompts,
                    builder=resources.builder,
                    slots=slots,
                    aim=resources.aim,
                    document_tokens=settings.document_tokens,
                    unanswered=unanswered,
                )
            )
            return comparers[-1]

        # What no objects are known for cannot be asked about; the failure to find them is recorded.
        known = task.objects_answer is None or topic.objects is not None
        possible = steps if known else tuple(step for step in steps if step.name not in METHODS)
        ranking = await rank_topic(first, judged, possible, settings, comparer, labels, task.sides)
        ranking = ranking[: task.max_per_topic]
        scores = make_strictly_decreasing([each.score for each in ranking])
        done()
        return [
            RunLine(topic.id, labels[each.document_id], each.document_id, rank, score, tag)
            for rank, (each, score) in enumerate(zip(ranking, scores, strict=True), start=1)
        ], comparers

    result = RankedTopics()
    for lines, comparers in await in_order(rank_one, enumerate(topics), max(len(topics), 1)):
        result.lines += lines
        for each in comparers:
            result.comparisons += each.comparisons
            result.failures += each.failures
    return result
