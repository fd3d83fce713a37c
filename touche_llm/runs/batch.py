"""Export of a stage's pending requests as batch files, and import of their responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from touche_llm.api.opening import open_client
from touche_llm.api.progress import ForwardedProgress, Progress
from touche_llm.config.configuration import Config
from touche_llm.data.files import open_atomic, read_record, write_records
from touche_llm.data.records import Model
from touche_llm.engines.batch_files import group_by_topic, read_replies, read_reply, request_line
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


async def _run_stage(
    batch: Batch, folder: Path, engine: RecordingEngine, progress: Progress
) -> tuple[bool, Counts]:
    """Run a stage as far as there are answers, which are stored.

    Return whether it finished, and its counts.
    """
    config = batch.config
    cache = config.cache.model_copy(update={"mode": CacheMode.REUSE})
    opening = open_client(config.engine, config.sampling, cache, answers=engine, info=batch.facts)
    async with opening as model:
        with RunContext(config, ForwardedProgress(progress, "batch"), model) as context:
            is_done = await run_until_pending(
                compute_stage(batch.stage, context, RunDirectory(folder))
            )
        return is_done, model.counts


async def export_requests(
    stage: StageName, config: Config, folder: Path, tokenizer: Path | None, progress: Progress
) -> tuple[EngineInfo, list[Request], int]:
    """Write the requests that a stage would send now and the cache cannot answer, as one of OpenAI's batch files.

    They replace those of the last export in the run's folder. Failures that are retried are removed
    from the cache. `tokenizer` is the folder of the model's tokeniser, required if a document may
    be too long.

    Returns:
        The engine that is to answer, the requests, grouped by prompt and topic, and the number of
        those with only unusable answers, which are not sent again.
    """
    if config.cache.mode in (CacheMode.OFF, CacheMode.REFRESH):
        raise UsageError(
            f"cache.mode: {config.cache.mode}: batch files hold what the cache cannot answer; set it to reuse"
        )
    if (folder / REQUESTS).exists() and not (folder / BATCH).exists():
        raise UsageError(f"{folder / REQUESTS}: not written by an export; move it elsewhere")
    counter = (
        None
        if tokenizer is None
        else ChatTokenizer(tokenizer, config.sampling.chat_template_kwargs)
    )
    # Opened for writing, since only this repairs a cache whose creation was killed.
    with Cache(config.cache.file, CacheMode.REUSE) as cache:
        batch = Batch(stage=stage, facts=await _assume_facts(config, cache, counter), config=config)
    engine = RecordingEngine(counter)
    _, counts = await _run_stage(batch, folder, engine, progress)
    if engine.needs_tokenizer:
        raise UsageError(
            "engine.tokenizer: not set, and the tokens of documents that may not fit have to be counted; give the "
            "folder of the model's tokenizer, or more room (`engine.context`; in comparisons "
            "`ranking.document_tokens`)"
        )
    requests = group_by_topic(engine.pending.values())
    if requests:
        folder.mkdir(parents=True, exist_ok=True)
        write_records(folder / BATCH, [batch])
        with open_atomic(folder / REQUESTS) as stream:
            stream.writelines(map(request_line, requests))
    else:
        (folder / REQUESTS).unlink(missing_ok=True)
    return batch.facts, requests, counts.failures


async def _assume_facts(
    config: Config, cache: Cache, tokenizer: ChatTokenizer | None
) -> EngineInfo:
    """Return the facts about the engine that are known without a request.

    Raise UsageError if they do not suffice.
    """
    known = assume_engine_info(config.engine, cache)
    if not known.model:
        raise UsageError(
            "engine.model: unknown, and requests contain it; give the name that vLLM will serve it under"
        )
    if not known.engine and config.engine.context is None:
        raise UsageError(
            "engine.context: unknown, and documents are truncated to fit; give the tokens that vLLM will allow"
        )
    overhead = known.overhead if known.engine else _ASSUMED_OVERHEAD
    if tokenizer is not None:
        overhead = await tokenizer.count_tokens(
            place_system_message(EMPTY_CHAT, config.sampling.system_message)
        )
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


async def import_responses(folder: Path, paths: Sequence[Path], progress: Progress) -> Import:
    """Store the responses to the last export of a run's folder in the cache like answers of a server.

    A request that the engine rejected is stored as failed. Other requests without an answer stay
    pending: an error of the server, as over HTTP, is never stored. Nor is anything if a line is not
    a response; a response to no request of the export is an error after the others are stored.
    """
    if not (folder / BATCH).exists():
        raise DataError(
            f"{folder / BATCH}: no such file; run `touche-llm batch export` for this folder first"
        )
    batch = read_record(folder / BATCH, Batch, "a batch export")
    replies = read_replies(paths, batch.facts.model)

    def answer(request: Request) -> Completion | None:
        try:
            return read_reply(replies, request)
        except MissingLogprobs as problem:
            replies[request.key] = replace(
                replies[request.key], result=problem, outcome="no_logprobs"
            )
        except Transient:
            pass  # It stays pending.
        return None

    with Cache(batch.config.cache.file, CacheMode.REUSE) as cache:
        store_engine_info(batch.facts, cache)
    result = Import(batch.stage)
    result.is_done, counts = await _run_stage(batch, folder, ReplayingEngine(answer), progress)
    result.failed = counts.failures
    unknown: list[str] = []
    with Cache(batch.config.cache.file, CacheMode.REPLAY) as cache:
        for key, reply in replies.items():
            stored = cache.get(key, OUTCOMES)
            if isinstance(reply.result, Exception):
                result.problems.setdefault(reply.outcome, []).append(str(reply.result))
            elif isinstance(stored, UnusableAnswer):
                result.problems.setdefault(stored.kind, []).append(stored.reason)
            elif isinstance(stored, Answer):
                result.stored += 1
            else:
                unknown.append(f"{reply.place}: {key:.80}")
    if unknown:
        raise DataError(
            f"{unknown[0]}: not the id of a request of {folder}; {len(unknown):,} responses are not stored, "
            f"{result.stored:,} are; import responses to the last export of this folder"
        )
    return result
