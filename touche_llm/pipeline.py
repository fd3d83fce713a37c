"""The way through: retrieve, judge, rank. Each stage reads and writes files of the run's folder."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from touche_llm.config import FILE_NAME, Config, write_config
from touche_llm.engines import open_model
from touche_llm.errors import DataError
from touche_llm.files import read_records, write_records
from touche_llm.first_stage import check_candidates, check_topics, choose_topics, find_candidates, listed, open_corpus
from touche_llm.judging import OBJECTS_VARIABLES, Asking, find_objects, judge
from touche_llm.llm.language_model import Counts, LanguageModel
from touche_llm.llm.request import Sampling
from touche_llm.metadata import record_stage
from touche_llm.pair_stage import judge_pairs
from touche_llm.prompts import Prompt, load_prompt
from touche_llm.ranking.pointwise import rank
from touche_llm.records import Candidate, Failure, Judgment
from touche_llm.runs import read_candidates, write_candidates, write_run
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task

CANDIDATES = "candidates.run.txt"
# Where pairs are made of them, the first stage finds sentences.
SENTENCES = "sentences.run.txt"
SENTENCE_JUDGMENTS = "sentence_judgments.jsonl"
JUDGMENTS = "judgments.jsonl"
FAILURES = "failures.jsonl"
RUN = "run.txt"


class Observer(Protocol):
    """Who is told how the work goes."""

    def notify(self, message: str) -> None:
        """Take a line that the user should read."""
        ...

    def stage(self, title: str, total: int, counts: Counts | None = None) -> AbstractContextManager[Callable[[], None]]:
        """A stage of `total` steps, for as long as the block runs; gives what is to be called after each step.

        `counts` are the language model's, which go on counting.
        """
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a stage that asks the model ended."""

    judgments: int
    failures: list[Failure]
    counts: Counts


async def retrieve_stage(config: Config, folder: Path, observer: Observer) -> None:
    """Write the candidates of each chosen topic: from the index, or from a run that another tool wrote."""
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    task = get_task(config.task)
    topics = choose_topics(config)
    with open_corpus(config, task, observer.notify) as corpus:
        opened = time.monotonic()
        with observer.stage("retrieving", len(topics)) as done:
            candidates = await find_candidates(config, task, topics, corpus, observer.notify, done)
    empty = [topic.id for topic, ranking in zip(topics, candidates, strict=True) if not ranking]
    if empty:
        observer.notify(
            f"no candidate for {len(empty)} of {len(topics)} topics: {listed(empty)} (with BM25: no word of the query "
            "is there, or each is in more than half of the corpus)"
        )
    _remove(folder, CANDIDATES, SENTENCES, SENTENCE_JUDGMENTS, JUDGMENTS, FAILURES, RUN)
    write_config(config, folder / FILE_NAME)
    write_candidates(folder / first_stage_file(task), candidates, config.tag)
    record_stage(
        folder,
        config,
        "retrieve",
        {
            "topics": len(topics),
            "candidates": sum(map(len, candidates)),
            "topics without candidates": empty,
            "corpus": dict(corpus.description),
            "seconds to store the corpus or open it": round(opened - started, 3),
            "seconds": round(time.monotonic() - started, 3),
        },
    )


def first_stage_file(task: Task) -> str:
    """The file that the first stage writes."""
    return CANDIDATES if task.sentence_question is None else SENTENCES


async def judge_stage(config: Config, folder: Path, observer: Observer, model: LanguageModel) -> Outcome:
    """Judge the candidates of the run's folder; write judgments and failures.

    Where the task ranks pairs, sentences are judged first, and the candidates are the pairs made of them.

    Raises:
        ReplayMiss: in replay, when the cache lacks an answer; nothing is written then.
    """
    started = time.monotonic()
    task = get_task(config.task)
    topics = choose_topics(config)
    found = _read_candidates(folder / first_stage_file(task), config, "retrieve")
    asking = Asking(
        model=model,
        sampling=Sampling(
            temperature=config.sampling.temperature,
            seed=config.sampling.seed,
            max_tokens=config.sampling.max_tokens,
            top_logprobs=config.sampling.top_logprobs,
        ),
        chat_template_kwargs=config.sampling.chat_template_kwargs,
        concurrency=config.engine.concurrency,
    )
    prompts = _prompts(config, task)
    facts: dict[str, Any] = {}
    failures: list[Failure] = []
    pairs: list[list[Candidate]] | None = None
    sentences: list[Judgment] | None = None
    with open_corpus(config, task, observer.notify) as corpus:
        check_candidates(folder / first_stage_file(task), found.values(), corpus)
        if "objects" in prompts:
            without = [topic.id for topic in topics if topic.objects is None]
            with observer.stage("finding objects", len(without), model.counts) as done:
                topics, failures = await find_objects(topics, task, prompts["objects"], asking, done)
            model.raise_on_misses()
            topics = [topic for topic in topics if topic.objects is not None]
            facts["objects found by the model"] = {
                each.id: list(each.objects) for each in topics if each.id in without and each.objects
            }
        if task.sentence_question is None:
            chosen = {topic_id: ranking[: config.depth] for topic_id, ranking in found.items()}
            work = [(topic, each.document_id) for topic in topics for each in chosen.get(topic.id, [])]
            with observer.stage("judging", len(work), model.counts) as done:
                judgments, failed = await judge(work, corpus.documents, task.question, prompts["judge"], asking, done)
            model.raise_on_misses()
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
                asking,
                partial(observer.stage, counts=model.counts),
            )
            judgments, failed = judged.judgments, judged.failures
            pairs, sentences = judged.candidates, judged.sentences
            facts |= judged.facts()
            for topic_id, count in judged.too_few.items():
                observer.notify(f"topic {topic_id}: {count} pairs, fewer than the {task.least_per_topic} wanted")
    failures += failed
    seconds = time.monotonic() - started
    _remove(folder, JUDGMENTS, FAILURES, RUN)
    write_config(config, folder / FILE_NAME)
    if pairs is not None and sentences is not None:
        write_candidates(folder / CANDIDATES, pairs, config.tag)
        write_records(folder / SENTENCE_JUDGMENTS, sentences)
    write_records(folder / JUDGMENTS, judgments)
    write_records(folder / FAILURES, failures)
    asked = [*(sentences or []), *(each for each in judgments if each.source != "inherited")]
    record_stage(
        folder,
        config,
        "judge",
        {
            "model": model.facts.model,
            "revision": model.facts.revision,
            "engine": model.facts.engine,
            "context": model.facts.context,
            "prompts": {name: prompt.label for name, prompt in prompts.items()},
            **facts,
            "judgments": len(asked),
            "judgments without probabilities": sum(judgment.source == "value" for judgment in asked),
            "documents cut": model.counts.cut,
            "failures": by_kind(failures),
            "mean probability outside the labels": _mean_outside(asked),
            "requests": model.counts.as_dict(),
            "requests per topic": round((model.counts.asked + model.counts.cache_hits) / max(len(topics), 1), 1),
            "seconds": round(seconds, 3),
            "judgments per second": round(len(asked) / seconds, 2) if seconds else None,
        },
    )
    if pairs is not None and not any(pairs):
        raise DataError(
            f"{folder / SENTENCE_JUDGMENTS}: no topic has two sentences on one side, so there is no pair; see what the "
            "model says of them there, or set pairs.no_side_above higher"
        )
    return Outcome(len(asked), failures, model.counts)


def _prompts(config: Config, task: Task) -> dict[str, Prompt]:
    """The prompts that a run of the task asks with, by what they are for; all of them are loaded and checked."""
    wanted = {"judge": (config.prompts.judge, task.question.template_variables)}
    if task.objects_answer is not None and any(topic.objects is None for topic in choose_topics(config)):
        wanted["objects"] = (config.prompts.objects, OBJECTS_VARIABLES)
    if task.sentence_question is not None:
        wanted["sentence"] = (config.prompts.sentence, task.sentence_question.template_variables)
    return {name: load_prompt(task.name, file, name, variables) for name, (file, variables) in wanted.items()}


def rank_stage(config: Config, folder: Path, observer: Observer) -> tuple[int, int]:
    """Write `run.txt` from the folder's candidates and judgments; returns how many lines, and how many imputed."""
    started = time.monotonic()
    task = get_task(config.task)
    topics = choose_topics(config)
    candidates = _read_candidates(folder / CANDIDATES, config, "judge" if task.sentence_question else "retrieve")
    if not (folder / JUDGMENTS).exists():
        raise DataError(f"{folder / JUDGMENTS}: not there; run `touche-llm judge` for this folder first")
    judgments: dict[str, dict[str, Judgment]] = {}
    for judgment in read_records(folder / JUDGMENTS, Judgment, "judgments"):
        if judgment.stance not in task.stances:
            raise DataError(f"{folder / JUDGMENTS}: stance {judgment.stance!r} is no label of {task.name}")
        judgments.setdefault(judgment.topic_id, {})[judgment.document_id] = judgment
    lines = []
    for topic in topics:
        lines += rank(candidates.get(topic.id, []), judgments.get(topic.id, {}), task, config.weights, config.tag)
    behind = [judgments.get(line.topic_id, {}).get(line.document_id) for line in lines]
    imputed = behind.count(None)
    inherited = sum(judgment is not None and judgment.source == "inherited" for judgment in behind)
    sizes = Counter(line.topic_id for line in lines)
    if not lines:
        raise DataError(f"{folder / CANDIDATES}: no candidate to rank for the chosen topics; judge them first")
    left_out = sum(min(len(candidates.get(topic.id, [])), task.most_per_topic) for topic in topics) - len(lines)
    if imputed:
        observer.notify(
            f"{imputed} of {len(lines)} documents have no judgment: first-stage order, stance {task.unknown_stance}"
        )
    if left_out:
        observer.notify(f"{left_out} documents have no judgment and are left out, since {task.name} has no such stance")
    write_config(config, folder / FILE_NAME)
    write_run(folder / RUN, lines)
    record_stage(
        folder,
        config,
        "rank",
        {
            "weights": dict(config.weights),
            "lines": len(lines),
            "lines judged by the model": len(lines) - inherited - imputed,
            "lines with inherited grades": inherited,
            "topics with too few lines": {
                topic.id: sizes[topic.id] for topic in topics if sizes[topic.id] < task.least_per_topic
            },
            "stances": {stance: sum(line.stance == stance for line in lines) for stance in task.stances},
            "imputed stances": imputed,
            "left out without a judgment": left_out,
            "seconds": round(time.monotonic() - started, 3),
        },
    )
    return len(lines), imputed


async def judge_alone(config: Config, folder: Path, observer: Observer) -> Outcome:
    """The judge stage with a model of its own."""
    async with open_model(config) as model:
        return await judge_stage(_with_facts(config, model), folder, observer, model)


async def run_all(config: Config, folder: Path, observer: Observer) -> Outcome:
    """The whole way. Files that are not there are told before the engine starts, and the engine before work begins."""
    choose_topics(config)
    _prompts(config, get_task(config.task))
    for path in (config.corpus, config.candidates):
        if path is not None and not path.is_file():
            raise DataError(f"{path}: no such file")
    folder.mkdir(parents=True, exist_ok=True)
    async with open_model(config) as model:
        config = _with_facts(config, model)
        await retrieve_stage(config, folder, observer)
        outcome = await judge_stage(config, folder, observer, model)
    rank_stage(config, folder, observer)
    return outcome


def _with_facts(config: Config, model: LanguageModel) -> Config:
    """The configuration with the model's name and context, also where the server had to be asked for them."""
    known = {"model": config.engine.model or model.facts.model, "context": model.facts.context}
    return config.model_copy(update={"engine": config.engine.model_copy(update=known)})


def _remove(folder: Path, *names: str) -> None:
    """Remove what later stages made of an earlier state; the answers are in the cache."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _read_candidates(path: Path, config: Config, stage: str) -> dict[str, list[Candidate]]:
    if not path.exists():
        raise DataError(f"{path}: not there; run `touche-llm {stage}` for this folder first")
    candidates = read_candidates(path, depth=sys.maxsize)
    check_topics(path, candidates, config)
    return candidates


def by_kind(failures: list[Failure]) -> dict[str, int]:
    """How many failures there are of each kind."""
    return dict(Counter(failure.kind for failure in failures))


def _mean_outside(judgments: list[Judgment]) -> float | None:
    shares = [
        reading.outside
        for judgment in judgments
        for reading in judgment.readings.values()
        if reading.outside is not None
    ]
    return round(sum(shares) / len(shares), 6) if shares else None
