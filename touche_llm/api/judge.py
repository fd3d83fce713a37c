"""Second stage: the model judges the candidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from touche_llm.api.corpora import LocalCorpus
from touche_llm.api.progress import Progress
from touche_llm.data.records import Candidate, Failure, Judgment, Objects, StanceReading, Topic
from touche_llm.errors import UsageError
from touche_llm.judging.judgments import group_judgments
from touche_llm.judging.judgments import judge as judge_documents
from touche_llm.judging.objects import find_objects
from touche_llm.judging.requests import Done, RequestBuilder, Stage
from touche_llm.judging.result import Judgments
from touche_llm.judging.stance_labels import StanceSettings
from touche_llm.judging.stances import judge_stances
from touche_llm.kinds.pairs.judging import PairJudge
from touche_llm.kinds.pairs.settings import PairSettings
from touche_llm.llm.model import ModelClient
from touche_llm.prompts.prompt import Prompt
from touche_llm.ranking.scores import rank_by_first_stage, rank_by_judgment
from touche_llm.retrieval.candidates import Candidates, normalise_rankings


async def judge(
    candidates: Candidates,
    prompts: Mapping[str, Prompt],
    builder: RequestBuilder,
    progress: Progress,
    *,
    stance: StanceSettings | None = None,
    pairs: PairSettings | None = None,
) -> Judgments:
    """Judge candidates; of sentences, make pairs and judge these.

    Args:
        candidates: Candidates to judge.
        prompts: Prompts by purpose: judge, and what the task and its topics need of objects,
            sentence and stance.
        builder: Builder of the requests.
        progress: Display of the progress.
        stance: Settings of the stance prompt, which is used only with them.
        pairs: Settings of sentence pairs; None for the defaults.

    Raises:
        DataError: The corpus lacks a candidate.
        UsageError: Pairs are to be made, and the corpus is not on disk.
        EngineError: The engine failed.
        ReplayMiss: The cache of a replay lacks an answer.
    """
    await candidates.check()
    stage = partial(_show_stage, progress=progress, model=builder.model)

    named = _NamedTopics(topics=candidates.topics, all_topics=candidates.topics)
    if candidates.task.objects_answer is not None and _list_unnamed(candidates.topics):
        named = await _name_topics(candidates, prompts["objects"], builder, stage)
        candidates = replace(candidates, topics=named.all_topics)

    if candidates.task.sentence_question is None:
        judgments = await _judge_documents(candidates, named, prompts, builder, stage, stance)
    else:
        judgments = await _judge_pairs(candidates, named, prompts, builder, stage, pairs, progress)
    warn_of_labels(builder.model, prompts, progress)
    return judgments


@contextmanager
def _show_stage(
    title: str, total: int, *, progress: Progress, model: ModelClient
) -> Iterator[Done]:
    """Show the progress of a stage of requests, and raise the errors of the model at its end.

    Args:
        title: Title of the stage.
        total: Number of requests.
        progress: Display of the progress.
        model: Model that answers.

    Yields:
        Function to call after each request.
    """
    with progress.stage(title, total, model.counts) as done:
        yield done
    model.raise_on_misses()
    model.raise_on_unread()


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedTopics:
    """Topics with their objects, if the task has some.

    Attributes:
        topics: Topics to judge documents for: without those whose objects are unknown.
        all_topics: All topics, in the order of the run.
        found: Objects that the model found.
        failures: Failed requests for objects.
    """

    topics: list[Topic]
    all_topics: list[Topic]
    found: Sequence[Objects] = ()
    failures: Sequence[Failure] = ()


async def _name_topics(
    candidates: Candidates,
    prompt: Prompt,
    builder: RequestBuilder,
    stage: Stage,
) -> _NamedTopics:
    """Find the objects of the topics that name none; there is at least one."""
    unnamed = _list_unnamed(candidates.topics)
    with stage("finding objects", len(unnamed)) as done:
        topics, failures = await find_objects(
            candidates.topics, candidates.task, prompt, builder, done
        )

    found: list[Objects] = []
    for topic in topics:
        if topic.id in unnamed and topic.objects is not None:
            found.append(Objects(topic_id=topic.id, objects=topic.objects, prompt=prompt.label))

    return _NamedTopics(
        topics=[topic for topic in topics if topic.objects is not None],
        all_topics=topics,
        found=found,
        failures=failures,
    )


def _list_unnamed(topics: Iterable[Topic]) -> set[str]:
    """Return the ids of the topics that name no objects."""
    return {topic.id for topic in topics if topic.objects is None}


async def _judge_pairs(
    candidates: Candidates,
    named: _NamedTopics,
    prompts: Mapping[str, Prompt],
    builder: RequestBuilder,
    stage: Stage,
    settings: PairSettings | None,
    progress: Progress,
) -> Judgments:
    """Judge sentences, make pairs of them and judge these.

    Raises:
        UsageError: The corpus is not on disk.
    """
    if not isinstance(candidates.corpus, LocalCorpus):
        raise UsageError(
            f"{candidates.source}: pairs are made of the sentences of a corpus on disk"
        )
    pair_judge = PairJudge(
        task=candidates.task,
        rankings=candidates.rankings,
        depth=candidates.depth,
        settings=settings or PairSettings(),
        parts=candidates.corpus.store.parts,
        prompts=prompts,
        builder=builder,
        stage=stage,
        failures=[*named.failures],
    )
    judged = await pair_judge.judge(named.topics)

    min_pairs = pair_judge.min_pairs
    for topic, pairs in zip(named.topics, judged.rankings, strict=True):
        if len(pairs) < min_pairs:
            progress.warn(
                f"topic {topic.id}: {len(pairs)} pairs, fewer than the {min_pairs} wanted"
            )

    made = replace(
        candidates,
        rankings=normalise_rankings(judged.rankings),
        source="pairs",
        are_pairs=True,
    )
    return Judgments(
        candidates=made,
        judgments=judged.judgments,
        objects=named.found,
        sentences=judged.sentences,
        failures=judged.failures,
    )


async def _judge_documents(
    candidates: Candidates,
    named: _NamedTopics,
    prompts: Mapping[str, Prompt],
    builder: RequestBuilder,
    stage: Stage,
    settings: StanceSettings | None,
) -> Judgments:
    """Judge documents, and the stance of the best ones if there is a prompt for it."""
    task = candidates.task
    rankings: dict[str, list[Candidate]] = {}
    for topic_id, ranking in candidates.rankings.items():
        rankings[topic_id] = ranking[: candidates.depth]
    chosen = replace(candidates, topics=named.topics, rankings=rankings)

    work: list[tuple[Topic, str]] = []
    for topic, ranking in zip(chosen.topics, chosen.list_rankings(), strict=True):
        for candidate in ranking:
            work.append((topic, candidate.document_id))

    prompt = prompts["judge"]
    with stage("judging", len(work) * len(prompt.sent)) as done:
        judgments, failures = await judge_documents(
            work, chosen.documents, task.question, prompt, builder, done
        )

    stances: list[StanceReading] = []
    stance_failures: list[Failure] = []
    if settings is not None and settings.depth and "stance" in prompts:
        stances, stance_failures = await judge_stances(
            _choose_best(chosen, judgments, settings.depth),
            chosen.documents,
            task,
            prompts["stance"],
            settings.prompt == "both_orders",
            builder,
            stage,
        )

    return Judgments(
        candidates=candidates,
        judgments=judgments,
        stances=stances,
        objects=named.found,
        failures=[*named.failures, *failures, *stance_failures],
    )


def warn_of_labels(model: ModelClient, prompts: Mapping[str, Prompt], progress: Progress) -> None:
    """Warn of answers to prompts whose labels cannot be read, or say nothing."""
    for prompt in prompts.values():
        counts = model.labels.get(prompt.name)
        if counts is None:
            continue
        for problem in counts.list_problems():
            progress.warn(f"prompt {prompt.name}: {problem}")


def _choose_best(
    candidates: Candidates,
    judgments: Sequence[Judgment],
    depth: int,
) -> list[tuple[Topic, str]]:
    """Return the `depth` best judged documents of each topic.

    The task's weights decide: the run's weights must not change which requests are made.
    """
    task = candidates.task
    judged = group_judgments(judgments)

    best: list[tuple[Topic, str]] = []
    for topic, candidates_of_topic in zip(
        candidates.topics, candidates.list_rankings(), strict=True
    ):
        of_topic = judged[topic.id]
        ranking = rank_by_judgment(
            rank_by_first_stage(candidates_of_topic),
            of_topic,
            task.objectives["both"],
            task.aspects,
        )
        document_ids = [scored.document_id for scored in ranking]
        judged_ids = [document_id for document_id in document_ids if document_id in of_topic]
        best.extend((topic, document_id) for document_id in judged_ids[:depth])
    return best
