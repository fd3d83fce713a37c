"""Regression check: replay a recorded run, or take a new one, and compare it with the recorded run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from touche_llm.config import Config, flatten
from touche_llm.data.trec_runs import read_run
from touche_llm.errors import DataError, ToucheError, UsageError, describe_os_error, list_fields
from touche_llm.llm.cache import Cache, CacheMode, ValueT, ValueType
from touche_llm.llm.engine import EngineInfo
from touche_llm.llm.pooling import PoolingClient
from touche_llm.llm.recorder import EstimatingTokenizer, RecordingClient, RecordingEngine, run_until_pending
from touche_llm.llm.request import Request
from touche_llm.llm.settings import CacheConfig, PoolingConfig, PoolingPurpose
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.engines import name_kind, replay_engine_info
from touche_llm.pipeline.progress import SilentProgress
from touche_llm.pipeline.run_directory import RUN, RunDirectory
from touche_llm.pipeline.stages import judge_stage, rank_stage
from touche_llm.prompts.prompt import Prompt
from touche_llm.regression.differences import (
    RunDifference,
    compare_measures,
    compare_rankings,
    compare_requests,
    compare_settings,
)
from touche_llm.regression.snapshot import Snapshot, open_snapshot, run_settings
from touche_llm.retrieval.base import ExpansionSettings
from touche_llm.tasks import get_task

# Requests by purpose of their prompt.
Requests = Mapping[str, list[Request]]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay.

    Attributes:
        directory: Folder of the replayed run; without a run file if answers are missing.
        prompts: Prompts by purpose.
        missing: Requests whose answer is not in the cassette, of those that need no other missing answer.
        used_keys: Keys of the cache entries that were read.
    """

    directory: RunDirectory
    prompts: dict[str, Prompt]
    missing: Requests
    used_keys: set[str]
    facts: EngineInfo


async def replay(config: Config, first_stage: Path, work: Path, place: Path) -> ReplayResult:
    """Judge and rank a first stage in the empty folder `work` with cached answers only, as far as these allow.

    Where the length of a prompt is not cached, it is estimated: such a prompt has no cached answer either. Error
    messages name `place` instead of `work`.
    """
    directory = RunDirectory(work / "run")
    directory.path.mkdir(parents=True)
    shutil.copyfile(first_stage, directory.path / first_stage.name)
    # The first stage is given, so no query is expanded.
    config = config.model_copy(update={"index": work / "index", "expansion": ExpansionSettings()})
    engine = RecordingEngine(lambda _: None, EstimatingTokenizer())
    try:
        with RunContext(config, SilentProgress()) as context:
            prompts = context.load_prompts()
            with closing(_RecordingCache(config.cache.file, CacheMode.REPLAY)) as cache:
                facts = replay_engine_info(config.engine, cache)
                resample_temperature = config.sampling.resample_temperature
                context.model = RecordingClient(
                    engine_info=facts, engine=engine, cache=cache, resample_temperature=resample_temperature
                )
                context.open_pooling = partial(_open_recorded, cache)
                if await run_until_pending(judge_stage(context, directory)):
                    await run_until_pending(rank_stage(context, directory))
    except ToucheError as error:
        # The temporary folder says nothing to a reader.
        error.args = (str(error).replace(str(directory), str(place)).replace(str(work), str(place)),)
        raise
    # Two templates from different folders can have one name.
    purposes = {(prompt.name, prompt.hash): purpose for purpose, prompt in prompts.items()}
    missing: dict[str, list[Request]] = {}
    for request in engine.pending.values():
        missing.setdefault(purposes[request.origin.prompt, request.origin.prompt_hash], []).append(request)
    return ReplayResult(directory, prompts, missing, cache.used, facts)


class _RecordingCache(Cache):
    """A cache that records the keys of the entries that were read."""

    def __init__(self, path: Path, mode: CacheMode) -> None:
        super().__init__(path, mode)
        self.used: set[str] = set()

    def get(self, key: str, model: ValueType[ValueT], *, refreshed: bool = False) -> ValueT | None:
        value = super().get(key, model, refreshed=refreshed)
        if value is not None:
            self.used.add(key)
        return value


@asynccontextmanager
async def _open_recorded(
    cache: _RecordingCache, purpose: PoolingPurpose, asked: PoolingConfig, answers: CacheConfig
) -> AsyncIterator[PoolingClient]:
    """Open a cross-encoder whose scores are those of the cache."""
    facts = replay_engine_info(asked, cache, purpose)
    cache.used |= {entry.key for entry in cache.find(name_kind(purpose)) if entry.read(EngineInfo) == facts}
    yield PoolingClient(engine_info=facts, engine=None, cache=cache, purpose=purpose)


def load_finished_run(run: Path) -> Config:
    """Load the configuration of a finished run whose answers were kept."""
    directory = RunDirectory(run)
    for file in (directory.config_file, directory.run_file):
        if not file.is_file():
            raise DataError(f"{file}: no such file; give the folder of a finished run")
    directory.check_finished("rank")
    config = directory.read_config()
    if config.cache.mode is CacheMode.OFF or not config.cache.file.is_file():
        raise DataError(
            f"{config.cache.file}: no answers of {run}; if the file moved, name it in {directory.config_file} "
            "(`cache.file`), relative to that folder"
        )
    return config


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """A replay or a new run, its differences from the recorded run, and its folder; None if the replay failed."""

    differences: list[RunDifference]
    config: Config
    run: Path | None


async def check_folder(folder: Path) -> list[RunDifference]:
    """Check the recorded run of a folder; one that cannot be read has that error as its only difference."""
    try:
        return await check_snapshot(open_snapshot(folder))
    except (ToucheError, OSError) as error:
        text = describe_os_error(error) if isinstance(error, OSError) else str(error)
        return [RunDifference(folder.name, "error", text=text)]


async def check_snapshot(snapshot: Snapshot) -> list[RunDifference]:
    """Return how a replay with the current program and templates differs from a recorded run."""
    with tempfile.TemporaryDirectory() as name:
        return (await compare_replay(snapshot, Path(name))).differences


async def compare_replay(snapshot: Snapshot, work: Path) -> ReplayComparison:
    """Do the work of `check_snapshot` in an empty folder, where the replayed run remains."""
    name = snapshot.name
    config = snapshot.config().model_copy(update={"index": work / "index"})
    settings = _compare_settings(snapshot, config)
    try:
        now = await replay(config, snapshot.first_stage, work, snapshot.folder)
    except ToucheError as error:
        return ReplayComparison([RunDifference(name, "error", text=str(error)), *settings], config, None)
    if now.missing:
        requests = compare_requests(name, snapshot.read_templates(), now.prompts, now.missing)
        return ReplayComparison([*settings, *requests], config, None)
    differences = compare_runs(snapshot, now.directory.run_file)
    return ReplayComparison([*settings, *differences] if differences else [], config, now.directory.path)


def _compare_settings(snapshot: Snapshot, config: Config) -> list[RunDifference]:
    """Compare the settings with the recorded ones; a default that the program did not have then is no difference."""
    recorded, now = snapshot.manifest.settings, run_settings(config)
    defaults = flatten({name: field.default for name, field in list_fields(Config)})
    new = {name: value for name, value in now.items() if name in recorded or value != defaults.get(name)}
    return compare_settings(snapshot.name, recorded, new)


def compare_runs(snapshot: Snapshot, run: Path) -> list[RunDifference]:
    """Compare a run file with the recorded one; include measures if judgments were recorded."""
    if run.read_bytes() == snapshot.run.read_bytes():
        return []
    labels = snapshot.task.stances
    old, new = read_run(snapshot.run, labels), read_run(run, labels)
    differences = compare_rankings(snapshot.name, old, new)
    qrels = snapshot.qrels()
    if qrels is None or differences[0].kind == "run":
        return differences
    return differences + compare_measures(snapshot.name, old, new, qrels)


def compare_new_run(snapshot: Snapshot, run: Path) -> ReplayComparison:
    """Compare the settings, ranks and measures of a recorded run with those of a new run in the folder `run`."""
    config = load_finished_run(run)
    if (own := get_task(config.task).name) != snapshot.task.name:
        raise UsageError(f"{run}: a run of {own}; {snapshot.folder} is one of {snapshot.task.name}")
    return ReplayComparison([*_compare_settings(snapshot, config), *compare_runs(snapshot, run / RUN)], config, run)


def require_run(snapshot: Snapshot, compared: ReplayComparison) -> Path:
    """Return the run that an update would store; raise UsageError if the replay gave none."""
    if compared.run is None:
        raise UsageError(
            f"{snapshot.folder}: the recorded answers no longer suffice; make a new run of its topics, and give its "
            "folder (`run: FOLDER`)"
        )
    return compared.run
