"""The second stage: the model judges the candidates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from touche_llm.config import Config
from touche_llm.data.files import open_atomic, write_records
from touche_llm.data.records import Candidate, Failure, Judgment, Objects, StanceReading, Topic
from touche_llm.data.trec_runs import write_candidates
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.pointwise import RequestBuilder, find_objects, judge_each
from touche_llm.llm.counts import Counts
from touche_llm.llm.model import LanguageModel
from touche_llm.pipeline.candidates import check_candidates, choose_topics, open_corpus
from touche_llm.pipeline.common import (
    Progress,
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
from touche_llm.pipeline.pairs import judge_pairs
from touche_llm.pipeline.run_files import CANDIDATES, FAILURES, JUDGMENTS, OBJECTS, SENTENCE_JUDGMENTS, STANCES
from touche_llm.pipeline.run_folder import check_finished, read_metadata
from touche_llm.pipeline.stances import judge_stances
from touche_llm.prompts.prompt import Prompt
from touche_llm.ranking.pointwise import rank_by_first_stage, rank_by_judgment
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task

# A judgment has about 35 values and 740 bytes in its file: this many stay below what a file of records may hold
# (`MAX_RECORDS` and `MAX_VALUES` in files.py) with a quarter to spare.
MAX_JUDGMENTS = 150_000


@dataclass(frozen=True, slots=True)
class JudgingResult:
    """How a stage that asks the model ended."""

    judgments: int
    failures: list[Failure]
    counts: Counts


async def judge_stage(config: Config, folder: Path, progress: Progress, model: LanguageModel) -> JudgingResult:
    """Judge the candidates of the run's folder; write judgments, stances and failures.

    Where the task ranks pairs, sentences are judged first, and the candidates are the pairs made of them.

    Raises:
        DataError: the first stage is not there, or was interrupted while it replaced its outputs.
        UsageError: more documents are to be judged than the first stage was asked for.
        ReplayMiss: in replay, when the cache lacks an answer; nothing is written then.
    """
    started = time.monotonic()
    task = get_task(config.task)
    topics = choose_topics(config)
    check_finished(folder, "retrieve")
    _check_depth(folder, config)
    found = read_stage_candidates(folder / first_stage_file(task), config, "retrieve")
    _check_number(folder, [len(found.get(topic.id, [])[: config.first_stage_depth]) for topic in topics])
    builder = make_request_builder(config, model)
    prompts = load_prompts(config, task, "judge", "objects", "sentence", "stance", notify=progress.warn)
    before = replace(model.counts)
    facts: dict[str, Any] = {}
    failures: list[Failure] = []
    objects: list[Objects] = []
    stances: list[StanceReading] = []
    pairs: list[list[Candidate]] | None = None
    sentences: list[Judgment] = []
    with open_corpus(config, task, progress.warn) as corpus, open_atomic(folder / JUDGMENTS) as stream:
        file = JudgmentWriter(stream, keep_grades="stance" in prompts)
        await corpus.fetch(each.document_id for ranking in found.values() for each in ranking)
        check_candidates(folder / first_stage_file(task), found.values(), corpus.candidates, corpus.name)
        if "objects" in prompts:
            topics, failures, objects = await _with_objects(topics, task, prompts, builder, progress)
            facts["objects found by the model"] = {each.topic_id: list(each.objects) for each in objects}
        if task.sentence_question is None:
            chosen = {topic_id: ranking[: config.depth] for topic_id, ranking in found.items()}
            work = [(topic, each.document_id) for topic in topics for each in chosen.get(topic.id, [])]

            def take(each: Judgment | Failure) -> None:
                if isinstance(each, Judgment):
                    file.write(each)
                else:
                    failures.append(each)

            with progress.stage("judging", len(work), model.counts) as done:
                await judge_each(work, corpus.documents, task.question, prompts["judge"], builder, done, take)
            model.raise_on_misses()
            if "stance" in prompts and config.stance is not None:
                stances, unread = await judge_stances(
                    _best(topics, chosen, file.grades, task, config.stance.depth),
                    corpus.documents,
                    task,
                    prompts["stance"],
                    config.stance.both_orders,
                    builder,
                    partial(progress.stage, counts=model.counts),
                )
                model.raise_on_misses()
                failures += unread
        else:
            assert corpus.store is not None
            judged = await judge_pairs(
                topics,
                found,
                corpus.store.parts,
                task,
                config,
                prompts["sentence"],
                prompts["judge"],
                builder,
                partial(progress.stage, counts=model.counts),
            )
            failures += judged.failures
            pairs, sentences = judged.candidates, judged.sentences
            facts |= judged.facts()
            for each in sentences:
                file.count(each)
            for each in judged.judgments:
                file.write(each)
            for topic_id, count in judged.too_few.items():
                progress.warn(f"topic {topic_id}: {count} pairs, fewer than the {task.min_per_topic} wanted")
        report_known_failures(progress, model, before)
        seconds = time.monotonic() - started
        begin_stage(folder, config, "judge")
        if pairs is not None:
            write_candidates(folder / CANDIDATES, pairs, config.tag)
            write_records(folder / SENTENCE_JUDGMENTS, sentences)
        if "objects" in prompts:
            write_records(folder / OBJECTS, objects)
        if "stance" in prompts:
            write_records(folder / STANCES, stances)
        write_records(folder / FAILURES, failures)
    answers = model.counts.asked + model.counts.cache_hits - before.asked - before.cache_hits
    record_stage(
        folder,
        config,
        "judge",
        {
            **describe_model_use(model, prompts, before),
            **facts,
            "judgments": file.asked,
            "judgments without probabilities": file.by_value,
            **({"documents asked for their stance": len(stances)} if "stance" in prompts else {}),
            "failures": count_by_kind(failures),
            "mean probability outside the labels": file.outside.value,
            "requests per topic": round(answers / max(len(topics), 1), 1),
            "seconds": round(seconds, 3),
            "judgments per second": round(file.asked / seconds, 2) if seconds else None,
        },
    )
    if pairs is not None and not any(pairs):
        raise DataError(
            f"{folder / SENTENCE_JUDGMENTS}: no topic has two sentences on one side, so there is no pair; see what the "
            "model says of them there, or set pairs.no_side_above higher"
        )
    return JudgingResult(file.asked, failures, model.counts)


def _check_depth(folder: Path, config: Config) -> None:
    """Raise UsageError if more documents of a topic are to be judged than the first stage was asked for."""
    found = read_metadata(folder).stages.get("retrieve", {}).get(DEPTH)
    if isinstance(found, int) and config.first_stage_depth > found:
        raise UsageError(
            f"{folder}: the first stage found at most {found:,} documents for each topic, and "
            f"{config.first_stage_depth:,} are to be judged; give --depth {found}, or repeat the first stage with "
            "`touche-llm retrieve --overwrite`"
        )


def _check_number(folder: Path, per_topic: list[int]) -> None:
    """Raise UsageError if there is more to judge than a run's file of judgments may hold when it is read."""
    if sum(per_topic) > MAX_JUDGMENTS:
        raise UsageError(
            f"{folder}: {sum(per_topic):,} documents to judge; a run holds at most {MAX_JUDGMENTS:,} judgments; give "
            f"--depth {MAX_JUDGMENTS // len(per_topic)}, or divide the topics among several runs with --topic"
        )


async def _with_objects(
    topics: list[Topic], task: Task, prompts: dict[str, Prompt], builder: RequestBuilder, progress: Progress
) -> tuple[list[Topic], list[Failure], list[Objects]]:
    """The topics that can be asked about, failures, and the objects that the model found."""
    without = [topic.id for topic in topics if topic.objects is None]
    with progress.stage("finding objects", len(without), builder.model.counts) as done:
        topics, failures = await find_objects(topics, task, prompts["objects"], builder, done)
    builder.model.raise_on_misses()
    topics = [topic for topic in topics if topic.objects is not None]
    found = [
        Objects(topic_id=each.id, objects=each.objects, prompt=prompts["objects"].label)
        for each in topics
        if each.id in without and each.objects
    ]
    return topics, failures, found


def _best(
    topics: list[Topic],
    chosen: dict[str, list[Candidate]],
    judged: Mapping[str, Mapping[str, DocumentGrades]],
    task: Task,
    depth: int,
) -> list[tuple[Topic, str]]:
    """The best judged documents of each topic.

    By the task's weights, not the run's: ranking by others must not change what was asked.
    """
    work = []
    for topic in topics:
        grades = judged.get(topic.id, {})
        ranking = rank_by_judgment(rank_by_first_stage(chosen.get(topic.id, [])), grades, task.weights)
        best = [each.document_id for each in ranking if each.document_id in grades]
        work += [(topic, document_id) for document_id in best[:depth]]
    return work
