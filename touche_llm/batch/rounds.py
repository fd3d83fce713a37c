"""Runs whose requests are answered by batch files: export, run and import, until nothing is pending."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

from touche_llm.batch.files import Import, asks_model, import_replies, pending_requests, request_line
from touche_llm.batch.runner import TITLES, answer_file
from touche_llm.config import Config
from touche_llm.data.scratch import BUILDING, open_scratch, remove_abandoned
from touche_llm.errors import EngineError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.engines.batch_replies import MAX_REPLIES
from touche_llm.llm.engines.vllm_common import check_model_folder
from touche_llm.pipeline.dry_run import StageName
from touche_llm.pipeline.engines import LOG, store_engine_info
from touche_llm.pipeline.judge import JudgingResult
from touche_llm.pipeline.made_from import check_inputs, check_settings
from touche_llm.pipeline.progress import Progress
from touche_llm.pipeline.run_all import check_files, run_judge, run_rank, run_retrieve
from touche_llm.pipeline.run_lock import lock_run


async def run_by_files(config: Config, folder: Path, progress: Progress, *, overwrite: bool = False) -> JudgingResult:
    """Run all stages, each after its requests were answered; arguments and errors as `pipeline.run_all`."""
    check_files(config)
    await answer_stage("retrieve", config, folder, progress, overwrite=overwrite)
    failures = await run_retrieve(config, folder, progress, overwrite=overwrite)
    await answer_stage("judge", config, folder, progress)
    outcome = await run_judge(config, folder, progress)
    await answer_stage("rank", config, folder, progress)
    ranking = await run_rank(config, folder, progress)
    return replace(outcome, failures=failures + outcome.failures + ranking.failures)


async def answer_stage(
    stage: StageName, config: Config, folder: Path, progress: Progress, *, overwrite: bool = False
) -> None:
    """Have the engine's runner answer what a stage requests, in rounds, until the cache holds all answers.

    A round answers all requests that do not depend on pending answers. Answers of finished rounds stay in the cache, so
    that the same command resumes an interrupted one. A replay sends nothing.

    Raises:
        UsageError: The folder holds a run with other settings, or the model's folder or its context is missing.
        EngineError: The runner failed, or a round yielded nothing that can be stored.
    """
    if config.cache.mode is CacheMode.REPLAY or not asks_model(stage, config):
        return
    if stage == "rank":
        check_inputs(folder, config)
    else:
        check_settings(folder, config, stage, overwrite=overwrite)
    tokenizer = check_model_folder(config.engine.model)
    folder.mkdir(parents=True, exist_ok=True)
    with lock_run(folder, f"batch {stage}", progress.warn):
        for number in count(1):
            export = await pending_requests(stage, config, folder, tokenizer, progress)
            if not export.requests:
                with Cache(config.cache.file, config.cache.mode) as opened:
                    # The stage reads them there; earlier answers may be those of another context.
                    store_engine_info(export.batch.facts, opened)
                return
            requests = export.requests[:MAX_REPLIES]
            cache = config.cache.file
            cache.parent.mkdir(parents=True, exist_ok=True)
            with open_scratch(cache.with_name("batch"), BUILDING) as (place, _):
                with (place / "requests.jsonl").open("wb") as stream:
                    stream.writelines(map(request_line, requests))
                title = f"{stage}, round {number}: {len(requests):,} requests to {TITLES[config.engine.runner]}"
                with progress.stage(title, 1) as done:
                    responses = place / "responses.jsonl"
                    await answer_file(config.engine, place / "requests.jsonl", responses, cache.with_name(LOG))
                    done()
                result = await import_replies(export.batch, folder, [responses], progress)
                shutil.rmtree(place)
            remove_abandoned(cache.parent)
            _check_progress(result, stage, cache.with_name(LOG))
            if result.done:
                return
            # The first round has sent them again.
            config = config.model_copy(update={"cache": config.cache.model_copy(update={"retry_failures": False})})


def _check_progress(result: Import, stage: StageName, log: Path) -> None:
    """Raise EngineError if a round stored nothing: the next one would send the same requests."""
    if result.stored or result.unusable or result.refused:
        return
    kinds: Mapping[str, list[str]] = result.errors
    listed = "; ".join(f"{len(reasons):,} {kind}, as {reasons[0]}" for kind, reasons in kinds.items())
    raise EngineError(
        f"{log}: no response of this round of `{stage}` holds an answer: {listed}; remove the cause, which the log may "
        "name, and run the same command again: earlier answers are in the cache"
    )
