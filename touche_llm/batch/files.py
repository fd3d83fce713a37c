"""Export of a stage's requests as batch files, and import of the responses into the cache.

The stage runs in a copy of the run's folder. A request without an answer cancels the task that waits for it, and all
other tasks continue: so an export holds every request that can be sent now, and none that depends on a later answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import orjson

from touche_llm.config import Config
from touche_llm.data.files import check_output, open_atomic, read_record, sha256, write_records
from touche_llm.data.json_records import JsonModel
from touche_llm.errors import DataError, ToucheError, UsageError
from touche_llm.llm.answers import OUTCOMES, UnusableAnswer
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.engines.base import EngineInfo
from touche_llm.llm.engines.batch import BatchClient, BatchEngine
from touche_llm.llm.engines.batch_replies import Replies, read_replies
from touche_llm.llm.engines.chat_reply import CHAT_PATH, build_chat_body
from touche_llm.llm.engines.dry_run import OverlayCache
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Message, Request
from touche_llm.llm.tokenizer import ChatTokenizer
from touche_llm.pipeline.common import has_comparisons
from touche_llm.pipeline.dry_run import STAGES, QuietProgress, StageName, copy_run
from touche_llm.pipeline.engines import assume_engine_info, store_engine_info
from touche_llm.pipeline.progress import Progress
from touche_llm.pipeline.run_files import BATCH

_ENGINE = "batch files"
# Tokens that a chat template is assumed to add if they were not counted: many, so that no long document counts as
# short. A template that adds more has answers cut off or requests refused, which are counted.
_MOST_OVERHEAD = 512
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


class Batch(JsonModel):
    """Inputs of the last export into a run's folder, which the import needs too.

    Attributes:
        stage: Stage that would send the requests.
        facts: Engine that will answer.
        config: Configuration of the stage.
        written: SHA-256 of each file of requests; the next export may replace only these.
        export_options: Command-line options of the export, for the next one.
        stage_options: Options among them that the stage's own command takes, for its replay.
    """

    stage: StageName
    facts: EngineInfo
    config: Config
    written: tuple[str, ...] = ()
    export_options: tuple[str, ...] = ()
    stage_options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Export:
    """Requests that a stage can send now, grouped by prompt and topic.

    Attributes:
        batch: Inputs of the export.
        requests: Requests that the cache cannot answer.
        failed: Number of questions without a usable answer in any sample; they are not sent again.
    """

    batch: Batch
    requests: list[Request]
    failed: int


@dataclass(slots=True)
class Import:
    """Outcomes of an import; each response is counted once.

    Attributes:
        stored: Number of answers that are in the cache now.
        unusable: Reasons of the unusable answers, by kind.
        errors: Messages of the responses without an answer, by kind.
        refused: Number of requests among `errors` that the engine refused; they are not sent again.
        repeated: Place of each response to a request that has an answer or an earlier response.
        done: Whether no request is pending.
        failed: Number of questions without a usable answer in any sample.
    """

    stored: int = 0
    unusable: dict[str, list[str]] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    refused: int = 0
    repeated: list[str] = field(default_factory=list)
    done: bool = False
    failed: int = 0


async def pending_requests(
    stage: StageName, config: Config, folder: Path, tokenizer: Path | None, progress: Progress
) -> Export:
    """Return the requests that a stage would send now and the cache cannot answer.

    Only the cache is written: how documents are truncated. Failures that are retried are removed from it.

    Args:
        stage: Stage to export.
        config: Configuration of the stage.
        folder: The run's folder, with the outputs of earlier stages.
        tokenizer: Folder of the model's tokeniser; needed if a document could be too long.
        progress: Receives warnings and the progress of each stage.

    Raises:
        UsageError: The model or its context is unknown, a document has to be measured and there is no tokeniser, or
            the cache is read-only. Names the option to give.
    """
    _check(config)
    with copy_run(folder) as there, OverlayCache(config.cache.file) as cache:
        counter = None
        if tokenizer is not None:
            counter = ChatTokenizer(tokenizer, config.sampling.chat_template_kwargs)
        facts = _facts(config, cache, counter)
        engine = BatchEngine(Replies(), counter, importing=False)
        model = _model(config, facts, engine, cache)
        if asks_model(stage, config):
            await _go_through(stage, config, there, QuietProgress(progress, "batch"), model)
        _store(cache, config)
    batch = Batch(stage=stage, facts=facts, config=config)
    return Export(batch, _together(engine.pending.values()), model.counts.failures)


def write_requests(
    export: Export, folder: Path, path: Path, shards: int, *, overwrite: bool = False
) -> list[tuple[Path, int]]:
    """Write requests as OpenAI's batch files: all files or none.

    Files of the folder's last export to the same name are replaced, and removed if nothing is pending.

    Args:
        export: The requests.
        folder: The run's folder, in which the inputs of the export are recorded.
        path: File to write; shards have their number before the suffix.
        shards: Maximum number of files; all have the same number of requests, give or take one.
        overwrite: Whether other files of that name may be replaced and removed as well.

    Returns:
        The files, each with its number of requests.

    Raises:
        UsageError: A file of that name exists that the last export did not write.
    """
    count = len(export.requests)
    shards = min(shards, count)
    known = set(read_batch(folder).written) if (folder / BATCH).exists() else set()
    old = _written_before(path, known, overwrite)
    files: list[tuple[Path, int]] = []
    written: list[str] = []
    if count:
        folder.mkdir(parents=True, exist_ok=True)
        waiting = iter(export.requests)
        with ExitStack() as stack:
            for number in range(1, shards + 1):
                name = path.with_name(f"{path.stem}-{number:05}-of-{shards:05}{path.suffix}") if shards > 1 else path
                size = math.ceil((count - sum(each for _, each in files)) / (shards - number + 1))
                stream = stack.enter_context(open_atomic(name))
                digest = hashlib.sha256()
                for request in islice(waiting, size):
                    line = request_line(request)
                    digest.update(line)
                    stream.write(line)
                written.append(digest.hexdigest())
                files.append((name, size))
            # Before the files take their names, with those of before: a killed export leaves none that nobody owns.
            before = {sha256(each) for each in old} & known
            write_records(
                folder / BATCH,
                [export.batch.model_copy(update={"written": (*written, *sorted(before - set(written)))})],
            )
    for each in old - {name for name, _ in files}:
        each.unlink()
    return files


def read_batch(folder: Path) -> Batch:
    """Return the inputs of the last export for a run's folder; raises DataError if there was none."""
    if not (folder / BATCH).exists():
        raise DataError(f"{folder / BATCH}: not there; run `touche-llm batch export` for this folder first")
    return read_record(folder / BATCH, Batch, "batch export")


async def import_replies(batch: Batch, folder: Path, paths: Sequence[Path], progress: Progress) -> Import:
    """Store responses in the cache, as if a server had answered: those of all files, or none.

    Args:
        batch: Inputs of the export.
        folder: The run's folder.
        paths: Files of responses.
        progress: Receives warnings and the progress of each stage.

    Raises:
        DataError: A line is no response, or answers no request of the export; names file and line. Nothing is stored.
        ToucheError: The stage failed with these answers. They are stored.
    """
    config = batch.config
    _check(config)
    replies = read_replies(paths, batch.facts.model, logprobs=config.sampling.top_logprobs > 0)
    result = Import(repeated=list(replies.repeated))
    with copy_run(folder) as there, OverlayCache(config.cache.file) as cache:
        engine = BatchEngine(replies, None, importing=True)
        model = _model(config, batch.facts, engine, cache)
        problem: ToucheError | None = None
        try:
            result.done = await _go_through(batch.stage, config, there, QuietProgress(progress, "batch"), model)
        except ToucheError as error:
            problem = error  # what the answers lead to is no reason to lose them
        # In memory are the new entries alone.
        new = {entry.key: entry.read(UnusableAnswer) for entry in cache.entries() if entry.kind == "unusable"}
        unreached = 0
        for key, reply in replies.by_key.items():
            if key in engine.taken:
                continue
            if key not in new and cache.get(key, OUTCOMES) is not None:
                result.repeated.append(reply.place)
            elif reply.problem is not None and (key in engine.pending or key in new):
                result.errors.setdefault(reply.problem.kind, []).append(reply.problem.reason)
                result.refused += key in new
            elif problem is not None:
                unreached += 1
            else:
                raise DataError(
                    f"{reply.place}: {key:.80}: no request that was exported for {folder} and could be asked now has "
                    "this id, and no answer in the cache; nothing of these files is stored"
                )
        for key, each in new.items():
            if key in engine.taken:
                result.unusable.setdefault(each.kind, []).append(each.reason)
        result.stored = len(engine.taken - new.keys())
        result.failed = model.counts.failures
        if result.stored or new:
            name = f"{_ENGINE}, {engine.fingerprint}" if engine.fingerprint else _ENGINE
            store_engine_info(batch.facts.model_copy(update={"engine": name}), cache)
        _store(cache, config)
    if problem is not None:
        if unreached:
            progress.warn(f"{unreached:,} replies were not reached and are not stored: import them again afterwards")
        raise problem
    return result


def _model(config: Config, facts: EngineInfo, engine: BatchEngine, cache: Cache) -> ModelClient:
    return BatchClient(
        facts,
        engine,
        cache,
        resample_temperature=config.sampling.resample_temperature,
        retry_failures=config.cache.retry_failures,
    )


def _check(config: Config) -> None:
    """Raise UsageError where the cache is not one that answers are taken from and added to."""
    cache = config.cache
    if cache.mode in (CacheMode.OFF, CacheMode.REFRESH):
        raise UsageError(f"cache.mode: {cache.mode}: a batch asks for what the cache lacks; set it to reuse")
    if cache.file.suffix == ".jsonl":
        raise UsageError(f"{cache.file}: a cassette can only be replayed; name an .sqlite cache with --cache")


def _facts(config: Config, cache: Cache, tokenizer: ChatTokenizer | None) -> EngineInfo:
    """What is known of the engine without asking it."""
    known = assume_engine_info(config, cache)
    if not known.model:
        raise UsageError(
            "give the name under which vLLM will serve the model (--model NAME): keys and requests hold it"
        )
    if not known.engine and config.engine.context is None:
        raise UsageError("give the context that vLLM will have, in tokens (--context N): documents are cut to it")
    overhead = known.overhead if known.engine else _MOST_OVERHEAD
    if tokenizer is not None:
        counted = tokenizer.count_tokens((Message("system", ""), Message("user", "")))
        if known.engine and counted != overhead and (overhead != _MOST_OVERHEAD or counted > overhead):
            raise UsageError(
                f"--tokenizer: its chat template adds {counted} tokens, that of {known.model} in {cache.path} adds "
                f"{overhead}: it is another model's"
            )
        overhead = counted
    return known.model_copy(update={"overhead": overhead, "engine": _ENGINE})


def asks_model(stage: StageName, config: Config) -> bool:
    """Whether a stage sends requests at all."""
    return {"retrieve": config.expansion.use, "judge": True, "rank": has_comparisons(config)}[stage]


async def _go_through(stage: StageName, config: Config, folder: Path, progress: Progress, model: ModelClient) -> bool:
    """Go a stage's way; whether it came to its end, and not only to where it waits for answers."""
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    try:
        await STAGES[stage](config, folder, progress, model)
    except asyncio.CancelledError:
        if task.cancelling() > cancelled:
            raise  # by whoever runs this
        return False
    return True


def _store(new: OverlayCache, config: Config) -> None:
    """Add what an overlay keeps to the cache that it lies over, all of it or nothing; forget there what it hides."""
    with tempfile.TemporaryDirectory() as folder:
        learnt = Path(folder) / "learnt.jsonl"
        if new.export_cassette(learnt) or new.hidden:
            with Cache(config.cache.file, CacheMode.REUSE) as cache:
                for key, kind in new.hidden.items():
                    cache.forget([key], kind=kind)
                cache.import_cassette(learnt)


def _together(requests: Iterable[Request]) -> list[Request]:
    """The requests of a prompt and topic one after the other: they begin alike, which a prefix cache makes use of."""
    groups: dict[tuple[str, str], list[Request]] = {}
    for request in requests:
        groups.setdefault((request.origin.prompt, request.origin.topic_id), []).append(request)
    return [request for group in groups.values() for request in group]


def request_line(request: Request) -> bytes:
    """Return a request as a line of a batch file."""
    line = {"custom_id": request.key, "method": "POST", "url": CHAT_PATH, "body": build_chat_body(request)}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _written_before(path: Path, known: set[str], overwrite: bool) -> set[Path]:
    """Return the files of an earlier export to this name, whole or in shards.

    Raises:
        UsageError: One of them is no file, or its hash is none of the `known` ones and `overwrite` is not set.
    """
    found = {path} if path.exists() else set()
    if path.parent.is_dir():
        for each in path.parent.iterdir():
            stem, shard = _SHARD.subn("", each.stem)
            if shard and stem == path.stem and each.suffix == path.suffix:
                found.add(each)
    for each in found:
        if not (each.is_file() and sha256(each) in known):
            check_output(each, overwrite)
    return found
