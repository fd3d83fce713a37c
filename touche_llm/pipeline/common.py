"""What the stages share: who is told, how the model is asked, which prompts are."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from touche_llm.config import Config
from touche_llm.data.records import Candidate, Failure, Topic
from touche_llm.data.trec_runs import read_candidates
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.pointwise import RequestBuilder
from touche_llm.llm.counts import Counts
from touche_llm.llm.model import LanguageModel
from touche_llm.llm.request import Sampling
from touche_llm.pipeline.candidates import check_run_topics, choose_topics
from touche_llm.pipeline.run_files import CANDIDATES, SENTENCES
from touche_llm.prompts.prompt import Prompt, check_overlay, examples_path, prompts_folder
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.ranking.steps import list_comparison_kinds
from touche_llm.tasks.base import Task


class Progress(Protocol):
    """A display of warnings and of the progress of stages."""

    def warn(self, message: str) -> None:
        """Show a line that the user should read."""
        ...

    def stage(self, title: str, total: int, counts: Counts | None = None) -> AbstractContextManager[Callable[[], None]]:
        """Show a stage of `total` steps while the block runs.

        Args:
            title: What the stage does.
            total: Number of steps.
            counts: Counters of the language model, updated while the stage runs.

        Returns:
            A context manager that yields a function to be called after each step.
        """
        ...


def first_stage_file(task: Task) -> str:
    """The file that the first stage writes."""
    return CANDIDATES if task.sentence_question is None else SENTENCES


def make_request_builder(config: Config, model: LanguageModel) -> RequestBuilder:
    """How the stages of a run ask."""
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


def known_failures(count: int) -> str:
    """How many questions were not sent again since they failed before, and how to send them."""
    return f"{count:,} had no usable answer before and were not sent again; --retry-failures sends them"


def report_known_failures(progress: Progress, model: LanguageModel, before: Counts) -> None:
    """Report the questions that the cache holds only unusable answers to, unless nothing can be sent."""
    count = model.counts.since(before).known_failures
    if count and model.engine is not None:
        progress.warn(f"questions: {known_failures(count)}")


def describe_model_use(model: LanguageModel, prompts: dict[str, Prompt], before: Counts) -> dict[str, Any]:
    """What the metadata says of a stage that asked the model; `before` is what the model had counted at its begin."""
    counts = model.counts.since(before)
    return {
        "model": model.facts.model,
        "revision": model.facts.revision,
        "engine": model.facts.engine,
        "context": model.facts.context,
        "prompts": {name: prompt.label for name, prompt in prompts.items()},
        "templates": {
            name: {"folder": _folder_of(prompt), "examples": len(prompt.examples)} for name, prompt in prompts.items()
        },
        "documents cut": counts.cut,
        "requests": counts.as_dict(),
    }


def load_prompts(
    config: Config, task: Task, *names: str, notify: Callable[[str], None] = lambda message: None
) -> dict[str, Prompt]:
    """The prompts that a run of the task asks with, by what they are for; those of `names` where some are given.

    Args:
        config: names them.
        task: whose prompts.
        names: of purposes.
        notify: told where an example's topic has the number of a chosen one.

    Raises:
        PromptError: a prompt is not there, or not as it should be.
        UsageError: a folder of templates without any that are asked for, or an example whose topic is a chosen one.
    """
    purposes, settings, topics = purposes_of(task), config.prompts, choose_topics(config)
    if settings.folder is not None:
        # Where a prompt is named by a path, the folder's own of that purpose is left out, but is no mistake.
        given = {*purposes, *(getattr(settings, name) for name in purposes)}
        check_overlay(settings.folder, task.name, {name for name in given if not name.endswith(".jinja")})
    asked = {"judge", *list_comparison_kinds(config.steps)}
    if any(topic.objects is None for topic in topics):
        asked.add("objects")
    if task.sentence_question is not None:
        asked.add("sentence")
    if config.stance is not None and config.stance.depth:
        asked.add("stance")
    if config.expansion.use:
        asked.add("queries")
    prompts = {
        name: load(task, purpose, getattr(settings, name), settings.folder)
        for name, purpose in purposes.items()
        if name in asked and (not names or name in names)
    }
    for prompt in prompts.values():
        check_examples(prompt, topics, config.topics, notify)
    return prompts


def check_examples(prompt: Prompt, topics: list[Topic], file: Path, notify: Callable[[str], None]) -> None:
    """Raise UsageError where an example's topic is one of those given: what a prompt gives away cannot be measured.

    Topics of other years have the same numbers, so the title tells; the same number alone is told.
    """
    by_title = {_words(topic.title): topic for topic in topics}
    by_id = {topic.id: topic for topic in topics}
    for number, example in enumerate(prompt.examples, start=1):
        where = f"{examples_path(prompt.path)}: example {number} of the template {prompt.path}"
        same = by_title.get(_words(example.topic.title))
        if same is not None:
            raise UsageError(
                f"{where}: its topic {example.topic.id}, {example.topic.title!r:.120}, is topic {same.id} of {file}, "
                "which this run is about; take an example of another topic, or leave this topic out (--topic)"
            )
        if example.topic.id in by_id:
            title = by_id[example.topic.id].title
            notify(
                f"{where}: its topic has the number {example.topic.id}, as {title!r:.120} has in {file}; by its title "
                f"it is another, {example.topic.title!r:.120}"
            )


def _words(title: str) -> str:
    return " ".join(re.findall(r"\w+", title.casefold()))


def _folder_of(prompt: Prompt) -> str:
    own = prompt.path.parent.parent == prompts_folder()
    return "the project's own" if own else str(prompt.path.parent)


def has_comparisons(config: Config) -> bool:
    """Whether the steps of the ranking ask the model."""
    return bool(list_comparison_kinds(config.steps))


def read_stage_candidates(path: Path, config: Config, stage: str) -> dict[str, list[Candidate]]:
    """The candidates that the stage of this name wrote, by topic; raises DataError where they do not fit the topics."""
    if not path.exists():
        raise DataError(f"{path}: not there; run `touche-llm {stage}` for this folder first")
    candidates = read_candidates(path, depth=sys.maxsize)
    check_run_topics(path, candidates, config)
    return candidates


def count_by_kind(failures: list[Failure]) -> dict[str, int]:
    """How many failures there are of each kind."""
    return dict(Counter(failure.kind for failure in failures))
