"""Runs on the project's sample, for tests: configuration, stages, the run that comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tests.fake_server import FakeServer
from tests.scripted_engine import FACTS, ScriptedEngine
from tests.stage_records import rank_record
from touche_llm.api.progress import Progress
from touche_llm.api.rank import Ranking
from touche_llm.cli.demo import SAMPLES
from touche_llm.config.configuration import Config
from touche_llm.config.files import load_config
from touche_llm.data.records import RunLine
from touche_llm.engines.cached_info import store_engine_info
from touche_llm.integrations.tira import detect_input
from touche_llm.judging.result import Judgments
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.counts import Counts
from touche_llm.llm.model import ModelClient
from touche_llm.llm.protocol import EngineInfo
from touche_llm.retrieval.candidates import Candidates
from touche_llm.runs import stages
from touche_llm.runs import stages as pipeline
from touche_llm.runs.context import RunContext
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.stages import RunResult
from touche_llm.tasks import get_task

SAMPLE = SAMPLES / "comparative"
# Tasks with samples, as parameters: by default one of each kind.
TASK_OF_EACH_KIND = [
    "comparative",
    "sentence_pairs",
    pytest.param("controversial", marks=pytest.mark.slow),
]


class Silent:
    """Progress that records its warnings and the titles of its stages.

    One that ends has made all of its steps.
    """

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.titles: list[str] = []

    def warn(self, message: str) -> None:
        self.notices.append(message)

    @contextmanager
    def stage(
        self, title: str, total: int, counts: Counts | None = None
    ) -> Iterator[Callable[[], None]]:
        self.titles.append(title)
        steps: list[str] = []
        yield lambda: steps.append(title)
        assert len(steps) == total, title


def config_for(folder: Path, **flags: Any) -> Config:
    sample = detect_input(SAMPLES / flags.get("task", "comparative"))
    given: dict[str, Any] = {
        "topics": sample.topics,
        "corpus": sample.corpus,
        "index": folder / "index",
    }
    given |= {"cache.file": folder / "answers.sqlite", "engine.retry_for": 1.0}
    if "stance" in get_task(flags.get("task", "comparative")).questions:
        given["stance.depth"] = 0  # one question a document, unless a test asks for more
    return load_config(
        None, given | {name.replace("__", "."): value for name, value in flags.items()}
    )


def run_lines(path: Path) -> list[RunLine]:
    lines = []
    for line in path.read_text().splitlines():
        topic, stance, document, rank, score, tag = line.split(" ")
        lines.append(RunLine(topic, stance, document, int(rank), float(score), tag))
    return lines


async def retrieve_stage(
    config: Config, folder: Path, progress: Progress, model: ModelClient | None = None
) -> Candidates:
    with RunContext(config, progress, model) as context:
        return await stages.retrieve_stage(context, RunDirectory(folder))


async def judge_stage(
    config: Config, folder: Path, progress: Progress, model: ModelClient
) -> Judgments:
    with RunContext(config, progress, model) as context:
        return await stages.judge_stage(context, RunDirectory(folder))


async def rank_stage(
    config: Config, folder: Path, progress: Progress, model: ModelClient | None = None
) -> Ranking:
    with RunContext(config, progress, model) as context:
        return await stages.rank_stage(context, RunDirectory(folder))


async def run_stages(
    config: Config, folder: Path, progress: Progress, model: ModelClient
) -> RunResult:
    with RunContext(config, progress, model) as context:
        directory = RunDirectory(folder)
        candidates = await stages.retrieve_stage(context, directory)
        judgments = await stages.judge_stage(context, directory)
        return RunResult(candidates, judgments, await stages.rank_stage(context, directory))


@contextmanager
def scripted_model(
    config: Config, script: Any, engine_type: type[ScriptedEngine] = ScriptedEngine
) -> Iterator[tuple[ModelClient, ScriptedEngine]]:
    """Open a model that answers from a script, and in a replay from the cache alone.

    Yield it with its engine.
    """
    engine = engine_type(script)
    with Cache(config.cache.file, config.cache.mode) as cache:
        answering = None if cache.mode is CacheMode.REPLAY else engine
        yield (
            ModelClient(
                engine_info=FACTS,
                engine=answering,
                cache=cache,
                sampling=config.sampling.model_copy(update={"resample_temperature": 1.0}),
            ),
            engine,
        )


async def run_scripted(config: Config, out: Path, script: Any) -> tuple[list[RunLine], Silent]:
    """The stages one by one, with a scripted engine."""
    progress = Silent()
    await retrieve_stage(config, out, progress)
    with scripted_model(config, script) as (model, _):
        await judge_stage(config, out, progress, model)
        await rank_stage(config, out, progress, model)
    return run_lines(out / "run.txt"), progress


async def run_directly(
    config: Config, out: Path, engine: ScriptedEngine, facts: EngineInfo = FACTS
) -> None:
    """All stages with an engine in this process."""
    with Cache(config.cache.file, config.cache.mode) as cache:
        store_engine_info(facts, cache)
        await run_stages(
            config,
            out,
            Silent(),
            ModelClient(engine_info=facts, engine=engine, cache=cache, sampling=config.sampling),
        )


def choose_topics(folder: Path, topics: Sequence[str]) -> None:
    """Record in a folder that these topics were chosen for its run, whatever lines that has."""
    path = folder / "ir-metadata.yml"
    metadata: dict[str, Any] = {"stages": {"rank": msgspec.to_builtins(rank_record())}}
    if path.exists():
        metadata = yaml.safe_load(path.read_text())
    metadata["stages"]["rank"]["chosen_topics"] = list(topics)
    path.write_text(yaml.safe_dump(metadata))


def with_cache(config: Config, **settings: Any) -> Config:
    """The configuration with other settings of the answer cache."""
    return config.model_copy(update={"cache": config.cache.model_copy(update=settings)})


async def run_on(
    server: FakeServer,
    config: Config,
    out: Path,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    async with server.running():
        engine = config.engine.model_copy(update={"base_url": server.url})
        config = config.model_copy(update={"engine": engine})
        return await pipeline.run_all(config, out, progress or Silent(), overwrite=overwrite)
