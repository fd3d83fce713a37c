"""Write the demo's cassettes anew from the answers that were written for it: `make demo-cassette`.

Needed after a change of a sample, of a prompt, or of anything else in the key of a request.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.scripted_engine import Label, Script, ScriptedEngine
from touche_llm import pipeline
from touche_llm.cli.console import ConsoleObserver
from touche_llm.cli.demo import SAMPLES, sample_config
from touche_llm.config import Config
from touche_llm.engines import remember
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.engine import EngineFacts
from touche_llm.llm.language_model import LanguageModel
from touche_llm.llm.request import Request
from touche_llm.tasks import TASKS

FACTS = EngineFacts(
    model="written-for-the-demo", revision="", context=32768, overhead=32, engine="none: the answers are invented"
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


def script_of(task: str) -> Script:
    """The answers written for a task's sample."""
    answers = yaml.safe_load((SAMPLES / task / "answers.yaml").read_text(encoding="utf-8"))

    def answer_about(topic: str, document: str) -> Answer:
        found: Answer = answers[topic].get(document) or {**OFF_TOPIC, "stance": OFF_TOPIC_STANCE[task]}
        return found

    def script(request: Request) -> Mapping[str, Label | Mapping[Label, float]]:
        topic, document = request.origin.topic_id, request.origin.document_id
        if document is None:
            objects: Mapping[str, Label] = answers["objects"][topic]
            return objects
        sentences = document.split(",")
        if len(sentences) == 2:
            answer = of_a_pair(document, *(answer_about(topic, each) for each in sentences))
        else:
            answer = answer_about(topic, document)
        return {
            field: dict(enumerate(answer[field])) if isinstance(answer[field], list) else answer[field]
            for field in request.schema["properties"]
        }

    return script


def of_a_pair(document: str, one: Answer, other: Answer) -> Answer:
    """The answer about a pair, made of those about its sentences by a rule: coherent is a claim before its support."""
    grades = {
        field: [(first + second) / 2 for first, second in zip(one[field], other[field], strict=True)]
        for field in ("relevance", "quality")
    }
    first, second = (each.split("__")[0] for each in document.split(","))
    fitting = (one["role"]["CLAIM"] * other["role"]["PREMISE"]) * (1.0 if first == second else 0.7)
    coherence = [0.4 - 0.35 * fitting, 0.3 - 0.2 * fitting, 0.2 + 0.15 * fitting, 0.1 + 0.4 * fitting]
    pro = (one["stance"]["PRO"] + other["stance"]["PRO"]) / 2
    con = (one["stance"]["CON"] + other["stance"]["CON"]) / 2
    stance = {"PRO": pro / (pro + con), "CON": con / (pro + con)}
    return {**grades, "coherence": coherence, "stance": stance}


async def write(config: Config, cassette: Path, script: Script, out: Path) -> int:
    """Run a sample with a script and export the cache; returns how many entries it has."""
    observer = ConsoleObserver()
    await pipeline.retrieve_stage(config, out, observer)
    with Cache(config.cache.file) as cache:
        remember(FACTS, cache)
        model = LanguageModel(facts=FACTS, engine=ScriptedEngine(script), cache=cache)
        await pipeline.judge_stage(config, out, observer, model)
        return cache.export_cassette(cassette)


async def main() -> None:
    """Write the cassettes of all samples."""
    for task in TASKS:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            flags = {"cache.file": out / "answers.sqlite", "cache.mode": CacheMode.REUSE}
            config = sample_config(task, out, flags)
            print(task, await write(config, SAMPLES / task / "cassette.jsonl", script_of(task), out), "entries")


if __name__ == "__main__":
    asyncio.run(main())
