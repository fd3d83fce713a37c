"""Export of a stage's pending requests as batch files, and import of their responses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from touche_llm.config import Config
from touche_llm.data.io import check_output, open_atomic, read_record, write_records
from touche_llm.data.records import Model
from touche_llm.errors import DataError, ToucheError, UsageError
from touche_llm.llm.answers import OUTCOMES, UnusableAnswer
from touche_llm.llm.batch_files import Replies, group_by_topic, read_replies, request_line
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.engine import ChatTokenizer, Completion, Counts, EngineInfo, MissingLogprobs, Rejected, Transient
from touche_llm.llm.model import ModelClient
from touche_llm.llm.recorder import RecordingEngine, run_until_pending
from touche_llm.llm.request import EMPTY_CHAT, Request, place_system_message
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.engines import assume_engine_info, store_engine_info
from touche_llm.pipeline.progress import ForwardedProgress, Progress
from touche_llm.pipeline.run_directory import BATCH, RunDirectory
from touche_llm.pipeline.stages import StageName, compute_stage, sends_requests

ENGINE = "batch files"


class Batch(Model):
    """Inputs of the last export into a run's folder, which the import needs as well.

    Attributes:
        stage: Stage that sends the requests.
        facts: Engine that will answer.
        config: Configuration of the stage.
        requests: File of the requests, relative to the folder; the next export may replace only this one.
    """

    stage: StageName
    facts: EngineInfo
    config: Config
    requests: str = ""


def read_batch(folder: Path) -> Batch:
    """Return the inputs of the last export for a run's folder; raise DataError if there was none."""
    if not (folder / BATCH).exists():
        raise DataError(f"{folder / BATCH}: no such file; run `touche-llm batch export` for this folder first")
    return read_record(folder / BATCH, Batch, "a batch export")


def check_cache(config: Config) -> None:
    """Raise UsageError unless answers can be read from the cache and added to it."""
    cache = config.cache
    if cache.mode in (CacheMode.OFF, CacheMode.REFRESH):
        raise UsageError(
            f"cache.mode: {cache.mode}: batch files hold the requests that the cache cannot answer; set it to reuse"
        )
    if cache.file.suffix == ".jsonl":
        raise UsageError(f"{cache.file}: a cassette can only be replayed; name an .sqlite file (`cache.file`)")


async def _run_stage(batch: Batch, folder: Path, engine: RecordingEngine, progress: Progress) -> tuple[bool, Counts]:
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
    """

    batch: Batch
    requests: list[Request]
    failed: int


async def pending_requests(
    stage: StageName, config: Config, folder: Path, tokenizer: Path | None, progress: Progress
) -> Export:
    """Return the requests that a stage would send now and the cache cannot answer.

    The only output is in the cache: how documents are truncated. Failures that are retried are removed from it.

    Args:
        stage: Stage to export.
        config: Configuration of the stage.
        folder: The run's folder, with the outputs of earlier stages.
        tokenizer: Folder of the model's tokeniser; required if a document may be too long.
        progress: Receives warnings and the progress of each stage.

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
        batch = Batch(stage=stage, facts=await _known_facts(config, cache, counter), config=config)
    if not sends_requests(stage, config):
        return Export(batch, [], 0)
    engine = RecordingEngine(lambda _: None, counter)
    _, counts = await _run_stage(batch, folder, engine, progress)
    if engine.needs_tokenizer:
        raise UsageError(
            "engine.tokenizer: not set, and the tokens of documents that may not fit have to be counted; give the "
            "folder of the model's tokenizer, or more room (`engine.context`; in comparisons "
            "`ranking.document_tokens`)"
        )
    return Export(batch, group_by_topic(engine.pending.values()), counts.failures)


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
    name = os.path.relpath(path, folder)
    if not ((folder / BATCH).exists() and read_batch(folder).requests == name):
        check_output(path, overwrite)
    if not export.requests:
        path.unlink(missing_ok=True)
        return False
    folder.mkdir(parents=True, exist_ok=True)
    # Recorded first, so that the next export may replace what a killed one leaves.
    write_records(folder / BATCH, [export.batch.model_copy(update={"requests": name})])
    with open_atomic(path) as stream:
        stream.writelines(map(request_line, export.requests))
    return True


async def _known_facts(config: Config, cache: Cache, tokenizer: ChatTokenizer | None) -> EngineInfo:
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
        counted = await tokenizer.count_tokens(place_system_message(EMPTY_CHAT, config.sampling.system_message))
        if known.engine and counted != overhead and (overhead != _ASSUMED_OVERHEAD or counted > overhead):
            raise UsageError(
                f"engine.tokenizer: its chat template adds {counted} tokens, but that of {known.model} in {cache.path} "
                f"adds {overhead}; give the folder of that model"
            )
        overhead = counted
    return known.model_copy(update={"overhead": overhead, "engine": ENGINE})


@dataclass(slots=True)
class Import:
    """Outcomes of an import; each response is counted once.

    Attributes:
        stored: Number of answers that were added to the cache.
        unusable: Reasons of the unusable answers, by kind.
        errors: Messages of the responses without an answer, by kind.
        refused: Number of requests among `errors` that are recorded as failed; they are not sent again.
        repeated: `file:line` of each response to a request that has an answer or an earlier response.
        done: Whether no request is pending.
        failed: Number of requests with only unusable answers in all samples.
    """

    stored: int = 0
    unusable: dict[str, list[str]] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    refused: int = 0
    repeated: list[str] = field(default_factory=list)
    done: bool = False
    failed: int = 0


async def import_replies(batch: Batch, folder: Path, paths: Sequence[Path], progress: Progress) -> Import:
    """Store responses in the cache like answers of a server.

    A request that the engine rejected is stored as failed. Other requests without an answer stay pending: an error of
    the server, as over HTTP, is never stored.

    Raises:
        DataError: A line is not a response, and nothing is stored; or it answers no request of the export, and the
            others are stored. Names file and line.
        ToucheError: The stage failed with these answers. They are stored.
    """
    config = batch.config
    check_cache(config)
    replies = read_replies(paths, batch.facts.model)
    failed: set[str] = set()

    def answer(request: Request) -> Completion | None:
        try:
            return replies.read(request)
        except Rejected:
            failed.add(request.key)
            raise
        except Transient as problem:
            failed.add(request.key)
            if isinstance(problem, MissingLogprobs):
                reply = replies.by_key[request.key]
                replies.by_key[request.key] = replace(reply, problem=problem, outcome="no_logprobs")
            return None

    engine = RecordingEngine(answer)
    result = Import(repeated=list(replies.repeated))
    problem: ToucheError | None = None
    try:
        result.done, counts = await _run_stage(batch, folder, engine, progress)
        result.failed = counts.failures
    except ToucheError as error:
        problem = error  # Raised once the outcomes are known.
    with Cache(config.cache.file, CacheMode.REUSE) as cache:
        unused = _count_outcomes(replies, failed, engine, cache, result)
        # Also if an import that was killed has stored the answers.
        if len(unused) < len(replies.by_key):
            name = f"{ENGINE}, {replies.fingerprint}" if replies.fingerprint else ENGINE
            store_engine_info(batch.facts.model_copy(update={"engine": name}), cache)
    if problem is not None:
        if unused:
            progress.warn(f"{len(unused):,} responses were not reached and are not stored; import them again later")
        raise problem
    if unused:
        raise DataError(
            f"{unused[0]}: the id is neither that of a pending request of {folder} nor that of an answer in the cache; "
            f"{len(unused):,} responses are not stored, {result.stored:,} are; import responses to the last export of "
            "this folder"
        )
    return result


def _count_outcomes(
    replies: Replies, failed: set[str], engine: RecordingEngine, cache: Cache, result: Import
) -> list[str]:
    """Add the outcome of each response to the result; return `file:line: id` of responses to unknown requests."""
    unused: list[str] = []
    for key, reply in replies.by_key.items():
        if key in engine.answered:
            answer = cache.get(key, OUTCOMES)
            if isinstance(answer, UnusableAnswer):
                result.unusable.setdefault(answer.kind, []).append(answer.reason)
            else:
                result.stored += 1
        elif key in failed:
            result.errors.setdefault(reply.outcome, []).append(str(reply.problem))
            result.refused += isinstance(reply.problem, Rejected)
        elif cache.get(key, OUTCOMES) is not None:
            result.repeated.append(reply.place)
        else:
            unused.append(f"{reply.place}: {key:.80}")
    return unused
