"""Export of a stage's pending requests as batch files, and import of their responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from touche_llm.api.opening import open_client
from touche_llm.api.progress import ForwardedProgress, Progress
from touche_llm.config.configuration import Config
from touche_llm.data.files import open_atomic, read_record, write_records
from touche_llm.data.records import Model
from touche_llm.engines.batch_files import (
    Reply,
    group_by_topic,
    read_replies,
    read_reply,
    request_line,
)
from touche_llm.engines.cached_info import assume_engine_info, store_engine_info
from touche_llm.engines.recording import RecordingEngine, ReplayingEngine, run_until_pending
from touche_llm.engines.tokenizers import ChatTokenizer
from touche_llm.errors import DataError, MissingLogprobs, Transient, UsageError
from touche_llm.llm.answer import OUTCOMES, Answer, UnusableAnswer
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.counts import Counts
from touche_llm.llm.protocol import Completion, EngineInfo
from touche_llm.llm.request import EMPTY_CHAT, Request, place_system_message
from touche_llm.runs.context import RunContext
from touche_llm.runs.directory import BATCH, RunDirectory
from touche_llm.runs.record import StageName
from touche_llm.runs.stages import compute_stage

# File of the requests in a run's folder.
REQUESTS = "requests.jsonl"
# Tokens that an unknown chat template is assumed to add: so many that no long document counts as
# short. A template that adds more leads to truncated answers or refused requests, which are
# counted.
_ASSUMED_OVERHEAD = 512


class Batch(Model):
    """Inputs of the last export into a run's folder, which the import needs as well.

    Attributes:
        stage: Stage that sends the requests.
        facts: Engine that will answer.
        config: Configuration of the stage.
    """

    stage: StageName
    facts: EngineInfo
    config: Config


@dataclass(frozen=True, slots=True)
class _PartialRun:
    """A stage that ran as far as there are answers.

    Attributes:
        is_done: Whether it came to its end.
        counts: Counts of its requests.
    """

    is_done: bool
    counts: Counts


async def _run_stage(
    batch: Batch, folder: Path, engine: RecordingEngine, progress: Progress
) -> _PartialRun:
    """Run a stage as far as there are answers, which the cache stores; write nothing else.

    Args:
        batch: Stage, and its configuration.
        folder: Folder of the run.
        engine: Engine that answers, or records that a request is pending.
        progress: Receives warnings.
    """
    config = batch.config
    cache = config.cache.model_copy(update={"mode": CacheMode.REUSE})
    opening = open_client(config.engine, config.sampling, cache, answers=engine, info=batch.facts)
    async with opening as model:
        with RunContext(config, ForwardedProgress(progress, "batch"), model) as context:
            stage = compute_stage(batch.stage, context, RunDirectory(folder))
            is_done = await run_until_pending(stage)
        return _PartialRun(is_done, model.counts)


@dataclass(frozen=True, slots=True)
class ExportedRequests:
    """Requests that an export has written.

    Attributes:
        engine_info: Engine that is to answer.
        requests: Requests, grouped by prompt and topic.
        failed: Number of requests with only unusable answers, which are not sent again.
    """

    engine_info: EngineInfo
    requests: list[Request]
    failed: int


async def export_requests(
    stage: StageName, config: Config, folder: Path, tokenizer: Path | None, progress: Progress
) -> ExportedRequests:
    """Write the requests that a stage would send now and the cache cannot answer.

    The file is one of OpenAI's batch files, and replaces that of the last export in the run's
    folder. Failures that are retried are removed from the cache.

    Args:
        stage: Stage that sends the requests.
        config: Configuration of the stage.
        folder: Folder of the run.
        tokenizer: Folder of the model's tokenizer, required if a document may be too long.
        progress: Receives warnings.

    Raises:
        UsageError: The cache cannot be used, another program wrote the file of requests, or the
            model, its context or its tokenizer is unknown.
    """
    _check_export(config, folder)
    counter: ChatTokenizer | None = None
    if tokenizer is not None:
        counter = ChatTokenizer(tokenizer, config.sampling.chat_template_kwargs)

    # Opened for writing, since only this repairs a cache whose creation was killed.
    with Cache(config.cache.file, CacheMode.REUSE) as cache:
        engine_info = await _assume_engine(config, cache, counter)
    batch = Batch(stage=stage, facts=engine_info, config=config)
    engine = RecordingEngine(counter)
    partial_run = await _run_stage(batch, folder, engine, progress)
    if engine.needs_tokenizer:
        raise UsageError(
            "engine.tokenizer: not set, and the tokens of documents that may not fit have to be counted; give the "
            "folder of the model's tokenizer, or more room (`engine.context`; in comparisons "
            "`ranking.document_tokens`)"
        )

    requests = group_by_topic(engine.pending.values())
    _write_requests(folder, batch, requests)
    return ExportedRequests(engine_info, requests, partial_run.counts.failures)


def _check_export(config: Config, folder: Path) -> None:
    """Raise UsageError if the cache has no answers to use, or a file would be replaced wrongly."""
    if config.cache.mode in (CacheMode.OFF, CacheMode.REFRESH):
        raise UsageError(
            f"cache.mode: {config.cache.mode}: batch files hold what the cache cannot answer; set it to reuse"
        )
    file = folder / REQUESTS
    if file.exists() and not (folder / BATCH).exists():
        raise UsageError(f"{file}: not written by an export; move it elsewhere")


def _write_requests(folder: Path, batch: Batch, requests: list[Request]) -> None:
    """Write requests and what their import needs; remove the file of earlier ones if there is none."""
    file = folder / REQUESTS
    if not requests:
        file.unlink(missing_ok=True)
        return

    folder.mkdir(parents=True, exist_ok=True)
    write_records(folder / BATCH, [batch])
    with open_atomic(file) as stream:
        stream.writelines(request_line(request) for request in requests)


async def _assume_engine(
    config: Config, cache: Cache, tokenizer: ChatTokenizer | None
) -> EngineInfo:
    """Return what is known of the engine that will answer, without a request.

    Raises:
        UsageError: Its model or its context is unknown.
    """
    known = assume_engine_info(config.engine, cache)
    is_described = bool(known.engine)
    if not known.model:
        raise UsageError(
            "engine.model: unknown, and requests contain it; give the name that vLLM will serve it under"
        )
    if not is_described and config.engine.context is None:
        raise UsageError(
            "engine.context: unknown, and documents are truncated to fit; give the tokens that vLLM will allow"
        )

    overhead = known.overhead if is_described else _ASSUMED_OVERHEAD
    if tokenizer is not None:
        empty_chat = place_system_message(EMPTY_CHAT, config.sampling.system_message)
        overhead = await tokenizer.count_tokens(empty_chat)
    return known.model_copy(update={"overhead": overhead, "engine": "batch files"})


@dataclass(slots=True)
class Import:
    """Outcomes of an import.

    Attributes:
        stage: Stage that sends the requests.
        stored: Number of responses whose answers are in the cache.
        problems: Reasons of the responses without a usable answer, by kind.
        is_done: Whether no request is pending.
        failed: Number of requests with only unusable answers in all samples.
    """

    stage: StageName
    stored: int = 0
    problems: dict[str, list[str]] = field(default_factory=dict)
    is_done: bool = False
    failed: int = 0

    def add_problem(self, kind: str, reason: str) -> None:
        """Add a response without a usable answer."""
        self.problems.setdefault(kind, []).append(reason)


async def import_responses(folder: Path, paths: Sequence[Path], progress: Progress) -> Import:
    """Store the responses to the last export of a run's folder, like answers of a server.

    A request that the engine rejected is stored as failed. Other requests without an answer stay
    pending: an error of the server, as over HTTP, is never stored.

    Args:
        folder: Folder of the run.
        paths: Files of responses.
        progress: Receives warnings.

    Raises:
        DataError: There was no export, or a line is not a response, so that nothing is stored; or a
            response is to no request of the export, after the others are stored.
    """
    if not (folder / BATCH).exists():
        raise DataError(
            f"{folder / BATCH}: no such file; run `touche-llm batch export` for this folder first"
        )
    batch = read_record(folder / BATCH, Batch, "a batch export")
    replies = read_replies(paths, batch.facts.model)

    with Cache(batch.config.cache.file, CacheMode.REUSE) as cache:
        store_engine_info(batch.facts, cache)
    engine = ReplayingEngine(partial(_take_answer, replies))
    partial_run = await _run_stage(batch, folder, engine, progress)

    imported = Import(
        stage=batch.stage,
        is_done=partial_run.is_done,
        failed=partial_run.counts.failures,
    )
    with Cache(batch.config.cache.file, CacheMode.REPLAY) as cache:
        unknown = _add_replies(imported, replies, cache)
    if unknown:
        raise DataError(
            f"{unknown[0]}: not the id of a request of {folder}; {len(unknown):,} responses are not stored, "
            f"{imported.stored:,} are; import responses to the last export of this folder"
        )
    return imported


def _take_answer(replies: dict[str, Reply], request: Request) -> Completion | None:
    """Return the answer to a request; None if the request stays pending.

    Args:
        replies: Replies by key of their request. One that lacks the log-probabilities which the
            request needs is replaced by this problem.
        request: Request to answer.
    """
    try:
        return read_reply(replies, request)
    except MissingLogprobs as problem:
        reply = replies[request.key]
        replies[request.key] = replace(reply, result=problem, outcome="no_logprobs")
        return None
    except Transient:
        return None


def _add_replies(imported: Import, replies: Mapping[str, Reply], cache: Cache) -> list[str]:
    """Add what became of replies to the outcomes of an import.

    Args:
        imported: Outcomes to complete.
        replies: Replies by key of their request.
        cache: Cache with the outcomes of the requests.

    Returns:
        Places of the replies that are to no request of the stage.
    """
    unknown: list[str] = []
    for key, reply in replies.items():
        stored = cache.get(key, OUTCOMES)
        if isinstance(reply.result, Exception):
            imported.add_problem(reply.outcome, str(reply.result))
        elif isinstance(stored, UnusableAnswer):
            imported.add_problem(stored.kind, stored.reason)
        elif isinstance(stored, Answer):
            imported.stored += 1
        else:
            unknown.append(f"{reply.place}: {key:.80}")
    return unknown
