"""Second stage: the model judges the candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from touche_llm.api.corpora import LocalCorpus
from touche_llm.api.progress import Progress
from touche_llm.api.retrieve import add_objects
from touche_llm.data.records import Failure, Judgment, Objects, StanceReading, Topic
from touche_llm.errors import UsageError
from touche_llm.judging.judgments import group_judgments
from touche_llm.judging.judgments import judge as judge_documents
from touche_llm.judging.objects import find_objects
from touche_llm.judging.requests import Done, RequestBuilder, Stage, TopicDocument
from touche_llm.judging.stance_labels import StanceSettings
from touche_llm.judging.stances import StanceJudge
from touche_llm.llm.model import ModelClient
from touche_llm.pairs.judging import PairJudge
from touche_llm.pairs.settings import PairSettings
from touche_llm.prompts.prompt import Prompt
from touche_llm.ranking.scores import rank_by_first_stage, rank_by_judgment
from touche_llm.retrieval.candidates import Candidates, make_frame, normalise_rankings

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, repr=False)
class Judgments:
    """Judgments of candidates, topic by topic.

    Attributes:
        candidates: What was judged; pairs, if the first stage retrieved sentences. Topics have
            their objects.
        stances: Answers to the stance prompt.
        objects: Objects that the model found for topics that name none.
        sentences: Judgments of the sentences that pairs were made of; None if none were to be made.
    """

    candidates: Candidates
    judgments: Sequence[Judgment]
    stances: Sequence[StanceReading] = ()
    objects: Sequence[Objects] = ()
    sentences: Sequence[Judgment] | None = None
    failures: Sequence[Failure] = ()

    def __repr__(self) -> str:
        topics = {judgment.topic_id for judgment in self.judgments}
        return f"<Judgments: {len(self.judgments):,} of {len(topics):,} topics, {len(self.failures):,} failures>"

    @property
    def requested(self) -> int:
        """Number of judgments made by the model: of candidates, and of sentences."""
        return len(self.list_requested())

    def list_requested(self) -> list[Judgment]:
        """Return the judgments made by the model, of sentences first, without inherited ones."""
        of_candidates = [each for each in self.judgments if each.source != "inherited"]
        return [*(self.sentences or ()), *of_candidates]

    def by_document(self) -> dict[str, dict[str, Judgment]]:
        """Return the judgments by topic id and document id."""
        return dict(group_judgments(self.judgments))

    def to_frame(self) -> DataFrame:
        """Return a row per judgment: topic, document, each grade, and any stance with the probability of each label.

        Grades and stance are those of the judge prompt; `source` says whether they come from
        probabilities.
        """
        task, rows = self.candidates.task, []
        for judgment in self.judgments:
            reading, of_stance = judgment.readings.get("stance"), list[Any]()
            if task.stances:
                shares = (reading.probabilities if reading is not None else None) or {}
                of_stance = [judgment.stance, *map(shares.get, task.stances)]
            grades = map(judgment.grades.get, task.question.grades)
            rows.append(
                (judgment.topic_id, judgment.document_id, *grades, *of_stance, judgment.source)
            )
        stance_columns = (
            ["stance", *(f"p_{label}" for label in task.stances)] if task.stances else []
        )
        return make_frame(
            rows, ("topic", "document", *task.question.grades, *stance_columns, "source")
        )


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

    The prompts are given by purpose: judge, and what the task and its topics need of objects,
    sentence and stance. The stance prompt is used only with settings for it.
    """
    await candidates.check()
    task, model, objects, failures = (
        candidates.task,
        builder.model,
        list[Objects](),
        list[Failure](),
    )

    @contextmanager
    def stage(title: str, total: int) -> Iterator[Done]:
        with progress.stage(title, total, model.counts) as done:
            yield done
        model.raise_on_misses()
        model.labels.raise_on_unread()

    topics = candidates.topics
    if task.objects_answer is not None:
        unnamed = {topic.id for topic in topics if topic.objects is None}
        if unnamed:
            with stage("finding objects", len(unnamed)) as done:
                outcomes = await find_objects(topics, prompts["objects"], builder, done)
            objects = outcomes.results
            failures = outcomes.failures
            topics = add_objects(topics, objects)
        candidates = replace(candidates, topics=topics)
        topics = [topic for topic in topics if topic.objects is not None]
    found = Judgments(candidates, (), objects=objects, failures=failures)
    if task.sentence_question is None:
        found = await _judge_documents(found, topics, prompts, builder, stage, stance)
    elif not isinstance(candidates.corpus, LocalCorpus):
        raise UsageError(
            f"{candidates.source}: pairs are made of the sentences of a corpus on disk"
        )
    else:
        parts, settings = candidates.corpus.store.parts, pairs or PairSettings()
        pair_judge = PairJudge(
            task, candidates.rankings, candidates.depth, settings, parts, prompts, builder, stage
        )
        rankings, judgments, sentences = await pair_judge.judge(topics)
        for topic, made in zip(topics, rankings, strict=True):
            if len(made) < (wanted := pair_judge.min_pairs):
                progress.warn(
                    f"topic {topic.id}: {len(made)} pairs, fewer than the {wanted} wanted"
                )
        candidates = replace(
            candidates, rankings=normalise_rankings(rankings), source="pairs", are_pairs=True
        )
        failures = [*failures, *pair_judge.failures]
        found = Judgments(
            candidates, judgments, objects=objects, sentences=sentences, failures=failures
        )
    warn_of_labels(model, prompts, progress)
    return found


async def _judge_documents(
    found: Judgments,
    topics: list[Topic],
    prompts: Mapping[str, Prompt],
    builder: RequestBuilder,
    stage: Stage,
    stance: StanceSettings | None,
) -> Judgments:
    """Judge the documents of these topics, and the stance of the best ones if there is a prompt for it."""
    task, depth = found.candidates.task, found.candidates.depth
    rankings = {
        topic_id: ranking[:depth] for topic_id, ranking in found.candidates.rankings.items()
    }
    chosen = replace(found.candidates, topics=topics, rankings=rankings)
    documents = chosen.documents
    work = [
        TopicDocument(topic, candidate.document_id)
        for topic, ranking in zip(topics, chosen.list_rankings(), strict=True)
        for candidate in ranking
    ]
    with stage("judging", len(work) * prompts["judge"].requests_per_document) as done:
        judged = await judge_documents(
            work, documents, task.question, prompts["judge"], builder, done
        )
    failures = [*found.failures, *judged.failures]
    stances: list[StanceReading] = []
    if (
        stance is not None
        and stance.depth > 0
        and task.stance_question is not None
        and "stance" in prompts
    ):
        stance_judge = StanceJudge(
            task=task,
            question=task.stance_question,
            prompt=prompts["stance"],
            has_both_orders=stance.prompt == "both_orders",
            builder=builder,
        )
        best = _choose_best(chosen, judged.results, stance.depth)
        outcomes = await stance_judge.judge(best, documents, stage)
        stances = outcomes.results
        failures += outcomes.failures
    return replace(found, judgments=judged.results, stances=stances, failures=failures)


def warn_of_labels(model: ModelClient, prompts: Mapping[str, Prompt], progress: Progress) -> None:
    """Warn of answers to prompts whose labels cannot be read, or say nothing."""
    for prompt in prompts.values():
        if counts := model.labels.summarize(prompt.name):
            for note in counts.list_problems():
                progress.warn(f"prompt {prompt.name}: {note}")


def _choose_best(
    candidates: Candidates, judgments: Sequence[Judgment], depth: int
) -> list[TopicDocument]:
    """Return the `depth` best judged documents of each topic.

    The task's weights decide: the run's weights must not change which requests are made.
    """
    judged = group_judgments(judgments)
    task = candidates.task
    work: list[TopicDocument] = []
    for topic, ranking in zip(candidates.topics, candidates.list_rankings(), strict=True):
        grades = judged.get(topic.id, {})
        ranked = rank_by_judgment(
            rank_by_first_stage(ranking), grades, task.objectives["both"], task.aspects
        )
        best = [document.document_id for document in ranked if document.document_id in grades]
        work += [TopicDocument(topic, document_id) for document_id in best[:depth]]
    return work
