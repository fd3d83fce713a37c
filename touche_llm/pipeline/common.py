"""Shared helpers of the stages: progress, request building, loading of prompts."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from touche_llm.config import Config
from touche_llm.data.records import Candidate, Failure, Topic
from touche_llm.data.trec_runs import read_candidates
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.pointwise import RequestBuilder
from touche_llm.llm.counts import Counts
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Sampling
from touche_llm.pipeline.candidates import check_run_topics, choose_topics
from touche_llm.pipeline.progress import Progress
from touche_llm.pipeline.run_files import CANDIDATES, SENTENCES
from touche_llm.prompts.prompt import Prompt, check_overlay, examples_path, prompts_folder
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.ranking.steps import list_comparison_kinds
from touche_llm.tasks.base import Task


def first_stage_file(task: Task) -> str:
    """Return the name of the file that the first stage writes."""
    return CANDIDATES if task.sentence_question is None else SENTENCES


def make_request_builder(config: Config, model: ModelClient) -> RequestBuilder:
    """Make the request builder of a run."""
    sampling = config.sampling
    return RequestBuilder(
        model=model,
        sampling=Sampling(
            temperature=sampling.temperature,
            seed=sampling.seed,
            max_tokens=sampling.max_tokens,
            top_logprobs=sampling.top_logprobs,
        ),
        chat_template_kwargs=sampling.chat_template_kwargs,
        concurrency=config.engine.concurrency,
    )


def describe_known_failures(count: int) -> str:
    """Describe requests that failed before and were not repeated."""
    return f"{count:,} had no usable answer before and were not sent again; --retry-failures sends them"


def report_known_failures(progress: Progress, model: ModelClient, before: Counts) -> None:
    """Warn of requests with only unusable answers in the cache, unless no engine is open."""
    count = model.counts.since(before).known_failures
    if count and model.engine is not None:
        progress.warn(f"questions: {describe_known_failures(count)}")


def describe_model_use(model: ModelClient, prompts: dict[str, Prompt], before: Counts) -> dict[str, Any]:
    """Return a stage's use of the model for the metadata; `before` has the counts at its begin."""
    counts = model.counts.since(before)
    return {
        "model": model.engine_info.model,
        "revision": model.engine_info.revision,
        "engine": model.engine_info.engine,
        "context": model.engine_info.context,
        "prompts": {name: prompt.label for name, prompt in prompts.items()},
        "templates": {
            name: {"folder": _describe_folder(prompt), "examples": len(prompt.examples)}
            for name, prompt in prompts.items()
        },
        "documents cut": counts.cut,
        "requests": counts.as_dict(),
    }


def load_prompts(
    config: Config, task: Task, *names: str, warn: Callable[[str], None] = lambda message: None
) -> dict[str, Prompt]:
    """Load the prompts of a run by purpose.

    Args:
        config: Configuration of the run.
        task: Task of the run.
        names: Purposes; if none is given, all purposes that the run needs.
        warn: Receives a warning if a few-shot example's topic has the number of a chosen topic.

    Raises:
        PromptError: A prompt is missing or invalid.
        UsageError: A folder of templates has none that the run needs, or an example's topic is a chosen one.
    """
    purposes, settings, topics = purposes_of(task), config.prompts, choose_topics(config)
    if settings.folder is not None:
        # A template for a purpose whose prompt is given as a path is unused, but not a mistake.
        given = {*purposes, *(getattr(settings, name) for name in purposes)}
        check_overlay(settings.folder, task.name, {name for name in given if not name.endswith(".jinja")})
    needed = {"judge", *list_comparison_kinds(config.steps)}
    if any(topic.objects is None for topic in topics):
        needed.add("objects")
    if task.sentence_question is not None:
        needed.add("sentence")
    if config.stance is not None and config.stance.depth:
        needed.add("stance")
    if config.expansion.use:
        needed.add("queries")
    prompts = {
        name: load(task, purpose, getattr(settings, name), settings.folder)
        for name, purpose in purposes.items()
        if name in needed and (not names or name in names)
    }
    for prompt in prompts.values():
        check_examples(prompt, topics, config.topics, warn)
    return prompts


def check_examples(prompt: Prompt, topics: list[Topic], file: Path, warn: Callable[[str], None]) -> None:
    """Raise UsageError if a few-shot example is about one of the topics: its result could not be measured.

    Topics of different years share numbers, so titles decide; an equal number alone gives a warning.
    """
    by_title = {_normalise(topic.title): topic for topic in topics}
    by_id = {topic.id: topic for topic in topics}
    for number, example in enumerate(prompt.examples, start=1):
        where = f"{examples_path(prompt.path)}: example {number} of the template {prompt.path}"
        same = by_title.get(_normalise(example.topic.title))
        if same is not None:
            raise UsageError(
                f"{where}: its topic {example.topic.id}, {example.topic.title!r:.120}, is topic {same.id} of {file}, "
                "a topic of this run; use an example of another topic, or leave this topic out (--topic)"
            )
        if example.topic.id in by_id:
            title = by_id[example.topic.id].title
            warn(
                f"{where}: its topic {example.topic.id}, {example.topic.title!r:.120}, has the number of "
                f"{title!r:.120} in {file}; the titles differ, so it is used"
            )


def _normalise(title: str) -> str:
    return " ".join(re.findall(r"\w+", title.casefold()))


def _describe_folder(prompt: Prompt) -> str:
    own = prompt.path.parent.parent == prompts_folder()
    return "the project's own" if own else str(prompt.path.parent)


def has_comparisons(config: Config) -> bool:
    """Return whether a step of the ranking compares documents."""
    return bool(list_comparison_kinds(config.steps))


def read_stage_candidates(path: Path, config: Config, stage: str) -> dict[str, list[Candidate]]:
    """Read the candidates of a stage by topic; raise DataError if the file or one of its topics is unknown."""
    if not path.exists():
        raise DataError(f"{path}: no such file; run `touche-llm {stage}` for this folder first")
    candidates = read_candidates(path, depth=sys.maxsize)
    check_run_topics(path, candidates, config)
    return candidates


def count_by_kind(failures: list[Failure]) -> dict[str, int]:
    """Count failures by kind."""
    return dict(Counter(failure.kind for failure in failures))
