"""Write the demo's cassettes anew from the answers that were written for it: `make demo-cassette`.

Needed after a change of a sample, of a prompt, or of anything else in the key of a request.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import yaml

from tests.sample_runs import judge_stage, rank_stage, retrieve_stage
from tests.scripted_engine import Label, Script, ScriptedEngine
from touche_llm.api.progress import ConsoleProgress
from touche_llm.cli.demo import SAMPLE_TASKS, SAMPLES, sample_config
from touche_llm.cli.tasks import EXAMPLE
from touche_llm.config.configuration import Config
from touche_llm.config.files import load_config
from touche_llm.data.topics.reading import read_topics
from touche_llm.engines.cached_info import store_engine_info
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.model import ModelClient
from touche_llm.llm.protocol import EngineInfo
from touche_llm.llm.request import Request
from touche_llm.llm.settings import SamplingConfig

FACTS = EngineInfo(
    model="written-for-the-demo",
    revision="",
    context=32768,
    overhead=32,
    engine="none: the answers are invented",
)
Answer = Mapping[str, Any]
# For a document that the first stage finds for another topic than its own.
OFF_TOPIC: Answer = {
    "role": {"CLAIM": 0.2, "PREMISE": 0.2, "NONE": 0.6},
    "relevance": [0.95, 0.04, 0.01, 0.0],
    "quality": [0.30, 0.40, 0.25, 0.05],
}
OFF_TOPIC_STANCE: Mapping[str, Mapping[Label, float]] = {
    "comparative": {"FIRST": 0.01, "SECOND": 0.01, "NEUTRAL": 0.03, "NO": 0.95},
    "controversial": {"PRO": 0.01, "CON": 0.01, "NEU": 0.03, "NO": 0.95},
    "sentence_pairs": {"PRO": 0.05, "CON": 0.05, "NONE": 0.90},
}


@cache
def script_of(task: str) -> Script:
    """The answers written for a task's sample."""
    answers = yaml.safe_load((SAMPLES / task / "answers.yaml").read_text(encoding="utf-8"))

    def answer_about(topic: str, document: str) -> Answer:
        found: Answer = answers[topic].get(document) or {
            **OFF_TOPIC,
            "stance": OFF_TOPIC_STANCE[task],
        }
        return found

    def answer_to(topic: str, document: str) -> Answer:
        sentences = document.split(",")
        if len(sentences) == 2:
            return of_a_pair(document, *(answer_about(topic, each) for each in sentences))
        return answer_about(topic, document)

    def script(request: Request) -> Mapping[str, Label | Mapping[Label, float]]:
        topic, document = request.origin.topic_id, request.origin.document_id
        fields = list(list_fields(request.schema))
        if document is None:
            about_topic: Mapping[str, Label] = answers[
                "queries" if "query1" in fields else "objects"
            ][topic]
            return about_topic
        if fields in (["best"], ["order"]):
            return compared(fields[0], [answer_to(topic, each) for each in document.split()])
        answer = answer_to(topic, document)
        if fields == ["position", "stance"]:
            return position_of(
                answer["stance"], swapped=is_swapped(request, first_objects.get(topic, ""))
            )
        return {
            field: dict(enumerate(answer[field]))
            if isinstance(answer[field], list)
            else answer[field]
            for field in fields
            if field != "position"  # is in the stance
        }

    topics = read_topics(SAMPLES / task / "topics.xml")
    first_objects = {topic.id: topic.objects[0] for topic in topics if topic.objects}
    first_objects |= {
        topic: objects["first"] for topic, objects in answers.get("objects", {}).items()
    }
    return script


def script_with_queries(task: str) -> Script:
    """The answers written for a task's sample, and queries of an expansion."""
    answers = script_of(task)

    def script(request: Request) -> Mapping[str, Label | Mapping[Label, float]]:
        if "query1" in list_fields(request.schema):
            return {
                "query1": "cost and comfort",
                "query2": "reasons for it",
                "query3": "what people say",
            }
        return answers(request)

    return script


def compared(kind: str, answers: list[Answer]) -> Mapping[str, Label | Mapping[Label, float]]:
    """The answer about several documents, derived from the answers about each, with a bias for the first."""
    worth = [
        sum(
            grade * share
            for field in ("relevance", "quality")
            for grade, share in enumerate(answer[field])
        )
        for answer in answers
    ]
    if kind == "order":
        places = sorted(range(len(worth)), key=lambda place: -worth[place])
        return {"order": " > ".join(ascii_uppercase[place] for place in places)}
    shares = [math.exp(2 * value + 0.2 * (place == 0)) for place, value in enumerate(worth)]
    return {
        "best": {ascii_uppercase[place]: share / sum(shares) for place, share in enumerate(shares)}
    }


def position_of(
    stance: Mapping[Label, float], swapped: bool
) -> Mapping[str, Label | Mapping[Label, float]]:
    """The answer to the stance prompt, made of the stance in the answer to the judge prompt."""
    other = {"FIRST": "SECOND", "SECOND": "FIRST"} if swapped else {}
    yes = 1.0 - stance["NO"]
    sides = {
        other.get(str(label), label): share / yes
        for label, share in stance.items()
        if label != "NO"
    }
    return {"position": {"YES": yes, "NO": stance["NO"]}, "stance": sides}


def is_swapped(request: Request, first: str) -> bool:
    """Whether the objects are named in the other order than in the topic."""
    user = request.messages[-1].content
    return "First object" in user and first not in user.split("First object", 1)[1].splitlines()[0]


def of_a_pair(document: str, one: Answer, other: Answer) -> Answer:
    """The answer about a pair, derived from those about its sentences: a claim before its support is coherent."""
    grades = {
        field: [
            (first + second) / 2 for first, second in zip(one[field], other[field], strict=True)
        ]
        for field in ("relevance", "quality")
    }
    first, second = (each.split("__")[0] for each in document.split(","))
    fitting = (one["role"]["CLAIM"] * other["role"]["PREMISE"]) * (1.0 if first == second else 0.7)
    coherence = [
        0.4 - 0.35 * fitting,
        0.3 - 0.2 * fitting,
        0.2 + 0.15 * fitting,
        0.1 + 0.4 * fitting,
    ]
    pro = (one["stance"]["PRO"] + other["stance"]["PRO"]) / 2
    con = (one["stance"]["CON"] + other["stance"]["CON"]) / 2
    stance = {"PRO": pro / (pro + con), "CON": con / (pro + con)}
    return {**grades, "coherence": coherence, "stance": stance}


async def write(config: Config, cassette: Path, script: Script, out: Path) -> int:
    """Run a sample with a script and export the cache; returns how many entries it has."""
    progress = ConsoleProgress()
    await retrieve_stage(config, out, progress)
    with Cache(config.cache.file) as cache:
        store_engine_info(FACTS, cache)
        model = ModelClient(
            engine_info=FACTS, engine=ScriptedEngine(script), cache=cache, sampling=SamplingConfig()
        )
        await judge_stage(config, out, progress, model)
        await rank_stage(config, out, progress, model)
        return cache.export_cassette(cassette).entries


async def write_example() -> int:
    """Write the answers of the example that `tasks new` copies.

    Returns how many entries they have.
    """
    answers = yaml.safe_load((EXAMPLE / "answers.yaml").read_text(encoding="utf-8"))

    def script(request: Request) -> Mapping[str, Label | Mapping[Label, float]]:
        answer = answers[request.origin.topic_id][request.origin.document_id]
        return {
            field: dict(enumerate(value)) if isinstance(value, list) else value
            for field, value in answer.items()
        }

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        flags = {
            "task": str(EXAMPLE),
            "topics": EXAMPLE / "topics.xml",
            "corpus": EXAMPLE / "opinions.jsonl",
        }
        flags |= {
            "index": out / "index",
            "cache.file": out / "answers.sqlite",
            "cache.mode": CacheMode.REUSE,
        }
        return await write(load_config(None, flags), EXAMPLE / "answers.jsonl", script, out)


async def main() -> None:
    """Write the cassettes of all samples."""
    print("example", await write_example(), "entries")
    for task in SAMPLE_TASKS:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            flags = {"cache.file": out / "answers.sqlite", "cache.mode": CacheMode.REUSE}
            config = sample_config(task, out, flags)
            print(
                task,
                await write(config, SAMPLES / task / "cassette.jsonl", script_of(task), out),
                "entries",
            )


if __name__ == "__main__":
    asyncio.run(main())
