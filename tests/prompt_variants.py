"""A judged collection, wordings of its judge prompt, and an engine that reads better with some of them than others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.scripted_engine import FACTS, Label, ScriptedEngine
from touche_llm.api.opening import StoredAnswers, open_client
from touche_llm.config.configuration import Config
from touche_llm.config.files import load_config
from touche_llm.engines.settings import EngineConfig
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Request
from touche_llm.llm.settings import CacheConfig, SamplingConfig
from touche_llm.prompt_lab.holdout import CHOICE, HOLD_OUT, find_half
from touche_llm.prompts import prompt
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import purposes_of
from touche_llm.tasks import prompts_folder
from touche_llm.tasks.task import Task

LABELS = ("FIRST", "SECOND", "NEUTRAL", "NO")
DOCUMENTS = 6
Opens = Callable[[Any, Any, Any], AbstractAsyncContextManager[ModelClient]]


def load_prompt(
    task: Task, name: str, answer: str, variables: Mapping[str, bool], **given: Any
) -> Prompt:
    """The prompt, with the answer model of its purpose unless another is given."""
    folder = given.pop("folder", None)
    return prompt.load_prompt(
        task, replace(purposes_of(task)[answer], variables=variables, **given), name, folder
    )


def title_of(topic: str, text: str = "") -> str:
    """A title that belongs to the half to choose on if the number of the topic is odd, else to the held-out one."""
    half = HOLD_OUT if int(topic) % 2 == 0 else CHOICE
    titles = (f"Is tea {topic} better than {'black ' * number}coffee? {text}" for number in count())
    return next(title for title in titles if find_half(title) == half)


def collection(folder: Path, topics: int = 16, text: str = "") -> dict[str, Path]:
    """Topics `1`, `2`, …, each with six passages `TOPIC-N` of the grade N % 3.

    The qrels by aspect, and the inputs.
    """
    names = [str(number) for number in range(1, topics + 1)]
    documents = {topic: [f"{topic}-{number}" for number in range(DOCUMENTS)] for topic in names}
    grades = {
        each: number % 3 for of_topic in documents.values() for number, each in enumerate(of_topic)
    }
    texts = {
        "topics.xml": "".join(
            f"<topic><number>{topic}</number><title>{escape(title_of(topic, text))}</title>"
            "<objects>tea, coffee</objects></topic>"
            for topic in names
        ),
        "passages.jsonl": "".join(
            json.dumps({"id": each, "contents": f"passage {each} {text}"}) + "\n"
            for of_topic in documents.values()
            for each in of_topic
        ),
    }
    texts["topics.xml"] = f"<topics>{texts['topics.xml']}</topics>"
    for aspect in ("relevance", "quality", "stance"):
        texts[aspect] = "".join(
            f"{topic} 0 {each} {LABELS[grades[each]] if aspect == 'stance' else grades[each]}\n"
            for topic, of_topic in documents.items()
            for each in of_topic
        )
    for name, content in texts.items():
        (folder / name).write_text(content)
    return {name: folder / name for name in texts}


def wording(path: Path, words: str) -> Path:
    """The project's judge prompt with these words at its begin."""
    text = (prompts_folder() / "comparative" / "judge.jinja").read_text()
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.replace("{% block system %}\n", f"{{% block system %}}\n{words} "))
    return path


def reader(blind: Mapping[str, Callable[[str, int], bool]]) -> ScriptedEngine:
    """An engine that sees the true grades, but takes a document for the worst or best where it is blind.

    Args:
        blind: by a word of the prompt, for which topic and number of a document.
    """

    def answer(request: Request) -> dict[str, Label]:
        words = request.messages[0].content.split()
        topic, _, number = str(request.origin.document_id).partition("-")
        grade = int(number) % 3
        if any(word in words and misread(topic, int(number)) for word, misread in blind.items()):
            grade = 2 - grade
        grades: dict[str, Label] = {
            name: grade for name in ("relevance", "quality") if name in list_fields(request.schema)
        }
        return {**grades, "stance": LABELS[grade]}

    return ScriptedEngine(answer)


def opening(engine: ScriptedEngine | None) -> Opens:
    """What stands in for `open_client`; without an engine, only stored answers count."""
    answers = StoredAnswers() if engine is None else engine

    def opened(
        settings: EngineConfig, sampling: SamplingConfig, cache: CacheConfig, **_: Any
    ) -> AbstractAsyncContextManager[ModelClient]:
        return open_client(settings, sampling, cache, answers=answers, info=FACTS)

    return opened


def config_of(folder: Path, files: Mapping[str, Path], **flags: Any) -> Config:
    given: dict[str, Any] = {"topics": files["topics.xml"], "corpus": files["passages.jsonl"]}
    given |= {"index": folder / "index", "cache.file": folder / "answers.sqlite"}
    return load_config(
        None, given | {name.replace("__", "."): value for name, value in flags.items()}
    )


def asked_with(engine: ScriptedEngine, word: str) -> Sequence[Request]:
    """The requests of the prompts that have this word."""
    return [each for each in engine.requests if word in each.messages[0].content.split()]
