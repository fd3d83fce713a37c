"""Sources of a report outside the run folder: documents, prompts and completions, if available."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from touche_llm.config import Config
from touche_llm.data.records import Document, Topic
from touche_llm.errors import PromptError, ToucheError, UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.corpora import Corpus, open_corpus
from touche_llm.prompts.prompt import Prompt
from touche_llm.tasks.base import Question, Task

_FROM_HERE = "paths in config.yaml are relative to the current folder, as they were for the run"
# Takes the place of the document in a rendered prompt; sanitizing leaves it unchanged.
PLACEHOLDER = "\N{HORIZONTAL ELLIPSIS} here stands the text of the document \N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt rendered for one topic.

    Each message is a role and the pieces of its text before, between and after the documents.
    """

    purpose: str
    label: str
    messages: list[tuple[str, list[str]]]


@contextmanager
def open_run_corpus(config: Config, task: Task, stages: Mapping[str, Any], notes: list[str]) -> Iterator[Corpus | None]:
    """Open the documents of the run, or yield None if they are unavailable; add the reason to `notes`."""
    if config.elasticsearch is not None:
        # Only a request shows whether the server is available.
        there, place = True, config.elasticsearch.url
    elif config.chatnoir is not None:
        there, place = config.chatnoir.cache.is_file(), str(config.chatnoir.cache)
    else:
        there, place = config.corpus is not None and config.corpus.is_file(), f"{config.corpus} and {config.index}"
        if not there and config.index is not None and (config.index / "manifest.json").is_file():
            config, there = config.model_copy(update={"corpus": None}), True
    if not there:
        notes.append(f"No document texts: {place} not found; {_FROM_HERE}.")
        yield None
        return
    with ExitStack() as stack:
        try:
            corpus = stack.enter_context(open_corpus(config, task, notes.append))
        except ToucheError as error:
            if config.elasticsearch is None:
                raise
            notes.append(f"No document texts: {error}.")
            yield None
            return
        before = stages.get("retrieve", {}).get("corpus", {}).get("sha256")
        if before is not None and before != corpus.description.get("sha256"):
            notes.append(f"The corpus {corpus.name} is not the one of the run: texts can differ.")
        yield corpus


def open_run_answers(config: Config, notes: list[str]) -> AbstractContextManager[Cache | None]:
    """Open the cache of the run, if it exists; else add the reason to `notes`."""
    if config.cache.mode is CacheMode.OFF:
        notes.append("No completions: the run stored none (--cache-mode off).")
    elif not config.cache.file.is_file():
        notes.append(f"No completions: the cache {config.cache.file} does not exist; {_FROM_HERE}.")
    else:
        return Cache(config.cache.file, CacheMode.REPLAY)
    return nullcontext()


def load_run_prompts(context: RunContext, stages: Mapping[str, Any], notes: list[str]) -> dict[str, Prompt]:
    """Load the document prompts of the run by name; add those that changed since the run to `notes`."""
    used: Mapping[str, str] = stages.get("judge", {}).get("prompts", {})
    try:
        found = context.load_prompts("judge", "sentence", "stance")
    except (PromptError, UsageError) as error:
        notes.append(f"No prompts: {error}")
        return {}
    for name, prompt in found.items():
        if used.get(name) != prompt.label:
            notes.append(f"The prompt {name!r} is not shown: the run used {used.get(name)}, now it is {prompt.label}.")
    return {name: prompt for name, prompt in found.items() if used.get(name) == prompt.label}


def render_prompts(prompts: Mapping[str, Prompt], task: Task, topic: Topic) -> list[RenderedPrompt]:
    """Render the prompts for one topic; none if the task needs the compared objects and the topic has none."""
    if task.objects_answer is not None and topic.objects is None:
        return []
    questions = {"judge": task.question, "sentence": task.sentence_question, "stance": task.stance_question}
    shown = []
    for name, prompt in prompts.items():
        question = questions[name]
        assert question is not None
        shown.append(RenderedPrompt(name, prompt.label, _messages(prompt, question, topic)))
    return shown


def _messages(prompt: Prompt, question: Question, topic: Topic) -> list[tuple[str, list[str]]]:
    # Title and side are those of a sentence's argument.
    document = Document("", PLACEHOLDER, title="(the conclusion of its argument)", side="(PRO or CON)")
    variables = question.render(topic, document).variables
    messages = prompt.render(topic=topic, document=PLACEHOLDER, **variables)
    return [(message.role, message.content.split(PLACEHOLDER)) for message in messages]
