"""Where a report takes what a run's folder does not hold: documents, prompts and raw answers, if they are at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from touche_llm.config import Config
from touche_llm.data.records import Document, Topic
from touche_llm.errors import PromptError, ToucheError, UsageError
from touche_llm.llm.answers import Answer
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.pipeline.candidates import Corpus, Notify, open_corpus
from touche_llm.pipeline.common import load_prompts
from touche_llm.prompts.prompt import Prompt
from touche_llm.tasks.base import Question, Task

_FROM_HERE = "paths in config.yaml are taken from the current folder, as they were for the run"
# What stands in a rendered prompt where each document's text would; nothing in it is changed when it is rendered.
PLACEHOLDER = "\N{HORIZONTAL ELLIPSIS} here stands the text of the document \N{HORIZONTAL ELLIPSIS}"

# The text of an answer by its key in the cache, or None where the cache does not hold it.
Answers = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt as one topic's documents were asked about with it; each message is its role and its texts.

    The document's text stands between one text and the next.
    """

    purpose: str
    label: str
    messages: list[tuple[str, list[str]]]


@contextmanager
def corpus_at_hand(config: Config, task: Task, stages: Mapping[str, Any], notes: list[str]) -> Iterator[Corpus | None]:
    """The run's documents, or None where they are not there; what people should know of that is added to `notes`."""
    if config.elasticsearch is not None:
        # Whether it is there is known when it is asked.
        there, place = True, config.elasticsearch.url
    elif config.chatnoir is not None:
        there, place = config.chatnoir.cache.is_file(), str(config.chatnoir.cache)
    else:
        there, place = config.corpus is not None and config.corpus.is_file(), f"{config.corpus} nor {config.index}"
        if not there and config.index is not None and (config.index / "manifest.json").is_file():
            config, there = config.model_copy(update={"corpus": None}), True
    if not there:
        notes.append(f"No texts of documents: neither {place} is there; {_FROM_HERE}.")
        yield None
        return
    tell: Notify = notes.append
    with ExitStack() as stack:
        try:
            corpus = stack.enter_context(open_corpus(config, task, tell))
        except ToucheError as error:
            if config.elasticsearch is None:
                raise
            notes.append(f"No texts of documents: {error}.")
            yield None
            return
        before = stages.get("retrieve", {}).get("corpus", {}).get("sha256")
        if before is not None and before != corpus.description.get("sha256"):
            notes.append(f"The corpus {corpus.name} is not the one that the run was made from: texts can differ.")
        yield corpus


@contextmanager
def answers_at_hand(config: Config, notes: list[str]) -> Iterator[Answers | None]:
    """The texts of the model's answers, or None where there is no cache; that is added to `notes`."""
    if config.cache.mode is CacheMode.OFF:
        notes.append("No raw answers: the run kept none (--cache-mode off).")
        yield None
    elif not config.cache.file.is_file():
        notes.append(f"No raw answers: the cache {config.cache.file} is not there; {_FROM_HERE}.")
        yield None
    else:
        with Cache(config.cache.file, CacheMode.REPLAY) as cache:

            def text(key: str) -> str | None:
                answer = cache.get(key, Answer)
                return None if answer is None else answer.text

            yield text


def prompts_at_hand(config: Config, task: Task, stages: Mapping[str, Any], notes: list[str]) -> dict[str, Prompt]:
    """The prompts about one document by name, as far as they are the run's; the others are told of in `notes`."""
    used: Mapping[str, str] = stages.get("judge", {}).get("prompts", {})
    try:
        found = load_prompts(config, task, "judge", "sentence", "stance")
    except (PromptError, UsageError) as error:
        notes.append(f"No prompts: {error}")
        return {}
    for name, prompt in found.items():
        if used.get(name) != prompt.label:
            notes.append(f"The prompt {name!r} is not shown: the run had {used.get(name)}, now it is {prompt.label}.")
    return {name: prompt for name, prompt in found.items() if used.get(name) == prompt.label}


def rendered(prompts: Mapping[str, Prompt], task: Task, topic: Topic) -> list[RenderedPrompt]:
    """The prompts of one topic; none where the topic's objects are needed and were not found."""
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
