"""Record the project's own regression runs anew: `make regress`, after `touche-llm regress check --dir tests/regress`.

Needed after a wanted change of a sample, of a prompt, or of the ranking; `git diff` shows what
changes.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.sample_runs import Silent, judge_stage, rank_stage, retrieve_stage
from tests.scripted_engine import Script, ScriptedEngine
from tests.write_demo_cassette import FACTS, script_of
from touche_llm.cli.demo import SAMPLE_TASKS, sample_config
from touche_llm.config.configuration import Config
from touche_llm.engines.cached_info import store_engine_info
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.model import ModelClient
from touche_llm.regression.check import load_finished_run
from touche_llm.regression.record import record

FOLDER = Path(__file__).parent / "regress"
# Few topics and documents, but every prompt; of the controversial task so little context that pages
# are cut.
FLAGS: Mapping[str, Mapping[str, Any]] = {
    "comparative": {
        "topic": ("3", "20"),
        "depth": 6,
        "rank": ("judge", "listwise:4", "pairwise:3"),
        "weights": {"relevance": 1.0, "quality": 0.5, "first_stage": 0.05},
    },
    "controversial": {
        "limit_topics": 2,
        "depth": 4,
        "rank": ("judge", "setwise:3"),
        "engine.context": 1200,
    },
    "sentence_pairs": {
        "limit_topics": 1,
        "depth": 16,
        "sentences.pool": 24,
        "pairs.judged": 8,
        "pairs.both_orders": 3,
        "pairs.most": 30,
        "rank": ("judge", "insertion:3"),
    },
}


async def make_run(task: str, folder: Path, script: Script | None = None, **more: Any) -> Path:
    """A run of a sample in `folder/run`, with the answers of the demo or others.

    Its cache is in `folder`.
    """
    flags = {
        **FLAGS[task],
        "cache.file": folder / "answers.sqlite",
        "cache.mode": CacheMode.REUSE,
        "tag": "regress",
    }
    config = sample_config(
        task, folder, {**flags, **{name.replace("__", "."): each for name, each in more.items()}}
    )
    facts = FACTS.model_copy(update={"context": config.engine.context or FACTS.context})
    config = _known(config, facts.model, facts.context)
    with Cache(config.cache.file) as cache:
        store_engine_info(facts, cache)
        model = ModelClient(
            engine_info=facts,
            engine=ScriptedEngine(script or script_of(task)),
            cache=cache,
            sampling=config.sampling,
        )
        await retrieve_stage(config, folder / "run", Silent())
        await judge_stage(config, folder / "run", Silent(), model)
        await rank_stage(config, folder / "run", Silent(), model)
    return folder / "run"


def _known(config: Config, model: str, context: int) -> Config:
    return config.model_copy(
        update={"engine": config.engine.model_copy(update={"model": model, "context": context})}
    )


async def main() -> None:
    """Record the runs of all tasks in place of the older recordings."""
    for task in SAMPLE_TASKS:
        with tempfile.TemporaryDirectory() as name:
            run = await make_run(task, Path(name))
            print(task, await record(load_finished_run(run), run, FOLDER / task))


if __name__ == "__main__":
    asyncio.run(main())
