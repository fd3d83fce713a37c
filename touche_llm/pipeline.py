"""The way through: retrieve, judge, rank. Each stage reads and writes files of the run's folder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from touche_llm.config import FILE_NAME, Config, index_folder, write_config
from touche_llm.corpus.store import DocumentStore, ensure_store
from touche_llm.engines import open_model
from touche_llm.errors import DataError, UsageError
from touche_llm.files import read_records, write_records
from touche_llm.judging import JUDGE_VARIABLES, OBJECTS_VARIABLES, Asking, find_objects, judge, judgeable
from touche_llm.llm.language_model import Counts, LanguageModel
from touche_llm.llm.request import Sampling
from touche_llm.metadata import record_stage
from touche_llm.prompts import load_prompt
from touche_llm.ranking.pointwise import rank
from touche_llm.records import Candidate, Failure, Judgment, Topic
from touche_llm.retrieval.bm25 import Bm25Settings, ensure_index, open_index
from touche_llm.retrieval.okapi import retrieve_okapi
from touche_llm.runs import read_candidates, write_candidates, write_run
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task

CANDIDATES = "candidates.run.txt"
JUDGMENTS = "judgments.jsonl"
FAILURES = "failures.jsonl"
RUN = "run.txt"
_LISTED = 10


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


def build_index(
    task: Task, corpus: Path, folder: Path | None, settings: Bm25Settings, skip_bad_lines: bool, observer: Observer
) -> DocumentStore:
    """Store and index a corpus, unless that is done and up to date."""
    folder = folder or index_folder(corpus)
    store = ensure_store(corpus, folder, task.read_corpus, skip_bad_lines=skip_bad_lines, notify=observer.notify)
    try:
        ensure_index(store, settings, observer.notify)
    except BaseException:
        store.close()
        raise
    return store


def retrieve_stage(config: Config, folder: Path, observer: Observer) -> None:
    """Write the candidates of each chosen topic: from the index, or from a run that another tool wrote."""
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    task = get_task(config.task)
    topics = choose_topics(config, task)
    with _open_store(config, task, observer) as store:
        opened = time.monotonic()
        if config.candidates is not None:
            candidates = _from_run(config, task, topics, store)
        else:
            candidates = []
            with observer.stage("retrieving", len(topics)) as advance:
                for ranking in _retrieve(config, topics, store, observer):
                    candidates.append(ranking)
                    advance()
        corpus = store.manifest
    empty = [topic.id for topic, ranking in zip(topics, candidates, strict=True) if not ranking]
    if len(empty) == len(topics):
        raise DataError(
            "the first stage found nothing for any topic: no word of a query is in the corpus, or each is in more than "
            "half of its documents and says nothing (--retriever okapi and --bm25-method lucene score those too)"
        )
    if empty:
        observer.notify(f"no candidate for {len(empty)} of {len(topics)} topics: {_listed(empty)}")
    _remove(folder, JUDGMENTS, FAILURES, RUN)
    write_config(config, folder / FILE_NAME)
    write_candidates(folder / CANDIDATES, candidates, config.tag)
    record_stage(
        folder,
        config,
        "retrieve",
        {
            "topics": len(topics),
            "candidates": sum(map(len, candidates)),
            "topics without candidates": empty,
            "corpus": {
                "file": corpus.corpus,
                "sha256": corpus.sha256,
                "documents": corpus.documents,
                "bad lines": corpus.bad_lines,
            },
            "seconds to store the corpus or open it": round(opened - started, 3),
            "seconds": round(time.monotonic() - started, 3),
        },
    )


async def judge_stage(config: Config, folder: Path, observer: Observer, model: LanguageModel) -> Outcome:
    """Judge the candidates of the run's folder; write judgments and failures.

    Raises:
        ReplayMiss: in replay, when the cache lacks an answer; nothing is written then.
    """
    started = time.monotonic()
    task = get_task(config.task)
    topics = choose_topics(config, task)
    candidates = _read_candidates(folder, config, task)
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
    judge_prompt = load_prompt(task.name, config.prompts.judge, "judge", JUDGE_VARIABLES)
    failures: list[Failure] = []
    without = [topic for topic in topics if topic.objects is None] if task.objects_answer else []
    prompts = {"judge": judge_prompt.label}
    with _open_store(config, task, observer) as store:
        _check_documents(folder / CANDIDATES, candidates, store)
        if without:
            objects_prompt = load_prompt(task.name, config.prompts.objects, "objects", OBJECTS_VARIABLES)
            prompts["objects"] = objects_prompt.label
            with observer.stage("finding objects", len(without), model.counts) as done:
                topics, failures = await find_objects(topics, task, objects_prompt, asking, done)
            model.raise_on_misses()
        asked = [topic.id for topic in without]
        work = judgeable(topics, candidates, task)
        with observer.stage("judging", len(work), model.counts) as done:
            judgments, failed = await judge(work, store, task, judge_prompt, asking, done)
    model.raise_on_misses()
    failures += failed
    seconds = time.monotonic() - started
    _remove(folder, RUN)
    write_config(config, folder / FILE_NAME)
    write_records(folder / JUDGMENTS, judgments)
    write_records(folder / FAILURES, failures)
    record_stage(
        folder,
        config,
        "judge",
        {
            "model": model.facts.model,
            "revision": model.facts.revision,
            "engine": model.facts.engine,
            "context": model.facts.context,
            "prompts": prompts,
            "objects found by the model": {
                each.id: list(each.objects) for each in topics if each.id in asked and each.objects
            },
            "judgments": len(judgments),
            "judgments without probabilities": sum(judgment.source == "value" for judgment in judgments),
            "documents cut": sum(judgment.cut is not None for judgment in judgments),
            "failures": by_kind(failures),
            "mean probability outside the labels": _mean_outside(judgments),
            "requests": model.counts.as_dict(),
            "seconds": round(seconds, 3),
            "judgments per second": round(len(judgments) / seconds, 2) if seconds else None,
        },
    )
    return Outcome(len(judgments), failures, model.counts)


def rank_stage(config: Config, folder: Path, observer: Observer) -> tuple[int, int]:
    """Write `run.txt` from the folder's candidates and judgments; returns how many lines, and how many imputed."""
    started = time.monotonic()
    task = get_task(config.task)
    topics = choose_topics(config, task)
    candidates = _read_candidates(folder, config, task)
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
    imputed = sum(line.document_id not in judgments.get(line.topic_id, {}) for line in lines)
    if not lines:
        raise DataError(f"{folder / CANDIDATES}: no candidate for the chosen topics, so there is nothing to rank")
    if imputed:
        observer.notify(
            f"{imputed} of {len(lines)} documents have no judgment: first-stage order, stance {task.unknown_stance}"
        )
    write_config(config, folder / FILE_NAME)
    write_run(folder / RUN, lines)
    record_stage(
        folder,
        config,
        "rank",
        {
            "weights": config.weights.model_dump(),
            "lines": len(lines),
            "stances": {stance: sum(line.stance == stance for line in lines) for stance in task.stances},
            "imputed stances": imputed,
            "seconds": round(time.monotonic() - started, 3),
        },
    )
    return len(lines), imputed


async def judge_alone(config: Config, folder: Path, observer: Observer) -> Outcome:
    """The judge stage with a model of its own."""
    async with open_model(config) as model:
        return await judge_stage(_with_facts(config, model), folder, observer, model)


async def run_all(config: Config, folder: Path, observer: Observer) -> Outcome:
    """The whole way. The engine is checked before anything else is done."""
    task = get_task(config.task)
    choose_topics(config, task)
    load_prompt(task.name, config.prompts.judge, "judge", JUDGE_VARIABLES)
    folder.mkdir(parents=True, exist_ok=True)
    async with open_model(config) as model:
        config = _with_facts(config, model)
        retrieve_stage(config, folder, observer)
        outcome = await judge_stage(config, folder, observer, model)
    rank_stage(config, folder, observer)
    return outcome


def _with_facts(config: Config, model: LanguageModel) -> Config:
    """The configuration with the model's name and context, also where the server had to be asked for them."""
    known = {"model": model.facts.model, "context": model.facts.context}
    return config.model_copy(update={"engine": config.engine.model_copy(update=known)})


def _remove(folder: Path, *names: str) -> None:
    """Remove what later stages made of an earlier state; the answers are in the cache."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


def choose_topics(config: Config, task: Task) -> list[Topic]:
    """The topics of the file that the configuration asks for, in the order of the file."""
    topics = task.read_topics(config.topics)
    if config.topic:
        unknown = sorted(set(config.topic) - {topic.id for topic in topics})
        if unknown:
            raise UsageError(f"{config.topics}: no topic {', '.join(unknown)}")
        topics = [topic for topic in topics if topic.id in config.topic]
    return topics[: config.limit_topics]


def _open_store(config: Config, task: Task, observer: Observer) -> DocumentStore:
    if config.corpus is None:
        return DocumentStore(config.index)
    return ensure_store(
        config.corpus, config.index, task.read_corpus, skip_bad_lines=config.skip_bad_lines, notify=observer.notify
    )


def _retrieve(config: Config, topics: list[Topic], store: DocumentStore, observer: Observer) -> Any:
    retriever = config.retriever
    depth = min(config.depth, len(store))
    if retriever.name == "okapi":
        return retrieve_okapi(topics, store, k1=retriever.k1, b=retriever.b, fields=retriever.query, depth=depth)
    if config.corpus is None:
        index = open_index(store, retriever.bm25)
    else:
        index = ensure_index(store, retriever.bm25, observer.notify)
    return index.retrieve(topics, fields=retriever.query, depth=depth)


def _from_run(config: Config, task: Task, topics: list[Topic], store: DocumentStore) -> list[list[Candidate]]:
    assert config.candidates is not None
    found = read_candidates(config.candidates, config.depth)
    _check_topics(config.candidates, found, config, task)
    chosen = [found.get(topic.id, []) for topic in topics]
    _check_documents(config.candidates, dict(enumerate(chosen)), store)
    return chosen


def _check_topics(path: Path, found: Iterable[str], config: Config, task: Task) -> None:
    known = {topic.id for topic in task.read_topics(config.topics)}
    unknown = [topic for topic in found if topic not in known]
    if unknown:
        raise DataError(f"{path}: {len(unknown)} of its topics are not in {config.topics}: {_listed(unknown)}")


def _listed(names: list[str]) -> str:
    """The first ten of some names, and how many more there are."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _check_documents(path: Path, candidates: Mapping[Any, list[Candidate]], store: DocumentStore) -> None:
    unknown = store.unknown(each.document_id for ranking in candidates.values() for each in ranking)
    if unknown:
        raise DataError(
            f"{path}: {len(unknown)} of its documents are not in the corpus {store.manifest.corpus}: {_listed(unknown)}"
        )


def _read_candidates(folder: Path, config: Config, task: Task) -> dict[str, list[Candidate]]:
    if not (folder / CANDIDATES).exists():
        raise DataError(f"{folder / CANDIDATES}: not there; run `touche-llm retrieve` for this folder first")
    candidates = read_candidates(folder / CANDIDATES, task.most_per_topic)
    _check_topics(folder / CANDIDATES, candidates, config, task)
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
