"""Export of a stage's pending requests as batch files."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import orjson

from touche_llm.config import Config
from touche_llm.data.io import check_output, open_atomic, read_record, sha256, write_records
from touche_llm.data.records import JsonModel
from touche_llm.errors import DataError, UsageError
from touche_llm.llm.batch import BatchClient, BatchEngine, Replies
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.chat import CHAT_PATH, build_chat_body
from touche_llm.llm.engine import EngineInfo
from touche_llm.llm.model import NOTHING_LOST, LostRequests, ModelClient
from touche_llm.llm.recorder import OverlayCache
from touche_llm.llm.request import EMPTY_CHAT, Request, place_system_message
from touche_llm.llm.truncation import ChatTokenizer
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.dry_run import QuietProgress
from touche_llm.pipeline.engines import assume_engine_info
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


# Tokens that an unknown chat template is assumed to add: so many that no long document counts as short. A template
# that adds more leads to truncated answers or refused requests, which are counted.
_ASSUMED_OVERHEAD = 512
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class Export:
    """Requests that a stage can send now, grouped by prompt and topic.

    Attributes:
        batch: Inputs of the export.
        requests: Requests that the cache cannot answer.
        failed: Number of requests with only unusable answers in all samples; they are not sent again.
        cached: Number of requests that the cache answers.
    """

    batch: Batch
    requests: list[Request]
    failed: int
    cached: int


async def pending_requests(
    stage: StageName,
    config: Config,
    folder: Path,
    tokenizer: Path | None,
    progress: Progress,
    *,
    lost: LostRequests = NOTHING_LOST,
) -> Export:
    """Return the requests that a stage would send now and the cache cannot answer.

    The only output is in the cache: how documents are truncated. Failures that are retried are removed from it.

    Args:
        stage: Stage to export.
        config: Configuration of the stage.
        folder: The run's folder, with the outputs of earlier stages.
        tokenizer: Folder of the model's tokeniser; required if a document may be too long.
        progress: Receives warnings and the progress of each stage.
        lost: Requests that are not sent again.

    Raises:
        UsageError: The model or its context is unknown, a document has to be measured without a tokeniser, or the
            cache is read-only. Names the missing option.
    """
    check_cache(config)
    with OverlayCache(config.cache.file) as cache:
        counter = None
        if tokenizer is not None:
            counter = ChatTokenizer(tokenizer, config.sampling.chat_template_kwargs)
        facts = _known_facts(config, cache, counter)
        engine = BatchEngine(Replies(), counter, is_import=False)
        model = make_model(config, facts, engine, cache, lost)
        if sends_requests(stage, config):
            await run_stage(stage, config, folder, progress, model)
        apply_overlay(cache, config)
    batch = Batch(stage=stage, facts=facts, config=config)
    requests = _group_by_topic(engine.pending.values())
    return Export(batch, requests, model.counts.failures, model.counts.cache_hits)


def write_requests(
    export: Export, folder: Path, path: Path, shards: int, *, overwrite: bool = False
) -> list[tuple[Path, int]]:
    """Write requests as OpenAI's batch files: all files or none.

    Files of the folder's last export to the same name are replaced, and removed if nothing is pending.

    Args:
        export: The requests.
        folder: The run's folder, in which the inputs of the export are recorded.
        path: File to write; shards have their number before the suffix.
        shards: Maximum number of files; their numbers of requests differ by at most one.
        overwrite: Whether other files of that name may be replaced and removed as well.

    Returns:
        The files, each with its number of requests.

    Raises:
        UsageError: A file of that name exists that the last export did not write.
    """
    count = len(export.requests)
    shards = min(shards, count)
    known = set(read_batch(folder).written) if (folder / BATCH).exists() else set()
    old = _find_former_files(path, known, overwrite)
    files: list[tuple[Path, int]] = []
    written: list[str] = []
    if count:
        folder.mkdir(parents=True, exist_ok=True)
        waiting = iter(export.requests)
        with ExitStack() as stack:
            for number in range(1, shards + 1):
                name = path.with_name(f"{path.stem}-{number:05}-of-{shards:05}{path.suffix}") if shards > 1 else path
                size = math.ceil((count - sum(size for _, size in files)) / (shards - number + 1))
                stream = stack.enter_context(open_atomic(name))
                digest = hashlib.sha256()
                for request in islice(waiting, size):
                    line = request_line(request)
                    digest.update(line)
                    stream.write(line)
                written.append(digest.hexdigest())
                files.append((name, size))
            # Recorded before the files get their names, together with the former files: so the next export may replace
            # whatever a killed one leaves.
            former = {sha256(file) for file in old} & known
            hashes = (*written, *sorted(former - set(written)))
            write_records(folder / BATCH, [export.batch.model_copy(update={"written": hashes})])
    for file in old - {name for name, _ in files}:
        file.unlink()
    return files


def request_line(request: Request) -> bytes:
    """Return a request as a line of a batch file."""
    line = {"custom_id": request.key, "method": "POST", "url": CHAT_PATH, "body": build_chat_body(request)}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _known_facts(config: Config, cache: Cache, tokenizer: ChatTokenizer | None) -> EngineInfo:
    """Return the facts about the engine that are known without a request.

    Raises:
        UsageError: The name of the model or its context is unknown, or the tokeniser is another model's.
    """
    known = assume_engine_info(config.engine, cache)
    if not known.model:
        raise UsageError(
            "engine.model: the name of the model is unknown, and keys and requests contain it; give the name under "
            "which vLLM will serve it"
        )
    if not known.engine and config.engine.context is None:
        raise UsageError(
            "engine.context: the context of the model is unknown, and documents are truncated to fit; give the "
            "number of tokens that vLLM will allow"
        )
    overhead = known.overhead if known.engine else _ASSUMED_OVERHEAD
    if tokenizer is not None:
        counted = tokenizer.count_tokens(place_system_message(EMPTY_CHAT, config.sampling.system_message))
        if known.engine and counted != overhead and (overhead != _ASSUMED_OVERHEAD or counted > overhead):
            raise UsageError(
                f"engine.tokenizer: its chat template adds {counted} tokens, but that of {known.model} in {cache.path} "
                f"adds {overhead}; give the folder of that model"
            )
        overhead = counted
    return known.model_copy(update={"overhead": overhead, "engine": ENGINE})


def _group_by_topic(requests: Iterable[Request]) -> list[Request]:
    """Return requests grouped by prompt and topic: a prefix cache reuses their common beginning."""
    groups: dict[tuple[str, str], list[Request]] = {}
    for request in requests:
        groups.setdefault((request.origin.prompt, request.origin.topic_id), []).append(request)
    return [request for group in groups.values() for request in group]


def _find_former_files(path: Path, known: set[str], overwrite: bool) -> set[Path]:
    """Return the files of an earlier export to this name, whole or in shards.

    Raises:
        UsageError: One of them is not a file, or its hash is not in `known` and `overwrite` is not set.
    """
    found = {path} if path.exists() else set()
    if path.parent.is_dir():
        for file in path.parent.iterdir():
            stem, shard = _SHARD.subn("", file.stem)
            if shard and stem == path.stem and file.suffix == path.suffix:
                found.add(file)
    for file in found:
        if not (file.is_file() and sha256(file) in known):
            check_output(file, overwrite)
    return found
