"""Second stage: the model judges the candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from touche_llm.corpus.store import Parts
from touche_llm.data.records import Failure, Judgment, Objects, StanceReading, Topic
from touche_llm.errors import UsageError
from touche_llm.judging.grades import mean_off_label_mass
from touche_llm.judging.pointwise import RequestBuilder, find_objects
from touche_llm.judging.pointwise import judge as judge_documents
from touche_llm.judging.sentence_pairs import PairSettings
from touche_llm.judging.stance import StanceSettings
from touche_llm.pipeline.candidates import Candidates, add_objects, normalise_rankings
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.corpora import LocalCorpus
from touche_llm.pipeline.frames import make_frame
from touche_llm.pipeline.pairs import JudgedPairs, PairJudge, group_judgments
from touche_llm.pipeline.progress import Progress
from touche_llm.pipeline.settings import PURPOSES
from touche_llm.pipeline.stances import judge_stances
from touche_llm.prompts.prompt import Prompt
from touche_llm.ranking.order import rank_by_first_stage, rank_by_judgment
from touche_llm.tasks.base import Task

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, repr=False)
class Judgments:
    """Judgments of candidates.

    Attributes:
        candidates: What was judged; pairs, if the first stage retrieved sentences. Topics have their objects.
        judgments: Judgments of the candidates, topic by topic.
        stances: Answers to the stance prompt.
        objects: Objects that the model found for topics that name none.
        pairs: Judged sentences and counts, if pairs were made.
        failures: Requests without a usable answer.
    """

    candidates: Candidates
    judgments: Sequence[Judgment]
    stances: Sequence[StanceReading] = ()
    objects: Sequence[Objects] = ()
    pairs: JudgedPairs | None = None
    failures: Sequence[Failure] = ()

    def __repr__(self) -> str:
        topics = {judgment.topic_id for judgment in self.judgments}
        return f"<Judgments: {len(self.judgments):,} of {len(topics):,} topics, {len(self.failures):,} failures>"

    @property
    def requested(self) -> int:
        """Number of judgments made by the model: of candidates, and of sentences."""
        inherited = sum(judgment.source == "inherited" for judgment in self.judgments)
        return len(self.judgments) - inherited + (len(self.pairs.sentences) if self.pairs is not None else 0)

    def of_candidates(self, candidates: Candidates) -> Judgments:
        """Return the judgments with other candidates to rank, whose topics take the objects that the model found."""
        topics = add_objects(candidates.topics, self.objects)
        return replace(self, candidates=replace(candidates, topics=topics))

    def by_document(self) -> dict[str, dict[str, Judgment]]:
        """Return the judgments by topic id and document id."""
        return dict(group_judgments(self.judgments))

    def to_frame(self) -> DataFrame:
        """Return a row per judgment: topic, document, each grade, and any stance with the probability of each label.

        Grades and stance are those of the judge prompt; `source` says whether they come from probabilities.
        """
        task = self.candidates.task
        grades = task.question.grades
        rows = []
        for judgment in self.judgments:
            stance = judgment.readings.get("stance")
            shares = (stance.probabilities if stance is not None else None) or {}
            rows.append(
                (
                    judgment.topic_id,
                    judgment.document_id,
                    *(judgment.grades.get(name) for name in grades),
                    *([judgment.stance] if task.stances else []),
                    *(shares.get(label) for label in task.stances),
                    judgment.source,
                )
            )
        stance_columns = ["stance", *(f"p_{label}" for label in task.stances)] if task.stances else []
        columns = ("topic", "document", *grades, *stance_columns, "source")
        return make_frame(rows, columns)


@dataclass(slots=True)
class _Judge:
    """Judging of candidates, whose results are collected part by part."""

    candidates: Candidates
    prompts: Mapping[str, Prompt]
    builder: RequestBuilder
    progress: Progress
    judgments: list[Judgment] = field(default_factory=list)
    stances: list[StanceReading] = field(default_factory=list)
    objects: list[Objects] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    pairs: JudgedPairs | None = None

    @property
    def task(self) -> Task:
        return self.candidates.task

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        """Show a stage with the counts of the model; raise ReplayMiss at its end if the cache lacks an answer."""
        with self.progress.stage(title, total, self.builder.model.counts) as done:
            yield done
        self.builder.model.raise_on_misses()

    async def find_objects(self) -> list[Topic]:
        """Let the model find the objects of topics that name none; return the topics that have objects."""
        topics = self.candidates.topics
        unnamed = {topic.id for topic in topics if topic.objects is None}
        if self.task.objects_answer is None or not unnamed:
            return topics
        prompt = self.prompts["objects"]
        with self.stage("finding objects", len(unnamed)) as done:
            topics, failures = await find_objects(topics, self.task, prompt, self.builder, done)
        self.failures += failures
        self.candidates = replace(self.candidates, topics=topics)
        self.objects += [
            Objects(topic_id=topic.id, objects=topic.objects, prompt=prompt.label)
            for topic in topics
            if topic.id in unnamed and topic.objects
        ]
        return [topic for topic in topics if topic.objects is not None]

    async def judge_documents(self, topics: list[Topic], stance: StanceSettings | None) -> None:
        """Judge documents, and the stance of the best ones if there is a prompt for it."""
        chosen = replace(
            self.candidates,
            topics=topics,
            rankings={id_: ranking[: self.candidates.depth] for id_, ranking in self.candidates.rankings.items()},
        )
        documents = chosen.documents
        work = [
            (topic, candidate.document_id)
            for topic, ranking in zip(topics, chosen.list_rankings(), strict=True)
            for candidate in ranking
        ]
        with self.stage("judging", len(work)) as done:
            self.judgments, failures = await judge_documents(
                work, documents, self.task.question, self.prompts["judge"], self.builder, done
            )
        self.failures += failures
        if stance is None or not stance.prompt_depth or "stance" not in self.prompts:
            return
        self.stances, failures = await judge_stances(
            _choose_best(chosen, self.judgments, stance.depth),
            documents,
            self.task,
            self.prompts["stance"],
            stance.prompt == "both_orders",
            self.builder,
            self.stage,
        )
        self.failures += failures

    async def judge_pairs(self, topics: list[Topic], settings: PairSettings, parts: Parts) -> None:
        """Judge sentences and the pairs made of them."""
        pair_judge = PairJudge(self.candidates, settings, parts, self.prompts, self.builder, self.stage)
        judged = self.pairs = await pair_judge.judge(topics)
        self.failures += judged.failures
        self.judgments = judged.judgments
        self.candidates = replace(
            self.candidates, rankings=normalise_rankings(judged.candidates), source="pairs", are_pairs=True
        )
        for topic_id, count in judged.too_few.items():
            self.progress.warn(f"topic {topic_id}: {count} pairs, fewer than the {self.task.min_per_topic} wanted")


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
        candidates: Candidates of the first stage.
        prompts: Prompts by purpose: judge, and what the task and its topics need of objects, sentence and stance.
        builder: Builder of the requests.
        progress: Receives warnings and the progress.
        stance: Settings of the stance prompt; None if it is not used.
        pairs: Settings of the pairs; None for the defaults.

    Raises:
        DataError: The corpus lacks a candidate.
        UsageError: The candidates have no corpus.
        ReplayMiss: The cache of a replay lacks an answer.
    """
    await candidates.check()
    work = _Judge(candidates, prompts, builder, progress)
    topics = await work.find_objects()
    if candidates.task.sentence_question is None:
        await work.judge_documents(topics, stance)
    else:
        if not isinstance(candidates.corpus, LocalCorpus):
            raise UsageError(f"{candidates.source}: pairs are made of the sentences of a corpus on disk")
        await work.judge_pairs(topics, pairs or PairSettings(), candidates.corpus.store.parts)
    return Judgments(work.candidates, work.judgments, work.stances, work.objects, work.pairs, work.failures)


async def judge_candidates(context: RunContext, candidates: Candidates) -> Judgments:
    """Judge the candidates of a run by its configuration; see `judge`."""
    config = context.config
    return await judge(
        replace(candidates, corpus=context.corpus),
        context.load_prompts(*PURPOSES["judge"]),
        context.builder,
        context.progress,
        stance=config.stance,
        pairs=config.pairs,
    )


def describe_judgments(judgments: Judgments) -> dict[str, Any]:
    """Return counts of judgments for the metadata."""
    pairs = judgments.pairs
    requested = [*pairs.sentences] if pairs is not None else []
    requested += [judgment for judgment in judgments.judgments if judgment.source != "inherited"]
    return {
        **(pairs.facts() if pairs is not None else {}),
        "judgments": len(requested),
        "judgments without probabilities": sum(judgment.source == "value" for judgment in requested),
        "mean probability outside the labels": mean_off_label_mass(requested),
    }


def _choose_best(candidates: Candidates, judgments: Sequence[Judgment], depth: int) -> list[tuple[Topic, str]]:
    """Return the `depth` best judged documents of each topic.

    The task's weights decide: the run's weights must not change which requests are made.
    """
    judged, task, work = group_judgments(judgments), candidates.task, []
    for topic, ranking in zip(candidates.topics, candidates.list_rankings(), strict=True):
        grades = judged.get(topic.id, {})
        ranked = rank_by_judgment(rank_by_first_stage(ranking), grades, task.weights, task.scales)
        best = [document.document_id for document in ranked if document.document_id in grades]
        work += [(topic, document_id) for document_id in best[:depth]]
    return work
