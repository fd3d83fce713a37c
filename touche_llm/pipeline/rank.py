"""Last stage: ranks candidates by their judgments and writes the run."""

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
from touche_llm.llm.model import ModelClient
from touche_llm.pipeline.candidates import check_candidates, choose_topics, open_corpus
from touche_llm.pipeline.common import (
    count_by_kind,
    describe_model_use,
    has_comparisons,
    load_prompts,
    make_request_builder,
    read_stage_candidates,
    report_known_failures,
)
from touche_llm.pipeline.metadata import begin_stage, record_stage
from touche_llm.pipeline.progress import Progress
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

_ByDocument = dict[str, dict[str, Judgment]]
_Readings = dict[tuple[str, str], StanceReading]


@dataclass(frozen=True, slots=True)
class RankingResult:
    """Result of the last stage: run lines, lines without a judgment, and failed comparisons."""

    lines: int
    imputed: int
    failures: list[Failure]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Files of earlier stages, by topic and document."""

    topics: list[Topic]
    candidates: dict[str, list[Candidate]]
    judgments: _ByDocument
    readings: _Readings
    labels: dict[str, dict[str, ChosenStance]]


async def rank_stage(
    config: Config, folder: Path, progress: Progress, model: ModelClient | None = None
) -> RankingResult:
    """Write `run.txt`, `results.tsv` and the comparisons from the folder's candidates and judgments.

    Args:
        config: Configuration of the run.
        folder: Folder of the run.
        progress: Receives warnings and the progress of each stage.
        model: Required if a step of the ranking compares documents.

    Raises:
        DataError: Files of earlier stages are missing, or a stage was interrupted while it replaced them.
        ReplayMiss: The cache of a replay lacks an answer; nothing is written.
    """
    started = time.monotonic()
    task = get_task(config.task)
    inputs = _read_inputs(config, folder, task)
    if config.stance is not None and config.stance.depth and not (folder / STANCES).exists():
        progress.warn(f"{folder / STANCES}: no such file; every stance is that of the judge prompt")
    _warn_of_thresholds(config, inputs, progress)
    model_facts: dict[str, Any] = {}
    if has_comparisons(config):
        assert model is not None
        ranked, model_facts = await _rank_by_comparisons(config, folder, inputs, model, progress)
    else:
        ranked = await _rank(config, inputs, inputs.topics, None, progress)
    if not ranked.lines:
        raise DataError(f"{folder / CANDIDATES}: no candidate to rank for the chosen topics; judge them first")
    facts = _describe_lines(inputs, ranked, task)
    imputed, left_out = facts["imputed stances"], facts["left out without a judgment"]
    if imputed:
        progress.warn(
            f"{imputed} of {len(ranked.lines)} documents have no judgment: first-stage order, "
            f"stance {task.unknown_stance}"
        )
    if left_out:
        progress.warn(f"{left_out} documents have no judgment and are left out, since {task.name} has no such stance")
    begin_stage(folder, config, "rank")
    if has_comparisons(config):
        write_records(folder / COMPARISONS, ranked.comparisons)
        write_records(folder / COMPARISON_FAILURES, ranked.failures)
    write_results(folder / RESULTS, ranked.lines, inputs.judgments, inputs.labels, task)
    write_run(folder / RUN, ranked.lines)
    settings = {"steps": list(config.rank), "objective": config.objective, "weights": dict(config.weights)}
    seconds = {"seconds": round(time.monotonic() - started, 3)}
    record_stage(folder, config, "rank", settings | model_facts | facts | seconds)
    return RankingResult(len(ranked.lines), imputed, ranked.failures)


def _read_inputs(config: Config, folder: Path, task: Task) -> _Inputs:
    topics = choose_topics(config)
    check_finished(folder, "judge")
    candidates = read_stage_candidates(folder / CANDIDATES, config, "judge" if task.sentence_question else "retrieve")
    judgments = _read_judgments(folder, task)
    readings = _read_stances(folder / STANCES, task)
    labels = _choose_labels(config, task, candidates, judgments, readings)
    return _Inputs(topics, candidates, judgments, readings, labels)


async def _rank_by_comparisons(
    config: Config, folder: Path, inputs: _Inputs, model: ModelClient, progress: Progress
) -> tuple[RankedTopics, dict[str, Any]]:
    """Rank with a model that compares documents; return the ranking and the facts for the metadata."""
    before, task = replace(model.counts), get_task(config.task)
    prompts = load_prompts(config, task, *list_comparison_kinds(config.steps), warn=progress.warn)
    builder = make_request_builder(config, model)
    rankings = inputs.candidates.values()
    with open_corpus(config, task, progress.warn) as corpus:
        await corpus.fetch(candidate.document_id for ranking in rankings for candidate in ranking)
        check_candidates(folder / CANDIDATES, rankings, corpus.documents, corpus.name)
        resources = ComparisonResources(builder, prompts, corpus.documents, config.objective)
        topics = _add_objects(inputs.topics, folder / OBJECTS)
        ranked = await _rank(config, inputs, topics, resources, progress)
    model.raise_on_misses()
    report_known_failures(progress, model, before)
    facts = {
        **describe_model_use(model, prompts, before),
        "comparisons": dict(Counter(comparison.step for comparison in ranked.comparisons)),
        "failures": count_by_kind(ranked.failures),
    }
    return ranked, facts


async def _rank(
    config: Config, inputs: _Inputs, topics: list[Topic], resources: ComparisonResources | None, progress: Progress
) -> RankedTopics:
    counts = resources.builder.model.counts if resources is not None else None
    stances = {
        topic_id: {document_id: chosen.label for document_id, chosen in labels.items()}
        for topic_id, labels in inputs.labels.items()
    }
    plan = RankingPlan(get_task(config.task), config.weights, config.steps, config.ranking, config.tag)
    with progress.stage("ranking", len(topics), counts) as done:
        return await rank_topics(
            topics,
            inputs.candidates,
            inputs.judgments,
            stances,
            plan,
            resources,
            done,
        )


def _describe_lines(inputs: _Inputs, ranked: RankedTopics, task: Task) -> dict[str, Any]:
    """Return counts of the run's lines for the metadata."""
    lines = ranked.lines
    judgments = [inputs.judgments.get(line.topic_id, {}).get(line.document_id) for line in lines]
    imputed = judgments.count(None)
    inherited = sum(judgment is not None and judgment.source == "inherited" for judgment in judgments)
    sizes = Counter(line.topic_id for line in lines)
    rankable = sum(min(len(inputs.candidates.get(topic.id, [])), task.max_per_topic) for topic in inputs.topics)
    return {
        "lines": len(lines),
        "lines judged by the model": len(lines) - inherited - imputed,
        "lines with inherited grades": inherited,
        "topics with too few lines": {
            topic.id: sizes[topic.id] for topic in inputs.topics if sizes[topic.id] < task.min_per_topic
        },
        "stances": {stance: sum(line.stance == stance for line in lines) for stance in task.stances},
        "imputed stances": imputed,
        "left out without a judgment": rankable - len(lines),
    }


def _add_objects(topics: list[Topic], path: Path) -> list[Topic]:
    """Return the topics with the objects that the judge stage found for those that name none."""
    if not path.exists():
        return topics
    found = {record.topic_id: record.objects for record in read_records(path, Objects, "objects")}
    return [replace(topic, objects=topic.objects or found.get(topic.id)) for topic in topics]


def _read_judgments(folder: Path, task: Task) -> _ByDocument:
    if not (folder / JUDGMENTS).exists():
        raise DataError(f"{folder / JUDGMENTS}: no such file; run `touche-llm judge` for this folder first")
    judgments: _ByDocument = {}
    for judgment in read_records(folder / JUDGMENTS, Judgment, "judgments"):
        if judgment.stance not in task.stances:
            raise DataError(f"{folder / JUDGMENTS}: stance {judgment.stance!r}; expected {', '.join(task.stances)}")
        judgments.setdefault(judgment.topic_id, {})[judgment.document_id] = judgment
    return judgments


def _read_stances(path: Path, task: Task) -> _Readings:
    """Read the answers to the stance prompt by topic and document; empty if there is no file."""
    readings: _Readings = {}
    for reading in read_records(path, StanceReading, "stances") if path.exists() else ():
        if set(reading.probabilities) != set(task.stances):
            raise DataError(
                f"{path}: topic {reading.topic_id}, document {reading.document_id}: labels other than "
                f"{', '.join(task.stances)}"
            )
        readings[reading.topic_id, reading.document_id] = reading
    return readings


def _choose_labels(
    config: Config,
    task: Task,
    candidates: dict[str, list[Candidate]],
    judgments: _ByDocument,
    readings: _Readings,
) -> dict[str, dict[str, ChosenStance]]:
    """Choose the stance label of each candidate that has one."""
    labels: dict[str, dict[str, ChosenStance]] = {}
    for topic_id, ranking in candidates.items():
        labels[topic_id] = {}
        for candidate in ranking:
            document_id = candidate.document_id
            judgment = judgments.get(topic_id, {}).get(document_id)
            label = choose_label(judgment, readings.get((topic_id, document_id)), task, config.stance)
            if label is not None:
                labels[topic_id][document_id] = label
    return labels


def _warn_of_thresholds(config: Config, inputs: _Inputs, progress: Progress) -> None:
    """Warn if the thresholds of the stance do not fit the topics or answers that they are applied to."""
    settings = config.stance
    if settings is None or not settings.thresholds:
        return
    both = [topic.id for topic in inputs.topics if topic.id in settings.calibrated_on]
    if both:
        progress.warn(
            f"the thresholds of the stance were fitted on {len(both)} of these topics, so measures on them say "
            f"nothing about other topics: {shorten(both)}"
        )
    prompts = {reading.prompt for reading in inputs.readings.values()}
    if not settings.depth:
        prompts = {judgment.prompt for judged in inputs.judgments.values() for judgment in judged.values()}
    if settings.calibrated_for and prompts - {settings.calibrated_for}:
        progress.warn(
            f"the thresholds of the stance were fitted on answers to {settings.calibrated_for}, and these are answers "
            f"to {', '.join(sorted(prompts))}: fit them anew"
        )
    if any(reading.source == "value" for reading in inputs.readings.values()):
        progress.warn("some stances have no probabilities: thresholds do not apply to them")
