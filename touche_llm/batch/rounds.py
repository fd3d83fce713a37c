"""Runs with batch files: rounds of export, run and import until no request is pending."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

from touche_llm.batch.export import Export, pending_requests, request_line
from touche_llm.batch.responses import Import, import_replies
from touche_llm.batch.runner import TITLES, answer_file
from touche_llm.batch.stage_run import sends_requests
from touche_llm.config import Config
from touche_llm.data.scratch import BUILDING, open_scratch, remove_abandoned
from touche_llm.errors import EngineError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.engines.vllm_common import check_model_folder
from touche_llm.llm.model import LostRequests
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.engines import LOG, store_engine_info
from touche_llm.pipeline.inputs import check_inputs, check_settings
from touche_llm.pipeline.progress import Progress, SilentProgress
from touche_llm.pipeline.run_all import RunResult, run_judge, run_rank, run_retrieve
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.stages import StageName

# Requests of a round, which an interruption loses: `vllm run-batch` writes its responses at the end. More would lose
# more, fewer would load the model more often (about a minute each).
_ROUND_REQUESTS = 50_000
# As over HTTP, so many requests without any answer are the engine's fault.
_MAX_UNANSWERED = 32


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
    the same command resumes an interrupted stage. When two rounds in a row yield no answer, the requests of the last
    are lost. A replay sends nothing.

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
    has_answers = was_empty = False
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
            is_empty = not (result.stored or result.unusable or result.refused)
            has_answers = has_answers or not is_empty
            if not has_answers:
                _check_failed_round(export, result)
            if is_empty and was_empty:
                lost |= result.unanswered
            was_empty = is_empty
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


def _check_failed_round(export: Export, result: Import) -> None:
    """Raise EngineError if the engine seems unusable: a round had no answer, and no earlier round of this command had.

    A few requests without an answer are accepted if the cache answers others of the stage: they may be the rest of an
    interrupted run, which has to end like one without an interruption.
    """
    if export.cached and len(export.requests) < _MAX_UNANSWERED:
        return
    log = export.batch.config.cache.file.with_name(LOG)
    problems = "; ".join(f"{len(reasons):,} {kind}, as {reasons[0]}" for kind, reasons in result.errors.items())
    raise EngineError(
        f"{log}: no response of this round of `{export.batch.stage}` contains an answer: {problems}; fix the cause, "
        "which may be in the log, and run the same command again: earlier answers are in the cache"
    )
