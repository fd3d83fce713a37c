"""Write the demo's cassette anew from the answers that were written for it: `make demo-cassette`.

Needed after a change of the sample, of the comparative prompts, or of anything else in the key of a request.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.scripted_engine import Label, ScriptedEngine
from touche_llm import pipeline
from touche_llm.cli.console import ConsoleObserver
from touche_llm.cli.demo import SAMPLES
from touche_llm.config import load_config
from touche_llm.engines import remember
from touche_llm.llm.cache import Cache
from touche_llm.llm.engine import EngineFacts
from touche_llm.llm.language_model import LanguageModel
from touche_llm.llm.request import Request

SAMPLE = SAMPLES / "comparative"
FACTS = EngineFacts(
    model="written-for-the-demo", revision="", context=32768, overhead=32, engine="none: the answers are invented"
)
# For a passage that the first stage finds for another topic than its own.
OFF_TOPIC: Mapping[str, Mapping[Label, float]] = {
    "relevance": {0: 0.95, 1: 0.04, 2: 0.01},
    "quality": {0: 0.30, 1: 0.40, 2: 0.25, 3: 0.05},
    "stance": {"FIRST": 0.01, "SECOND": 0.01, "NEUTRAL": 0.03, "NO": 0.95},
}


def script(request: Request) -> Mapping[str, Label | Mapping[Label, float]]:
    """The answer written for a request."""
    answers = yaml.safe_load((SAMPLE / "answers.yaml").read_text(encoding="utf-8"))
    topic, document = request.origin.topic_id, request.origin.document_id
    if document is None:
        objects: Mapping[str, Label] = answers["objects"][topic]
        return objects
    answer = answers[topic].get(document)
    if answer is None:
        return OFF_TOPIC
    grades = {field: dict(enumerate(answer[field])) for field in ("relevance", "quality")}
    return {**grades, "stance": answer["stance"]}


async def main() -> None:
    """Judge the sample with the script and export the cache."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        config = load_config(
            None,
            {
                "topics": SAMPLE / "topics.xml",
                "corpus": SAMPLE / "passages.jsonl",
                "index": out / "index",
                "cache.file": out / "answers.sqlite",
            },
        )
        observer = ConsoleObserver()
        pipeline.retrieve_stage(config, out, observer)
        with Cache(config.cache.file) as cache:
            remember(FACTS, cache)
            model = LanguageModel(facts=FACTS, engine=ScriptedEngine(script), cache=cache)
            await pipeline.judge_stage(config, out, observer, model)
            print(f"{cache.export_cassette(SAMPLE / 'cassette.jsonl')} entries")


if __name__ == "__main__":
    asyncio.run(main())
