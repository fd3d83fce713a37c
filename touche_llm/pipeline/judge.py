"""Second stage: the model judges the candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from touche_llm.corpus.store import Parts
from touche_llm.data.records import Failure, Judgment, Objects, StanceReading, Topic
from touche_llm.errors import UsageError
from touche_llm.judging.labels import StanceSettings, mean_off_label_mass
from touche_llm.judging.pointwise import RequestBuilder, find_objects, group_judgments, judge_stances
from touche_llm.judging.pointwise import judge as judge_documents
from touche_llm.judging.sentence_pairs import JudgedPairs, PairJudge, PairSettings
from touche_llm.llm.model import ModelClient
from touche_llm.pipeline.candidates import Candidates, add_objects, make_frame, normalise_rankings
from touche_llm.pipeline.corpora import LocalCorpus
from touche_llm.pipeline.progress import Progress
from touche_llm.prompts.prompt import Prompt
from touche_llm.ranking.order import rank_by_first_stage, rank_by_judgment

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


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judge of candidates; each method returns the judgments so far with its results."""

    prompts: Mapping[str, Prompt]
    builder: RequestBuilder
    progress: Progress

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        """Show a stage with the counts of the model.

        Raises:
            ReplayMiss: At its end, if the cache of a replay lacks an answer.
            EngineError: At its end, if the labels of no answer can be read.
        """
        with self.progress.stage(title, total, self.builder.model.counts) as done:
            yield done
        self.builder.model.raise_on_misses()
        self.builder.model.raise_on_unread()

    async def find_objects(self, candidates: Candidates) -> Judgments:
        """Let the model find the objects of topics that name none."""
        task, unnamed = candidates.task, {topic.id for topic in candidates.topics if topic.objects is None}
        if task.objects_answer is None or not unnamed:
            return Judgments(candidates, ())
        prompt = self.prompts["objects"]
        with self.stage("finding objects", len(unnamed)) as done:
            topics, failures = await find_objects(candidates.topics, task, prompt, self.builder, done)
        objects = [
            Objects(topic_id=topic.id, objects=topic.objects, prompt=prompt.label)
            for topic in topics
            if topic.id in unnamed and topic.objects
        ]
        return Judgments(replace(candidates, topics=topics), (), objects=objects, failures=failures)

    async def judge_documents(self, found: Judgments, topics: list[Topic], stance: StanceSettings | None) -> Judgments:
        """Judge documents, and the stance of the best ones if there is a prompt for it."""
        task, depth = found.candidates.task, found.candidates.depth
        rankings = {topic_id: ranking[:depth] for topic_id, ranking in found.candidates.rankings.items()}
        chosen = replace(found.candidates, topics=topics, rankings=rankings)
        documents = chosen.documents
        work = [
            (topic, candidate.document_id)
            for topic, ranking in zip(topics, chosen.list_rankings(), strict=True)
            for candidate in ranking
        ]
        with self.stage("judging", len(work)) as done:
            judgments, failures = await judge_documents(
                work, documents, task.question, self.prompts["judge"], self.builder, done
            )
        found = replace(found, judgments=judgments, failures=[*found.failures, *failures])
        if stance is None or not stance.prompt_depth or "stance" not in self.prompts:
            return found
        stances, failures = await judge_stances(
            _choose_best(chosen, judgments, stance.depth),
            documents,
            task,
            self.prompts["stance"],
            stance.prompt == "both_orders",
            self.builder,
            self.stage,
        )
        return replace(found, stances=stances, failures=[*found.failures, *failures])

    async def judge_pairs(
        self, found: Judgments, topics: list[Topic], settings: PairSettings, parts: Parts
    ) -> Judgments:
        """Judge sentences and the pairs made of them."""
        candidates = found.candidates
        task, rankings, depth = candidates.task, candidates.rankings, candidates.depth
        pair_judge = PairJudge(task, rankings, depth, settings, parts, self.prompts, self.builder, self.stage)
        judged = await pair_judge.judge(topics)
        for topic_id, count in judged.facts["topics with too few pairs"].items():
            wanted = task.documents_per_topic.min
            self.progress.warn(f"topic {topic_id}: {count} pairs, fewer than the {wanted} wanted")
        rankings = normalise_rankings(judged.candidates)
        candidates = replace(candidates, rankings=rankings, source="pairs", are_pairs=True)
        failures = [*found.failures, *judged.failures]
        return replace(found, candidates=candidates, judgments=judged.judgments, pairs=judged, failures=failures)


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

    The prompts are given by purpose: judge, and what the task and its topics need of objects, sentence and stance. The
    stance prompt is used only with settings for it.

    Raises:
        DataError: The corpus lacks a candidate.
        UsageError: The candidates have no corpus.
        ReplayMiss: The cache of a replay lacks an answer.
    """
    await candidates.check()
    work, task = _Judge(prompts, builder, progress), candidates.task
    found = await work.find_objects(candidates)
    topics = [topic for topic in found.candidates.topics if task.objects_answer is None or topic.objects is not None]
    if task.sentence_question is None:
        found = await work.judge_documents(found, topics, stance)
    elif not isinstance(candidates.corpus, LocalCorpus):
        raise UsageError(f"{candidates.source}: pairs are made of the sentences of a corpus on disk")
    else:
        found = await work.judge_pairs(found, topics, pairs or PairSettings(), candidates.corpus.store.parts)
    warn_of_labels(builder.model, prompts, progress)
    return found


def warn_of_labels(model: ModelClient, prompts: Mapping[str, Prompt], progress: Progress) -> None:
    """Warn of answers to prompts whose labels cannot be read, or say nothing."""
    for prompt in prompts.values():
        if counts := model.labels.get(prompt.name):
            for note in counts.list_problems():
                progress.warn(f"prompt {prompt.name}: {note}")


def describe_judgments(judgments: Judgments) -> dict[str, Any]:
    """Return counts of judgments for the metadata."""
    pairs = judgments.pairs
    requested = [*pairs.sentences] if pairs is not None else []
    requested += [judgment for judgment in judgments.judgments if judgment.source != "inherited"]
    return {
        **(pairs.facts if pairs is not None else {}),
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
        ranked = rank_by_judgment(rank_by_first_stage(ranking), grades, task.objectives["both"], task.aspects)
        best = [document.document_id for document in ranked if document.document_id in grades]
        work += [(topic, document_id) for document_id in best[:depth]]
    return work
