"""Offline replay of a recorded run that collects its requests and those without a recorded answer."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from touche_llm.config import Config
from touche_llm.errors import ToucheError
from touche_llm.llm.cache import Cache, CacheMode, ValueT, ValueType
from touche_llm.llm.engine import EngineInfo
from touche_llm.llm.pooling import PoolingClient
from touche_llm.llm.recorder import EstimatingTokenizer, RecordingClient, RecordingEngine, run_until_pending
from touche_llm.llm.request import Request
from touche_llm.llm.settings import CacheConfig, PoolingConfig, PoolingPurpose
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.engines import OpenPooling, name_kind, open_model, replay_engine_info
from touche_llm.pipeline.progress import SilentProgress
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.stages import judge_stage, rank_stage
from touche_llm.prompts.prompt import Prompt
from touche_llm.ranking.expansion import ExpansionSettings

# Requests by purpose of their prompt.
Requests = Mapping[str, list[Request]]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay.

    Attributes:
        directory: Folder of the replayed run; without a run file if answers are missing.
        prompts: Prompts by purpose.
        requests: All requests, in the order in which they were made.
        missing: Requests whose answer is not in the cassette, of those that need no other missing answer.
        used_keys: Keys of the cache entries that were read.
        facts: Facts about the engine.
    """

    directory: RunDirectory
    prompts: dict[str, Prompt]
    requests: Requests
    missing: Requests
    used_keys: set[str]
    facts: EngineInfo


async def replay(config: Config, first_stage: Path, work: Path, place: Path) -> ReplayResult:
    """Judge and rank a first stage with cached answers only, as far as these allow.

    Where the length of a prompt is not cached, it is estimated: such a prompt has no cached answer either.

    Args:
        config: Configuration of the replay.
        first_stage: File of candidates.
        work: Empty folder for the run and the index of its documents.
        place: Folder that error messages name instead of `work`.

    Raises:
        ToucheError: As the stages.
    """
    directory = RunDirectory(work / "run")
    directory.create()
    shutil.copyfile(first_stage, directory.path / first_stage.name)
    # The first stage is given, so no query is expanded.
    config = config.model_copy(update={"index": work / "index", "expansion": ExpansionSettings()})
    engine = RecordingEngine(lambda _: None, EstimatingTokenizer())
    try:
        with RunContext(config, SilentProgress()) as context:
            prompts = context.load_prompts()
            async with open_model(config.engine, config.sampling, config.cache) as opened:
                with closing(_RecordingCache(config.cache.file, CacheMode.REPLAY)) as cache:
                    model = context.model = RecordingClient(
                        engine_info=opened.engine_info,
                        engine=engine,
                        cache=cache,
                        resample_temperature=opened.resample_temperature,
                    )
                    context.open_pooling = _make_opener(cache)
                    if await run_until_pending(judge_stage(context, directory)):
                        await run_until_pending(rank_stage(context, directory))
    except ToucheError as error:
        # The temporary folder says nothing to a reader.
        error.args = (str(error).replace(str(directory), str(place)).replace(str(work), str(place)),)
        raise
    # Two templates from different folders can have one name.
    purposes = {(prompt.name, prompt.hash): purpose for purpose, prompt in prompts.items()}

    def group(requests: Iterable[Request]) -> dict[str, list[Request]]:
        groups: dict[str, list[Request]] = {}
        for request in requests:
            groups.setdefault(purposes[request.origin.prompt, request.origin.prompt_hash], []).append(request)
        return groups

    missing = group(engine.pending.values())
    return ReplayResult(directory, prompts, group(model.requests), missing, cache.used, model.engine_info)


class _RecordingCache(Cache):
    """A cache that records the keys of the entries that were read."""

    def __init__(self, path: Path, mode: CacheMode) -> None:
        super().__init__(path, mode)
        self.used: set[str] = set()

    def get(self, key: str, model: ValueType[ValueT], *, refreshed: bool = False) -> ValueT | None:
        """Return the value of a key and record the key."""
        value = super().get(key, model, refreshed=refreshed)
        if value is not None:
            self.used.add(key)
        return value


def _make_opener(cache: _RecordingCache) -> OpenPooling:
    """Return a function that opens cross-encoders whose scores are those of the cache."""

    @asynccontextmanager
    async def open_recorded(
        purpose: PoolingPurpose, asked: PoolingConfig, answers: CacheConfig
    ) -> AsyncIterator[PoolingClient]:
        facts = replay_engine_info(asked, cache, purpose)
        cache.used |= {entry.key for entry in cache.find(name_kind(purpose)) if entry.read(EngineInfo) == facts}
        yield PoolingClient(engine_info=facts, engine=None, cache=cache, purpose=purpose)

    return open_recorded
