"""The last stage: from candidates and judgments to the run."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from touche_llm.config import Config
from touche_llm.data.files import read_records, write_records
from touche_llm.data.records import Candidate, Failure, Judgment, Objects, StanceReading, Topic
from touche_llm.data.trec_runs import write_run
from touche_llm.errors import DataError, shorten
from touche_llm.llm.model import LanguageModel
from touche_llm.pipeline.candidates import check_candidates, choose_topics, open_corpus
from touche_llm.pipeline.common import (
    Progress,
    count_by_kind,
    describe_model_use,
    has_comparisons,
    load_prompts,
    make_request_builder,
    read_stage_candidates,
    report_known_failures,
)
from touche_llm.pipeline.metadata import begin_stage, record_stage
from touche_llm.pipeline.results import ChosenStance, choose_label, write_results
from touche_llm.pipeline.run_files import (
    CANDIDATES,
    COMPARISON_FAILURES,
    COMPARISONS,
    JUDGMENTS,
    OBJECTS,
    RESULTS,
    RUN,
    STANCES,
)
from touche_llm.pipeline.run_folder import check_finished
from touche_llm.ranking.steps import list_comparison_kinds
from touche_llm.ranking.topics import ComparisonResources, RankedTopics, RankingPlan, rank_topics
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task


@dataclass(frozen=True, slots=True)
class RankingResult:
    """How the last stage ended: lines of the run, how many of them have no judgment, and what could not be compared."""

    lines: int
    imputed: int
    failures: list[Failure]


async def rank_stage(
    config: Config, folder: Path, progress: Progress, model: LanguageModel | None = None
) -> RankingResult:
    """Write `run.txt` and `results.tsv` from the folder's candidates and judgments, and what was compared for them.

    Args:
        config: what is asked for.
        folder: the run's.
        progress: Receives warnings and the progress of each stage.
        model: needed where a step of the ranking compares documents.

    Raises:
        DataError: the files of earlier stages are not there, or one was interrupted while it replaced them.
        ReplayMiss: in replay, when the cache lacks an answer; nothing is written then.
    """
    started = time.monotonic()
    task = get_task(config.task)
    topics = choose_topics(config)
    check_finished(folder, "judge")
    candidates = read_stage_candidates(folder / CANDIDATES, config, "judge" if task.sentence_question else "retrieve")
    judgments = _read_judgments(folder, task)
    readings = _read_stances(folder / STANCES, task)
    labels = _labels(config, task, candidates, judgments, readings)
    stances = {topic: {each: found.label for each, found in of_topic.items()} for topic, of_topic in labels.items()}
    if config.stance is not None and config.stance.depth and not (folder / STANCES).exists():
        progress.warn(f"{folder / STANCES}: not there: every label is that of the judge prompt")
    _warn_of_thresholds(config, topics, judgments, readings, progress)
    asked: dict[str, Any] = {}
    if not has_comparisons(config):
        ranked = await _rank(config, task, topics, candidates, judgments, stances, None, progress)
    else:
        assert model is not None
        before = replace(model.counts)
        prompts = load_prompts(config, task, *list_comparison_kinds(config.steps), notify=progress.warn)
        builder = make_request_builder(config, model)
        with open_corpus(config, task, progress.warn) as corpus:
            await corpus.fetch(each.document_id for ranking in candidates.values() for each in ranking)
            check_candidates(folder / CANDIDATES, candidates.values(), corpus.documents, corpus.name)
            resources = ComparisonResources(builder, prompts, corpus.documents, config.aim)
            topics = _with_objects(topics, folder / OBJECTS)
            ranked = await _rank(config, task, topics, candidates, judgments, stances, resources, progress)
        model.raise_on_misses()
        report_known_failures(progress, model, before)
        compared = Counter(comparison.step for comparison in ranked.comparisons)
        asked = {
            **describe_model_use(model, prompts, before),
            "comparisons": dict(compared),
            "failures": count_by_kind(ranked.failures),
        }
    lines = ranked.lines
    behind = [judgments.get(line.topic_id, {}).get(line.document_id) for line in lines]
    imputed = behind.count(None)
    inherited = sum(judgment is not None and judgment.source == "inherited" for judgment in behind)
    sizes = Counter(line.topic_id for line in lines)
    if not lines:
        raise DataError(f"{folder / CANDIDATES}: no candidate to rank for the chosen topics; judge them first")
    left_out = sum(min(len(candidates.get(topic.id, [])), task.max_per_topic) for topic in topics) - len(lines)
    if imputed:
        progress.warn(
            f"{imputed} of {len(lines)} documents have no judgment: first-stage order, stance {task.unknown_stance}"
        )
    if left_out:
        progress.warn(f"{left_out} documents have no judgment and are left out, since {task.name} has no such stance")
    begin_stage(folder, config, "rank")
    if has_comparisons(config):
        write_records(folder / COMPARISONS, ranked.comparisons)
        write_records(folder / COMPARISON_FAILURES, ranked.failures)
    write_results(folder / RESULTS, lines, judgments, labels, task)
    write_run(folder / RUN, lines)
    record_stage(
        folder,
        config,
        "rank",
        {
            "steps": list(config.rank),
            "aim": config.aim,
            "weights": dict(config.weights),
            **asked,
            "lines": len(lines),
            "lines judged by the model": len(lines) - inherited - imputed,
            "lines with inherited grades": inherited,
            "topics with too few lines": {
                topic.id: sizes[topic.id] for topic in topics if sizes[topic.id] < task.min_per_topic
            },
            "stances": {stance: sum(line.stance == stance for line in lines) for stance in task.stances},
            "imputed stances": imputed,
            "left out without a judgment": left_out,
            "seconds": round(time.monotonic() - started, 3),
        },
    )
    return RankingResult(len(lines), imputed, ranked.failures)


async def _rank(
    config: Config,
    task: Task,
    topics: list[Topic],
    candidates: dict[str, list[Candidate]],
    judgments: dict[str, dict[str, Judgment]],
    stances: dict[str, dict[str, str]],
    resources: ComparisonResources | None,
    progress: Progress,
) -> RankedTopics:
    counts = resources.builder.model.counts if resources is not None else None
    with progress.stage("ranking", len(topics), counts) as done:
        return await rank_topics(
            topics,
            candidates,
            judgments,
            stances,
            RankingPlan(task, config.weights, config.steps, config.ranking, config.tag),
            resources,
            done,
        )


def _with_objects(topics: list[Topic], path: Path) -> list[Topic]:
    """The topics with the objects that the judge stage found for those that name none."""
    if not path.exists():
        return topics
    found = {each.topic_id: each.objects for each in read_records(path, Objects, "objects")}
    return [replace(topic, objects=topic.objects or found.get(topic.id)) for topic in topics]


def _read_judgments(folder: Path, task: Task) -> dict[str, dict[str, Judgment]]:
    if not (folder / JUDGMENTS).exists():
        raise DataError(f"{folder / JUDGMENTS}: not there; run `touche-llm judge` for this folder first")
    judgments: dict[str, dict[str, Judgment]] = {}
    for judgment in read_records(folder / JUDGMENTS, Judgment, "judgments"):
        if judgment.stance not in task.stances:
            raise DataError(f"{folder / JUDGMENTS}: stance {judgment.stance!r} is no label of {task.name}")
        judgments.setdefault(judgment.topic_id, {})[judgment.document_id] = judgment
    return judgments


_Readings = dict[tuple[str, str], StanceReading]


def _read_stances(path: Path, task: Task) -> _Readings:
    """What the stance prompt said, by topic and document; nothing where it was not asked."""
    readings: _Readings = {}
    for reading in read_records(path, StanceReading, "stances") if path.exists() else ():
        if set(reading.probabilities) != set(task.stances):
            raise DataError(
                f"{path}: topic {reading.topic_id}, document {reading.document_id}: not the labels of {task.name}"
            )
        readings[reading.topic_id, reading.document_id] = reading
    return readings


def _labels(
    config: Config,
    task: Task,
    candidates: dict[str, list[Candidate]],
    judgments: dict[str, dict[str, Judgment]],
    readings: _Readings,
) -> dict[str, dict[str, ChosenStance]]:
    """The label of each candidate that has one."""
    labels: dict[str, dict[str, ChosenStance]] = {}
    for topic_id, ranking in candidates.items():
        labels[topic_id] = {}
        for each in ranking:
            judgment = judgments.get(topic_id, {}).get(each.document_id)
            label = choose_label(judgment, readings.get((topic_id, each.document_id)), task, config.stance)
            if label is not None:
                labels[topic_id][each.document_id] = label
    return labels


def _warn_of_thresholds(
    config: Config,
    topics: list[Topic],
    judgments: dict[str, dict[str, Judgment]],
    readings: _Readings,
    progress: Progress,
) -> None:
    """Say where thresholds of the stance do not fit what they are used for."""
    settings = config.stance
    if settings is None or not settings.thresholds:
        return
    both = [topic.id for topic in topics if topic.id in settings.calibrated_on]
    if both:
        progress.warn(
            f"the thresholds of the stance were fitted on {len(both)} of these topics: what is measured on them says "
            f"nothing about others: {shorten(both)}"
        )
    asked = {each.prompt for each in readings.values()}
    if not settings.depth:
        asked = {each.prompt for of_topic in judgments.values() for each in of_topic.values()}
    if settings.calibrated_for and asked - {settings.calibrated_for}:
        progress.warn(
            f"the thresholds of the stance were fitted on answers to {settings.calibrated_for}, and these are answers "
            f"to {', '.join(sorted(asked))}: fit them anew"
        )
    if any(each.source == "value" for each in readings.values()):
        progress.warn("some stances have no probabilities: thresholds do not apply to them")
