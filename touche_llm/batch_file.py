"""Requests as files for `vllm run-batch`, and its answers back into the cache: for clusters with a queue and no server.

A stage is gone through in a copy of the run's folder. A question whose answer is still to come ends whoever waits for
it; all else goes on, so that what is found is what can be asked now, and nothing that depends on later answers.
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
from touche_llm.dry_run import STAGES, Quiet, StageName, copy_of
from touche_llm.engines import assumed_facts, remember
from touche_llm.errors import DataError, ToucheError, UsageError
from touche_llm.files import check_output, read_record, sha256, whole_file, write_records
from touche_llm.json_records import JsonModel
from touche_llm.llm.answer import OUTCOMES, UnusableAnswer
from touche_llm.llm.batch_engine import BatchEngine, BatchModel
from touche_llm.llm.batch_replies import Replies, read_replies
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.chat_reply import CHAT_PATH, chat_body
from touche_llm.llm.dry import OverlayCache
from touche_llm.llm.engine import EngineFacts
from touche_llm.llm.language_model import LanguageModel
from touche_llm.llm.request import Message, Request
from touche_llm.llm.tokenizer import ChatTokenizer
from touche_llm.run_files import BATCH
from touche_llm.stages.common import Observer, compares

_ENGINE = "vllm run-batch"
# What a chat template is taken to add where nobody has counted it: much, so that no long document is taken for short.
# Where one adds more, answers are cut off or requests refused, and counted as such.
_MOST_OVERHEAD = 512
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


class Batch(JsonModel):
    """What the last export into a run's folder was made of: an import needs the same.

    Attributes:
        stage: The stage that would send the requests.
        facts: The engine that is to answer.
        config: The configuration of the stage.
        written: SHA-256 of each file of requests: only these may the next export replace.
        export_options: The options of the export, to be given again to the next one.
        stage_options: Those of them that the stage's own command takes, for its replay.
    """

    stage: StageName
    facts: EngineFacts
    config: Config
    written: tuple[str, ...] = ()
    export_options: tuple[str, ...] = ()
    stage_options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Export:
    """What a stage can ask now, the requests of a prompt and topic together.

    Attributes:
        batch: what an import has to know.
        requests: without those that the cache can answer.
        failed: questions that no sample gave a usable answer to; they are given up.
    """

    batch: Batch
    requests: list[Request]
    failed: int


@dataclass(slots=True)
class Import:
    """What became of replies: each is counted once.

    Attributes:
        stored: answers that are in the cache now.
        unusable: answers that could not be used, by kind, each with its reason.
        errors: of replies that hold no answer, by kind, each with what was said.
        refused: how many of those the engine refused for good: their questions are given up.
        repeated: the place of each reply to a request that has an answer already, or another reply before it.
        done: whether nothing is left to ask.
        failed: questions that no sample gave a usable answer to.
    """

    stored: int = 0
    unusable: dict[str, list[str]] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    refused: int = 0
    repeated: list[str] = field(default_factory=list)
    done: bool = False
    failed: int = 0


async def pending_requests(
    stage: StageName, config: Config, folder: Path, tokenizer: Path | None, observer: Observer
) -> Export:
    """What a stage would ask and the cache does not hold.

    Nothing is written but to the cache: how documents are cut. If failures are retried, they are forgotten there.

    Args:
        stage: the stage.
        config: what is asked for.
        folder: the run's, with what earlier stages wrote.
        tokenizer: a folder with the model's tokeniser; needed where a document could be too long.
        observer: is told.

    Raises:
        UsageError: the model or its context is not known, a document has to be measured and there is no tokeniser, or
            the cache cannot be added to. Says which option to give.
    """
    _check(config)
    with copy_of(folder) as there, OverlayCache(config.cache.file) as cache:
        counter = None
        if tokenizer is not None:
            counter = ChatTokenizer(tokenizer, config.sampling.chat_template_kwargs)
        facts = _facts(config, cache, counter)
        engine = BatchEngine(Replies(), counter, importing=False)
        model = _model(config, facts, engine, cache)
        if asks_model(stage, config):
            await _go_through(stage, config, there, Quiet(observer, "batch"), model)
        _store(cache, config)
    batch = Batch(stage=stage, facts=facts, config=config)
    return Export(batch, _together(engine.pending.values()), model.counts.failures)


def write_requests(
    export: Export, folder: Path, path: Path, shards: int, *, overwrite: bool = False
) -> list[tuple[Path, int]]:
    """Write requests in the form that `vllm run-batch` takes: all files or none.

    Files of the folder's last export to the same name are replaced, and removed if nothing is pending.

    Args:
        export: the requests.
        folder: the run's; gets what an import has to know.
        path: of the file; of shards, each has its number before the suffix.
        shards: into so many files at most, in the order of the requests, about as many in each.
        overwrite: Whether other files of that name may be replaced and removed as well.

    Returns:
        the files, each with its number of requests.

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
                stream = stack.enter_context(whole_file(name))
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
    """What the last export for a run's folder was made of; raises DataError where there was none."""
    if not (folder / BATCH).exists():
        raise DataError(f"{folder / BATCH}: not there; run `touche-llm batch export` for this folder first")
    return read_record(folder / BATCH, Batch, "batch export")


async def import_replies(batch: Batch, folder: Path, paths: Sequence[Path], observer: Observer) -> Import:
    """Put what `vllm run-batch` answered into the cache, as if a server had answered: the whole of all files, or none.

    Args:
        batch: what the export was made of.
        folder: the run's.
        paths: the files that it wrote.
        observer: is told.

    Raises:
        DataError: a line that is none of `vllm run-batch`, or that answers no request of the export; names file and
            line. Nothing is stored then.
        ToucheError: what the answers lead to, at the end of the stage. They are stored then.
    """
    config = batch.config
    _check(config)
    replies = read_replies(paths, batch.facts.model, logprobs=config.sampling.top_logprobs > 0)
    result = Import(repeated=list(replies.repeated))
    with copy_of(folder) as there, OverlayCache(config.cache.file) as cache:
        engine = BatchEngine(replies, None, importing=True)
        model = _model(config, batch.facts, engine, cache)
        problem: ToucheError | None = None
        try:
            result.done = await _go_through(batch.stage, config, there, Quiet(observer, "batch"), model)
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
            told = f"{_ENGINE}, {engine.fingerprint}" if engine.fingerprint else _ENGINE
            remember(batch.facts.model_copy(update={"engine": told}), cache)
        _store(cache, config)
    if problem is not None:
        if unreached:
            observer.notify(f"{unreached:,} replies were not reached and are not stored: import them again afterwards")
        raise problem
    return result


def _model(config: Config, facts: EngineFacts, engine: BatchEngine, cache: Cache) -> LanguageModel:
    return BatchModel(
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


def _facts(config: Config, cache: Cache, tokenizer: ChatTokenizer | None) -> EngineFacts:
    """What is known of the engine without asking it."""
    known = assumed_facts(config, cache)
    if not known.model:
        raise UsageError(
            "give the name under which vLLM will serve the model (--model NAME): keys and requests hold it"
        )
    if not known.engine and config.engine.context is None:
        raise UsageError("give the context that vLLM will have, in tokens (--context N): documents are cut to it")
    overhead = known.overhead if known.engine else _MOST_OVERHEAD
    if tokenizer is not None:
        counted = tokenizer.count((Message("system", ""), Message("user", "")))
        if known.engine and counted != overhead and (overhead != _MOST_OVERHEAD or counted > overhead):
            raise UsageError(
                f"--tokenizer: its chat template adds {counted} tokens, that of {known.model} in {cache.path} adds "
                f"{overhead}: it is another model's"
            )
        overhead = counted
    return known.model_copy(update={"overhead": overhead, "engine": _ENGINE})


def asks_model(stage: StageName, config: Config) -> bool:
    """Whether a stage sends requests at all."""
    return {"retrieve": config.expansion.use, "judge": True, "rank": compares(config)}[stage]


async def _go_through(stage: StageName, config: Config, folder: Path, observer: Observer, model: LanguageModel) -> bool:
    """Go a stage's way; whether it came to its end, and not only to where it waits for answers."""
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    try:
        await STAGES[stage](config, folder, observer, model)
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
    line = {"custom_id": request.key, "method": "POST", "url": CHAT_PATH, "body": chat_body(request)}
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
