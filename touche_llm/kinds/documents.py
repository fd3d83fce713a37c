"""The kind of task that ranks the documents that the first stage retrieves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from touche_llm.data.records import Candidate, Judgment
from touche_llm.judging.judgments import group_judgments
from touche_llm.judging.requests import TopicDocument
from touche_llm.judging.result import Judgments
from touche_llm.judging.stance_labels import StanceSettings
from touche_llm.judging.stances import StanceJudge
from touche_llm.kinds.registry import JudgingInputs, Kind, register
from touche_llm.ranking.scores import rank_by_first_stage, rank_by_judgment
from touche_llm.retrieval.candidates import Candidates
from touche_llm.tasks.task import Task


class DocumentKind(Kind):
    """Each document is judged by itself; then the stance of the best ones, if there is a prompt."""

    name = "documents"
    help = "the documents that the first stage retrieves, each judged by itself"
    reference = "https://touche.webis.de"
    order = 10

    def find_task_problem(self, task: Task) -> str | None:
        """Return what a task lacks to be of this kind; see the base class."""
        if task.sentence_aspects:
            return "sentence_aspects: only with a kind that judges sentences, such as `kind: pairs`; leave it out"
        return None

    async def judge(self, inputs: JudgingInputs) -> Judgments:
        """Judge the candidates, and the stance of the best ones; see the base class."""
        candidates = _select_candidates(inputs)
        judged = await inputs.judge(_list_work(candidates), inputs.documents, title="judging")
        judgments = Judgments(
            candidates=inputs.candidates,
            judgments=judged.results,
            failures=judged.failures,
        )

        settings = inputs.stance
        has_stance_prompt = "stance" in inputs.prompts
        if settings is None or settings.depth == 0 or not has_stance_prompt:
            return judgments
        return await _judge_stances(inputs, candidates, judgments, settings)


def _select_candidates(inputs: JudgingInputs) -> Candidates:
    """Return the candidates to judge: the best of the topics that are judged."""
    candidates = inputs.candidates
    rankings: dict[str, list[Candidate]] = {}
    for topic_id, ranking in candidates.rankings.items():
        rankings[topic_id] = ranking[: candidates.depth]
    return replace(candidates, topics=[*inputs.topics], rankings=rankings)


def _list_work(candidates: Candidates) -> list[TopicDocument]:
    """Return the topics with the ids of their candidates, topic by topic."""
    work: list[TopicDocument] = []
    for topic, ranking in zip(candidates.topics, candidates.list_rankings(), strict=True):
        for candidate in ranking:
            work.append(TopicDocument(topic, candidate.document_id))
    return work


async def _judge_stances(
    inputs: JudgingInputs,
    candidates: Candidates,
    judgments: Judgments,
    settings: StanceSettings,
) -> Judgments:
    """Return judgments with the stances of the best judged documents."""
    judge = StanceJudge(
        task=inputs.task,
        question=inputs.task.questions["stance"],
        prompt=inputs.prompts["stance"],
        has_both_orders=settings.prompt == "both_orders",
        requester=inputs.requester,
    )
    best = _choose_best(candidates, judgments.judgments, settings.depth)
    stances = await judge.judge(best, inputs.documents, inputs.stage)
    return replace(
        judgments,
        stances=stances.results,
        failures=[*judgments.failures, *stances.failures],
    )


def _choose_best(
    candidates: Candidates,
    judgments: Sequence[Judgment],
    depth: int,
) -> list[TopicDocument]:
    """Return the `depth` best judged documents of each topic.

    The task's weights decide: the run's weights must not change which requests are made.
    """
    task = candidates.task
    judgments_by_topic = group_judgments(judgments)

    best: list[TopicDocument] = []
    for topic, ranking in zip(candidates.topics, candidates.list_rankings(), strict=True):
        judged = judgments_by_topic[topic.id]
        ranked = rank_by_judgment(
            rank_by_first_stage(ranking),
            judged,
            task.objectives["both"],
            task.aspects,
        )
        judged_ids = [name for name in ranked.ranking.documents if name in judged]
        best.extend(TopicDocument(topic, document_id) for document_id in judged_ids[:depth])
    return best


register(DocumentKind())
