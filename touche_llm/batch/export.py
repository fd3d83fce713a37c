"""Export of a stage's pending requests as batch files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson

from touche_llm.config import Config
from touche_llm.data.io import check_output, open_atomic, read_record, sha256, write_records
from touche_llm.data.records import Model
from touche_llm.errors import DataError, UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.chat import CHAT_PATH, build_chat_body
from touche_llm.llm.counts import Counts
from touche_llm.llm.engine import EngineInfo
from touche_llm.llm.model import NOTHING_LOST, LostRequests, ModelClient
from touche_llm.llm.recorder import RecordingEngine, run_until_pending
from touche_llm.llm.request import EMPTY_CHAT, Request, place_system_message
from touche_llm.llm.tokenizers import ChatTokenizer
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.engines import assume_engine_info
from touche_llm.pipeline.progress import ForwardedProgress, Progress
from touche_llm.pipeline.run_directory import BATCH, RunDirectory
from touche_llm.pipeline.stages import StageName, compute_stage
from touche_llm.ranking.steps import list_comparison_kinds

ENGINE = "batch files"


class Batch(Model):
    """Inputs of the last export into a run's folder, which the import needs as well.

    Attributes:
        stage: Stage that sends the requests.
        facts: Engine that will answer.
        config: Configuration of the stage.
        written: SHA-256 of the file of requests and of the one before; the next export may replace only these.
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


async def run_stage(
    batch: Batch, folder: Path, engine: RecordingEngine, progress: Progress, lost: LostRequests
) -> tuple[bool, Counts]:
    """Run a stage with an engine that records requests as far as its answers allow.

    New answers are stored in the cache, like those of a server.

    Returns:
        Whether the stage finished, and the counts of its requests.
    """
    config = batch.config
    with Cache(config.cache.file, CacheMode.REUSE) as cache:
        model = ModelClient(
            batch.facts,
            engine,
            cache,
            resample_temperature=config.sampling.resample_temperature,
            retry_failures=config.cache.retry_failures,
            lost=lost,
        )
        with RunContext(config, ForwardedProgress(progress, "batch"), model) as context:
            is_done = await run_until_pending(compute_stage(batch.stage, context, RunDirectory(folder)))
        return is_done, model.counts


# Tokens that an unknown chat template is assumed to add: so many that no long document counts as short. A template
# that adds more leads to truncated answers or refused requests, which are counted.
_ASSUMED_OVERHEAD = 512


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
    counter = None
    if tokenizer is not None:
        counter = ChatTokenizer(tokenizer, config.sampling.chat_template_kwargs)
    # Opened for writing, since only this repairs a cache whose creation was killed.
    with Cache(config.cache.file, CacheMode.REUSE) as cache:
        batch = Batch(stage=stage, facts=_known_facts(config, cache, counter), config=config)
    if not sends_requests(stage, config):
        return Export(batch, [], 0, 0)
    engine = RecordingEngine(lambda _: None, counter)
    _, counts = await run_stage(batch, folder, engine, progress, lost)
    if engine.needs_tokenizer:
        raise UsageError(
            "engine.tokenizer: not set, and the tokens of documents that may not fit have to be counted; give the "
            "folder of the model's tokenizer, or more room (`engine.context`; in comparisons "
            "`ranking.document_tokens`)"
        )
    return Export(batch, _group_by_topic(engine.pending.values()), counts.failures, counts.cache_hits)


def write_requests(export: Export, folder: Path, path: Path, *, overwrite: bool = False) -> bool:
    """Write requests as one of OpenAI's batch files; return whether there are any.

    The file of the folder's last export is replaced, or removed if nothing is pending.

    Args:
        export: The requests.
        folder: The run's folder, in which the inputs of the export are recorded.
        path: File to write.
        overwrite: Whether another file of that name may be replaced and removed as well.

    Raises:
        UsageError: A file of that name exists that the last export did not write.
    """
    known = set(read_batch(folder).written) if (folder / BATCH).exists() else set()
    former = sha256(path) if path.is_file() else None
    if former not in known:
        check_output(path, overwrite)
    if not export.requests:
        path.unlink(missing_ok=True)
        return False
    folder.mkdir(parents=True, exist_ok=True)
    with open_atomic(path) as stream:
        digest = hashlib.sha256()
        for line in map(request_line, export.requests):
            digest.update(line)
            stream.write(line)
        # Recorded before the file gets its name, together with the former file: so the next export may replace
        # whatever a killed one leaves.
        hashes = [digest.hexdigest(), *([former] if former in known else [])]
        batch = export.batch.model_copy(update={"written": tuple(dict.fromkeys(hashes))})
        write_records(folder / BATCH, [batch])
    return True


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
