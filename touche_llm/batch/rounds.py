"""Runs with batch files: rounds of export, run and import until no request is pending."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from touche_llm.batch.export import (
    ENGINE,
    Batch,
    Export,
    check_cache,
    pending_requests,
    request_line,
    run_stage,
    sends_requests,
)
from touche_llm.batch.responses import Replies, read_replies
from touche_llm.batch.runner import TITLES, answer_file
from touche_llm.config import Config
from touche_llm.data.io import BUILDING, open_scratch, remove_abandoned
from touche_llm.errors import DataError, EngineError, ToucheError
from touche_llm.llm.answers import OUTCOMES, UnusableAnswer
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.model import NOTHING_LOST, LostRequests
from touche_llm.llm.recorder import RecordingEngine
from touche_llm.llm.settings import check_model_folder
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.engines import LOG, store_engine_info
from touche_llm.pipeline.identity import check_inputs, check_settings
from touche_llm.pipeline.progress import Progress, SilentProgress
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.stages import RunResult, StageName, run_judge, run_rank, run_retrieve


@dataclass(slots=True)
class Import:
    """Outcomes of an import; each response is counted once.

    Attributes:
        stored: Number of answers that were added to the cache.
        unusable: Reasons of the unusable answers, by kind.
        errors: Messages of the responses without an answer, by kind.
        refused: Number of requests among `errors` that are recorded as failed; they are not sent again.
        unanswered: Messages of the others, by key of the request, which stays pending.
        repeated: `file:line` of each response to a request that has an answer or an earlier response.
        done: Whether no request is pending.
        failed: Number of requests with only unusable answers in all samples.
    """

    stored: int = 0
    unusable: dict[str, list[str]] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    refused: int = 0
    unanswered: dict[str, str] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)
    done: bool = False
    failed: int = 0


async def import_replies(
    batch: Batch,
    folder: Path,
    paths: Sequence[Path],
    progress: Progress,
    *,
    lost: LostRequests = NOTHING_LOST,
) -> Import:
    """Store responses in the cache like answers of a server.

    A request that the engine rejected is stored as failed. Other requests without an answer stay pending: an error of
    the server, as over HTTP, is never stored. Requests in `lost` are not sent again.

    Raises:
        DataError: A line is not a response, and nothing is stored; or it answers no request of the export, and the
            others are stored. Names file and line.
        ToucheError: The stage failed with these answers. They are stored.
    """
    config = batch.config
    check_cache(config)
    replies = read_replies(paths, batch.facts.model)
    engine = RecordingEngine(replies)
    result = Import(repeated=list(replies.repeated))
    problem: ToucheError | None = None
    try:
        result.done, counts = await run_stage(batch, folder, engine, progress, lost)
        result.failed = counts.failures
    except ToucheError as error:
        problem = error  # Raised once the outcomes are known.
    with Cache(config.cache.file, CacheMode.REUSE) as cache:
        if engine.answered or replies.rejected:
            name = f"{ENGINE}, {replies.fingerprint}" if replies.fingerprint else ENGINE
            store_engine_info(batch.facts.model_copy(update={"engine": name}), cache)
        unused = _count_outcomes(replies, engine, cache, result)
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


def _count_outcomes(replies: Replies, engine: RecordingEngine, cache: Cache, result: Import) -> list[str]:
    """Add the outcome of each response to the result; return `file:line: id` of responses to unknown requests."""
    unused: list[str] = []
    for key, reply in replies.by_key.items():
        if key in engine.answered:
            answer = cache.get(key, OUTCOMES)
            if isinstance(answer, UnusableAnswer):
                result.unusable.setdefault(answer.kind, []).append(answer.reason)
            else:
                result.stored += 1
        elif problem := replies.problems.get(key):
            result.errors.setdefault(problem.kind, []).append(problem.reason)
            if key in replies.rejected:
                result.refused += 1
            else:
                result.unanswered[key] = problem.reason
        elif cache.get(key, OUTCOMES) is not None:
            result.repeated.append(reply.place)
        else:
            unused.append(f"{reply.place}: {key:.80}")
    return unused


# Requests of a round, which an interruption loses: `vllm run-batch` writes its responses at the end. More would lose
# more, fewer would load the model more often (about a minute each).
_ROUND_REQUESTS = 50_000


async def run_by_files(config: Config, folder: Path, progress: Progress, *, overwrite: bool = False) -> RunResult:
    """Run all stages with batch files; arguments and errors as `pipeline.run_all` and `answer_stage`."""
    # Before the first engine starts; `run_retrieve` warns.
    with RunContext(config, SilentProgress()) as context:
        context.check_files()
    lost = await answer_stage("retrieve", config, folder, progress, overwrite=overwrite)
    candidates = await run_retrieve(config, folder, progress, overwrite=overwrite, lost=lost)
    lost = await answer_stage("judge", config, folder, progress)
    judgments = await run_judge(config, folder, progress, lost=lost)
    lost = await answer_stage("rank", config, folder, progress)
    ranking = await run_rank(config, folder, progress, lost=lost)
    return RunResult(candidates, judgments, ranking, None)


async def answer_stage(
    stage: StageName, config: Config, folder: Path, progress: Progress, *, overwrite: bool = False
) -> dict[str, str]:
    """Run the engine's runner on the requests of a stage, in rounds, until the cache holds all answers.

    A round answers requests that do not depend on pending answers. Answers of finished rounds stay in the cache, so
    the same command resumes an interrupted stage. When a round yields no answer, its requests are lost. A replay sends
    nothing.

    Returns:
        Reasons of the lost requests by key: the stage records them as failures, as over HTTP, and the cache does not.

    Raises:
        UsageError: The folder holds a run with other settings, or the model's folder or its context is missing.
        EngineError: The runner failed, or answered none of the stage's requests.
    """
    if config.cache.mode is CacheMode.REPLAY or not sends_requests(stage, config):
        return {}
    directory = RunDirectory(folder)
    if stage == "rank":
        check_inputs(directory, config)
    else:
        with RunContext(config, progress) as context:
            check_settings(directory, context, stage, overwrite=overwrite)
    tokenizer = check_model_folder(config.engine.model)
    directory.create()
    lost: dict[str, str] = {}
    has_answers = False
    with directory.lock(f"batch {stage}", progress.warn):
        for number in count(1):
            export = await pending_requests(stage, config, folder, tokenizer, progress, lost=lost)
            if not export.requests:
                with Cache(config.cache.file, config.cache.mode) as opened:
                    # The stage reads the facts there; earlier answers may be those of another context.
                    store_engine_info(export.batch.facts, opened)
                break
            result = await _run_round(number, export, folder, progress, lost)
            if result.done:
                break
            if result.stored or result.unusable or result.refused:
                has_answers = True
            elif has_answers or export.cached:
                lost |= result.unanswered
            else:
                raise _describe_failed_round(export, result)
            # Only the first round repeats earlier failures.
            config = config.model_copy(update={"cache": config.cache.model_copy(update={"retry_failures": False})})
    return lost


async def _run_round(number: int, export: Export, folder: Path, progress: Progress, lost: LostRequests) -> Import:
    """Answer requests of an export and import the responses; remove all files of the round."""
    config, stage = export.batch.config, export.batch.stage
    requests = export.requests[:_ROUND_REQUESTS]
    cache = config.cache.file
    cache.parent.mkdir(parents=True, exist_ok=True)
    with open_scratch(cache.with_name("batch"), BUILDING) as (place, _):
        with (place / "requests.jsonl").open("wb") as stream:
            stream.writelines(map(request_line, requests))
        title = f"{stage}, round {number}: {len(requests):,} requests to {TITLES[config.engine.runner]}"
        with progress.stage(title, 1) as advance:
            responses = place / "responses.jsonl"
            await answer_file(config.engine, place / "requests.jsonl", responses, cache.with_name(LOG))
            advance()
        result = await import_replies(export.batch, folder, [responses], progress, lost=lost)
        shutil.rmtree(place)
    remove_abandoned(cache.parent)
    return result


def _describe_failed_round(export: Export, result: Import) -> EngineError:
    """Return the error of an engine that has answered no request of a stage."""
    log = export.batch.config.cache.file.with_name(LOG)
    problems = "; ".join(f"{len(reasons):,} {kind}, as {reasons[0]}" for kind, reasons in result.errors.items())
    return EngineError(
        f"{log}: no response of this round of `{export.batch.stage}` contains an answer: {problems}; fix the cause, "
        "which may be in the log, and run the same command again: earlier answers are in the cache"
    )
