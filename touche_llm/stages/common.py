"""What the stages share: who is told, how the model is asked, which prompts are."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from touche_llm.config import Config
from touche_llm.errors import DataError
from touche_llm.expansion import VARIABLES as QUERIES_VARIABLES
from touche_llm.first_stage import check_topics, choose_topics
from touche_llm.judging import OBJECTS_VARIABLES, Asking
from touche_llm.llm.language_model import Counts, LanguageModel
from touche_llm.llm.request import Sampling
from touche_llm.prompts import Prompt, load_prompt
from touche_llm.ranking.chain import asked_kinds
from touche_llm.ranking.comparing import check_template, template_variables
from touche_llm.records import Candidate, Failure
from touche_llm.run_files import CANDIDATES, SENTENCES
from touche_llm.runs import read_candidates
from touche_llm.tasks.base import Task


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


def first_stage_file(task: Task) -> str:
    """The file that the first stage writes."""
    return CANDIDATES if task.sentence_question is None else SENTENCES


def asking_of(config: Config, model: LanguageModel) -> Asking:
    """How the stages of a run ask."""
    sampling = config.sampling
    return Asking(
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


def facts_of(model: LanguageModel, prompts: dict[str, Prompt], before: Counts) -> dict[str, Any]:
    """What the metadata says of a stage that asked the model; `before` is what the model had counted at its begin."""
    counts = model.counts.since(before)
    return {
        "model": model.facts.model,
        "revision": model.facts.revision,
        "engine": model.facts.engine,
        "context": model.facts.context,
        "prompts": {name: prompt.label for name, prompt in prompts.items()},
        "documents cut": counts.cut,
        "requests": counts.as_dict(),
    }


def prompts_of(config: Config, task: Task, *names: str) -> dict[str, Prompt]:
    """The prompts that a run of the task asks with, by what they are for; those of `names` where some are given."""
    wanted = {"judge": task.question.template_variables}
    if task.objects_answer is not None and any(topic.objects is None for topic in choose_topics(config)):
        wanted["objects"] = OBJECTS_VARIABLES
    if task.sentence_question is not None:
        wanted["sentence"] = task.sentence_question.template_variables
    if task.stance_question is not None and config.stance is not None and config.stance.depth:
        wanted["stance"] = task.stance_question.template_variables
    if config.expansion.use:
        wanted["queries"] = QUERIES_VARIABLES
    for kind in asked_kinds(config.steps):
        wanted[kind] = template_variables(task.question)
    prompts = {
        name: load_prompt(task.name, getattr(config.prompts, name), name, variables)
        for name, variables in wanted.items()
        if not names or name in names
    }
    for kind in asked_kinds(config.steps):
        if kind in prompts:
            check_template(prompts[kind], task.question)
    return prompts


def compares(config: Config) -> bool:
    """Whether the steps of the ranking ask the model."""
    return bool(asked_kinds(config.steps))


def candidates_of(path: Path, config: Config, stage: str) -> dict[str, list[Candidate]]:
    """The candidates that the stage of this name wrote, by topic; raises DataError where they do not fit the topics."""
    if not path.exists():
        raise DataError(f"{path}: not there; run `touche-llm {stage}` for this folder first")
    candidates = read_candidates(path, depth=sys.maxsize)
    check_topics(path, candidates, config)
    return candidates


def remove(folder: Path, *names: str) -> None:
    """Remove what later stages made of an earlier state; the answers are in the cache."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


def by_kind(failures: list[Failure]) -> dict[str, int]:
    """How many failures there are of each kind."""
    return dict(Counter(failure.kind for failure in failures))
