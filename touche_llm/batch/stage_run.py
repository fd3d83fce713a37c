"""A stage run with batch files: its inputs, its model, and the entries that it adds to the cache.

The stage writes nothing. A request without an answer cancels the task that waits for it, while all
other tasks continue. Therefore an export holds every request that does not depend on a pending answer.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from touche_llm.config import Config
from touche_llm.data.files import read_record
from touche_llm.data.json_records import JsonModel
from touche_llm.errors import DataError, UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.engines.base import EngineInfo
from touche_llm.llm.engines.batch import BatchClient, BatchEngine
from touche_llm.llm.engines.dry_run import OverlayCache
from touche_llm.llm.model import LostRequests, ModelClient
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.dry_run import QuietProgress
from touche_llm.pipeline.progress import Progress
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.run_files import BATCH
from touche_llm.pipeline.stages import StageName, compute_stage
from touche_llm.ranking.steps import list_comparison_kinds

ENGINE = "batch files"


class Batch(JsonModel):
    """Inputs of the last export into a run's folder, which the import needs as well.

    Attributes:
        stage: Stage that sends the requests.
        facts: Engine that will answer.
        config: Configuration of the stage.
        written: SHA-256 of each file of requests; the next export may replace only these.
        export_options: Command-line options of the export, for the next one.
        stage_options: Those options that the stage's own command takes, for its replay.
    """

    stage: StageName
    facts: EngineInfo
    config: Config
    written: tuple[str, ...] = ()
    export_options: tuple[str, ...] = ()
    stage_options: tuple[str, ...] = ()


def read_batch(folder: Path) -> Batch:
    """Return the inputs of the last export for a run's folder; raise DataError if there was none."""
    if not (folder / BATCH).exists():
        raise DataError(f"{folder / BATCH}: no such file; run `touche-llm batch export` for this folder first")
    return read_record(folder / BATCH, Batch, "batch export")


def sends_requests(stage: StageName, config: Config) -> bool:
    """Return whether a stage sends requests with this configuration."""
    return {"retrieve": config.expansion.use, "judge": True, "rank": bool(list_comparison_kinds(config.steps))}[stage]


def check_cache(config: Config) -> None:
    """Raise UsageError unless answers can be read from the cache and added to it."""
    cache = config.cache
    if cache.mode in (CacheMode.OFF, CacheMode.REFRESH):
        raise UsageError(
            f"cache.mode: {cache.mode}: batch files hold the requests that the cache cannot answer; set it to reuse"
        )
    if cache.file.suffix == ".jsonl":
        raise UsageError(f"{cache.file}: a cassette can only be replayed; name an .sqlite file (`cache.file`)")


def make_model(config: Config, facts: EngineInfo, engine: BatchEngine, cache: Cache, lost: LostRequests) -> ModelClient:
    """Make the language model of a stage that is run with batch files."""
    return BatchClient(
        facts,
        engine,
        cache,
        resample_temperature=config.sampling.resample_temperature,
        retry_failures=config.cache.retry_failures,
        lost=lost,
    )


async def run_stage(stage: StageName, config: Config, folder: Path, progress: Progress, model: ModelClient) -> bool:
    """Run a stage as far as the answers allow; return whether it finished."""
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    try:
        with RunContext(config, QuietProgress(progress, "batch"), model) as context:
            await compute_stage(stage, context, RunDirectory(folder))
    except asyncio.CancelledError:
        if task.cancelling() > cancelled:
            raise  # The caller cancelled the task, not a pending request.
        return False
    return True


def apply_overlay(overlay: OverlayCache, config: Config) -> None:
    """Remove from the cache what the overlay hides; add the overlay's entries, all or none."""
    with tempfile.TemporaryDirectory() as folder:
        entries = Path(folder) / "entries.jsonl"
        if overlay.export_cassette(entries) or overlay.hidden:
            with Cache(config.cache.file, CacheMode.REUSE) as cache:
                for key, kind in overlay.hidden.items():
                    cache.forget([key], kind=kind)
                cache.import_cassette(entries)
