"""Second stage: the model judges the candidates."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from touche_llm.config import Config
from touche_llm.corpus.store import Parts
from touche_llm.data.files import open_atomic, write_records
from touche_llm.data.records import Candidate, Failure, Judgment, Objects, StanceReading, Topic
from touche_llm.data.trec_runs import write_candidates
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.pointwise import Documents, RequestBuilder, find_objects, judge_each
from touche_llm.llm.counts import Counts
from touche_llm.llm.model import ModelClient
from touche_llm.pipeline.candidates import check_candidates, choose_topics, open_corpus
from touche_llm.pipeline.common import (
    count_by_kind,
    describe_model_use,
    first_stage_file,
    load_prompts,
    make_request_builder,
    read_stage_candidates,
    report_known_failures,
)
from touche_llm.pipeline.judgments import DocumentGrades, JudgmentWriter
from touche_llm.pipeline.metadata import DEPTH, begin_stage, record_stage
from touche_llm.pipeline.pairs import JudgedPairs, PairJudge
from touche_llm.pipeline.progress import Progress
from touche_llm.pipeline.run_files import CANDIDATES, FAILURES, JUDGMENTS, OBJECTS, SENTENCE_JUDGMENTS, STANCES
from touche_llm.pipeline.run_folder import check_finished, read_metadata
from touche_llm.pipeline.stances import judge_stances
from touche_llm.prompts.prompt import Prompt
from touche_llm.ranking.pointwise import rank_by_first_stage, rank_by_judgment
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task

# A judgment has about 35 values and 740 bytes in its file, so this number stays a quarter below the limits of a file of
# records (`MAX_RECORDS` and `MAX_VALUES` in files.py).
MAX_JUDGMENTS = 150_000


@dataclass(frozen=True, slots=True)
class JudgingResult:
    """Result of a stage that sends requests to the model."""

    judgments: int
    failures: list[Failure]
    counts: Counts


@dataclass(slots=True)
class _Outputs:
    """Outputs of the stage other than the judgments, which are written as they arrive."""

    failures: list[Failure] = field(default_factory=list)
    objects: list[Objects] = field(default_factory=list)
    stances: list[StanceReading] = field(default_factory=list)
    pairs: JudgedPairs | None = None

    def write(self, folder: Path, tag: str, prompts: Mapping[str, Prompt]) -> None:
        """Write the files of the stage."""
        if self.pairs is not None:
            write_candidates(folder / CANDIDATES, self.pairs.candidates, tag)
            write_records(folder / SENTENCE_JUDGMENTS, self.pairs.sentences)
        if "objects" in prompts:
            write_records(folder / OBJECTS, self.objects)
        if "stance" in prompts:
            write_records(folder / STANCES, self.stances)
        write_records(folder / FAILURES, self.failures)


@dataclass(frozen=True, slots=True)
class _Judging:
    """Judging of candidates; knows the settings and the model, but no files."""

    config: Config
    task: Task
    prompts: Mapping[str, Prompt]
    builder: RequestBuilder
    progress: Progress
    outputs: _Outputs

    def stage(self, title: str, total: int) -> AbstractContextManager[Callable[[], None]]:
        """Show a stage with the counts of the model."""
        return self.progress.stage(title, total, self.builder.model.counts)

    async def find_objects(self, topics: list[Topic]) -> list[Topic]:
        """Let the model find the objects of topics that name none; return the topics that have objects."""
        unnamed = {topic.id for topic in topics if topic.objects is None}
        prompt = self.prompts["objects"]
        with self.stage("finding objects", len(unnamed)) as done:
            topics, failures = await find_objects(topics, self.task, prompt, self.builder, done)
        self.builder.model.raise_on_misses()
        self.outputs.failures += failures
        topics = [topic for topic in topics if topic.objects is not None]
        self.outputs.objects += [
            Objects(topic_id=topic.id, objects=topic.objects, prompt=prompt.label)
            for topic in topics
            if topic.id in unnamed and topic.objects
        ]
        return topics

    async def judge_documents(
        self,
        topics: list[Topic],
        candidates: Mapping[str, list[Candidate]],
        documents: Documents,
        writer: JudgmentWriter,
    ) -> None:
        """Judge documents, and the stance of the best ones if there is a prompt for it."""
        chosen = {topic_id: ranking[: self.config.depth] for topic_id, ranking in candidates.items()}
        work = [(topic, candidate.document_id) for topic in topics for candidate in chosen.get(topic.id, [])]

        def take(result: Judgment | Failure) -> None:
            if isinstance(result, Judgment):
                writer.write(result)
            else:
                self.outputs.failures.append(result)

        with self.stage("judging", len(work)) as done:
            await judge_each(work, documents, self.task.question, self.prompts["judge"], self.builder, done, take)
        self.builder.model.raise_on_misses()
        if "stance" in self.prompts and self.config.stance is not None:
            stances, failures = await judge_stances(
                _choose_best(topics, chosen, writer.grades, self.task, self.config.stance.depth),
                documents,
                self.task,
                self.prompts["stance"],
                self.config.stance.both_orders,
                self.builder,
                self.stage,
            )
            self.builder.model.raise_on_misses()
            self.outputs.stances += stances
            self.outputs.failures += failures

    async def judge_pairs(
        self, topics: list[Topic], candidates: Mapping[str, list[Candidate]], parts: Parts, writer: JudgmentWriter
    ) -> None:
        """Judge sentences and the pairs made of them."""
        assert self.config.pairs is not None
        pair_judge = PairJudge(
            self.task,
            self.config.pairs,
            self.config.depth,
            parts,
            self.prompts["sentence"],
            self.prompts["judge"],
            self.builder,
            self.stage,
        )
        judged = self.outputs.pairs = await pair_judge.judge(topics, candidates)
        self.outputs.failures += judged.failures
        for judgment in judged.sentences:
            writer.count(judgment)
        for judgment in judged.judgments:
            writer.write(judgment)
        for topic_id, count in judged.too_few.items():
            self.progress.warn(f"topic {topic_id}: {count} pairs, fewer than the {self.task.min_per_topic} wanted")


async def judge_stage(config: Config, folder: Path, progress: Progress, model: ModelClient) -> JudgingResult:
    """Judge the candidates of the run's folder; write judgments, stances and failures.

    If the task ranks pairs, sentences are judged first, and the candidates are the pairs made of them.

    Raises:
        DataError: The first stage is missing, or was interrupted while it replaced its outputs.
        UsageError: More documents are to be judged than the first stage was asked for.
        ReplayMiss: The cache of a replay lacks an answer; nothing is written.
    """
    started = time.monotonic()
    task = get_task(config.task)
    topics = choose_topics(config)
    check_finished(folder, "retrieve")
    _check_depth(folder, config)
    candidates = read_stage_candidates(folder / first_stage_file(task), config, "retrieve")
    _check_count(folder, [len(candidates.get(topic.id, [])[: config.first_stage_depth]) for topic in topics])
    prompts = load_prompts(config, task, "judge", "objects", "sentence", "stance", warn=progress.warn)
    before = replace(model.counts)
    outputs = _Outputs()
    judging = _Judging(config, task, prompts, make_request_builder(config, model), progress, outputs)
    with open_corpus(config, task, progress.warn) as corpus, open_atomic(folder / JUDGMENTS) as stream:
        writer = JudgmentWriter(stream, keep_grades="stance" in prompts)
        await corpus.fetch(candidate.document_id for ranking in candidates.values() for candidate in ranking)
        check_candidates(folder / first_stage_file(task), candidates.values(), corpus.candidates, corpus.name)
        if "objects" in prompts:
            topics = await judging.find_objects(topics)
        if task.sentence_question is None:
            await judging.judge_documents(topics, candidates, corpus.documents, writer)
        else:
            assert corpus.store is not None
            await judging.judge_pairs(topics, candidates, corpus.store.parts, writer)
        report_known_failures(progress, model, before)
        seconds = time.monotonic() - started
        begin_stage(folder, config, "judge")
        outputs.write(folder, config.tag, prompts)
    facts = describe_model_use(model, prompts, before) | _describe_judging(outputs, writer, prompts, seconds)
    answers = model.counts.requests + model.counts.cache_hits - before.requests - before.cache_hits
    record_stage(folder, config, "judge", facts | {"requests per topic": round(answers / max(len(topics), 1), 1)})
    if outputs.pairs is not None and not any(outputs.pairs.candidates):
        raise DataError(
            f"{folder / SENTENCE_JUDGMENTS}: no topic has two sentences on one side, so there is no pair; read the "
            "judgments of the sentences there, or set pairs.no_side_above higher"
        )
    return JudgingResult(writer.requested, outputs.failures, model.counts)


def _describe_judging(
    outputs: _Outputs, writer: JudgmentWriter, prompts: Mapping[str, Prompt], seconds: float
) -> dict[str, Any]:
    """Return the facts of the stage for the metadata."""
    facts: dict[str, Any] = {}
    if "objects" in prompts:
        facts["objects found by the model"] = {found.topic_id: list(found.objects) for found in outputs.objects}
    if outputs.pairs is not None:
        facts |= outputs.pairs.facts()
    facts |= {"judgments": writer.requested, "judgments without probabilities": writer.without_probabilities}
    if "stance" in prompts:
        facts["documents asked for their stance"] = len(outputs.stances)
    return facts | {
        "failures": count_by_kind(outputs.failures),
        "mean probability outside the labels": writer.off_label_mass.value,
        "seconds": round(seconds, 3),
        "judgments per second": round(writer.requested / seconds, 2) if seconds else None,
    }


def _check_depth(folder: Path, config: Config) -> None:
    """Raise UsageError if the depth exceeds that of the first stage."""
    found = read_metadata(folder).stages.get("retrieve", {}).get(DEPTH)
    if isinstance(found, int) and config.first_stage_depth > found:
        raise UsageError(
            f"{folder}: the first stage has a depth of {found:,} documents per topic, and {config.first_stage_depth:,} "
            f"are to be judged; give --depth {found}, or repeat the first stage with "
            "`touche-llm retrieve --overwrite`"
        )


def _check_count(folder: Path, per_topic: list[int]) -> None:
    """Raise UsageError if there are more documents than a file of judgments can hold."""
    if sum(per_topic) > MAX_JUDGMENTS:
        raise UsageError(
            f"{folder}: {sum(per_topic):,} documents to judge; a run holds at most {MAX_JUDGMENTS:,} judgments; give "
            f"--depth {MAX_JUDGMENTS // len(per_topic)}, or divide the topics among several runs with --topic"
        )


def _choose_best(
    topics: list[Topic],
    candidates: Mapping[str, list[Candidate]],
    judged: Mapping[str, Mapping[str, DocumentGrades]],
    task: Task,
    depth: int,
) -> list[tuple[Topic, str]]:
    """Return the best judged documents of each topic.

    The task's weights decide: the run's weights must not change which requests are made.
    """
    work = []
    for topic in topics:
        grades = judged.get(topic.id, {})
        ranking = rank_by_judgment(rank_by_first_stage(candidates.get(topic.id, [])), grades, task.weights)
        best = [document.document_id for document in ranking if document.document_id in grades]
        work += [(topic, document_id) for document_id in best[:depth]]
    return work
