"""The pipeline: retrieve, judge and rank, each reading and writing files of the run's folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from touche_llm.config import Config, load_config
from touche_llm.data.records import Failure
from touche_llm.errors import DataError
from touche_llm.llm.model import ModelClient
from touche_llm.pipeline.candidates import choose_topics
from touche_llm.pipeline.common import has_comparisons, load_prompts
from touche_llm.pipeline.engines import open_model
from touche_llm.pipeline.judge import JudgingResult, judge_stage
from touche_llm.pipeline.made_from import check_inputs, check_settings
from touche_llm.pipeline.progress import Progress
from touche_llm.pipeline.rank import RankingResult, rank_stage
from touche_llm.pipeline.retrieve import retrieve_stage
from touche_llm.pipeline.run_files import CONFIG
from touche_llm.pipeline.run_lock import lock_run
from touche_llm.tasks import get_task


async def run_all(config: Config, folder: Path, progress: Progress, *, overwrite: bool = False) -> JudgingResult:
    """Run all stages; missing files and engine errors are raised before the first stage.

    Args:
        config: What to run.
        folder: The run's folder.
        progress: Receives warnings and the progress of each stage.
        overwrite: Whether a run with other settings there may be replaced.

    Raises:
        UsageError: The folder holds a run with other settings, or another process writes there.
    """
    check_files(config)
    folder.mkdir(parents=True, exist_ok=True)
    with lock_run(folder, "run", progress.warn):
        async with _model(config, folder, "run", overwrite) as (known, model):
            return await run_stages(known, folder, progress, model)


def check_files(config: Config) -> None:
    """Raise an error if topics, prompts, corpus or candidates are missing or cannot be read."""
    choose_topics(config)
    load_prompts(config, get_task(config.task))
    for path in (config.corpus, config.candidates):
        if path is not None and not path.is_file():
            raise DataError(f"{path}: no such file")


async def run_stages(config: Config, folder: Path, progress: Progress, model: ModelClient) -> JudgingResult:
    """Run all stages with one model."""
    failures = await retrieve_stage(config, folder, progress, model)
    outcome = await judge_stage(config, folder, progress, model)
    ranking = await rank_stage(config, folder, progress, model)
    return replace(outcome, failures=failures + outcome.failures + ranking.failures)


async def run_retrieve(config: Config, folder: Path, progress: Progress, *, overwrite: bool = False) -> list[Failure]:
    """Run the first stage, with a model if queries are expanded; arguments and errors as `run_all`."""
    folder.mkdir(parents=True, exist_ok=True)
    with lock_run(folder, "retrieve", progress.warn):
        if not config.expansion.use:
            check_settings(folder, config, "retrieve", overwrite=overwrite)
            return await retrieve_stage(config, folder, progress)
        async with _model(config, folder, "retrieve", overwrite) as (known, model):
            return await retrieve_stage(known, folder, progress, model)


async def run_judge(config: Config, folder: Path, progress: Progress, *, overwrite: bool = False) -> JudgingResult:
    """Run the judge stage; arguments and errors as `run_all`."""
    with lock_run(folder, "judge", progress.warn):
        async with _model(config, folder, "judge", overwrite) as (known, model):
            return await judge_stage(known, folder, progress, model)


async def run_rank(config: Config, folder: Path, progress: Progress) -> RankingResult:
    """Run the last stage, with a model if documents are compared.

    Raises:
        UsageError: Documents are compared, and topics or corpus changed since the first stage.
    """
    with lock_run(folder, "rank", progress.warn):
        if not has_comparisons(config):
            return await rank_stage(_with_engine_of(folder, config), folder, progress)
        check_inputs(folder, config)
        async with open_model(config) as model:
            return await rank_stage(_with_facts(config, model), folder, progress, model)


@asynccontextmanager
async def _model(
    config: Config, folder: Path, command: str, overwrite: bool
) -> AsyncIterator[tuple[Config, ModelClient]]:
    """Open the model; yield the configuration completed by it, and the model.

    Raises:
        UsageError: The folder holds a run with other settings.
    """
    # Checked before the slow loading of the model, and again once its name and context are known.
    check_settings(folder, config, command, overwrite=overwrite)
    async with open_model(config) as model:
        known = _with_facts(config, model)
        check_settings(folder, known, command, overwrite=overwrite)
        yield known, model


def _with_engine_of(folder: Path, config: Config) -> Config:
    """Return the configuration with the engine of the judgments, since ranking without comparisons uses none."""
    file = folder / CONFIG
    return config.model_copy(update={"engine": load_config(file, {}).engine}) if file.exists() else config


def _with_facts(config: Config, model: ModelClient) -> Config:
    """Return the configuration with the model's name and context, which only the server may know."""
    known = {"model": config.engine.model or model.engine_info.model, "context": model.engine_info.context}
    return config.model_copy(update={"engine": config.engine.model_copy(update=known)})
