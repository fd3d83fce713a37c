"""The commands that make a run: all stages, or one of them, in the run's folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from touche_llm.config import Config
from touche_llm.data.records import Failure
from touche_llm.llm.counts import Counts
from touche_llm.llm.model import NOTHING_LOST, LostRequests
from touche_llm.pipeline.candidates import Candidates
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.engines import open_model
from touche_llm.pipeline.inputs import check_inputs, check_settings
from touche_llm.pipeline.judge import Judgments
from touche_llm.pipeline.progress import Progress
from touche_llm.pipeline.rank import Ranking
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.settings import PURPOSES
from touche_llm.pipeline.stages import count_requests, judge_stage, rank_stage, retrieve_stage
from touche_llm.ranking.steps import list_comparison_kinds, needs_texts


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a whole run: the outputs of its stages, and the model's counts, None if batch files had the answers."""

    candidates: Candidates
    judgments: Judgments
    ranking: Ranking
    counts: Counts | None

    @property
    def failures(self) -> list[Failure]:
        """Failures of all stages."""
        return [*self.candidates.failures, *self.judgments.failures, *self.ranking.failures]


async def run_all(config: Config, folder: Path, progress: Progress, *, overwrite: bool = False) -> RunResult:
    """Run all stages; missing files and engine errors are raised before the first stage.

    Raises:
        UsageError: The folder holds a run with other settings without `overwrite`, or another process writes there.
    """
    directory = RunDirectory(folder)
    with RunContext(config, progress) as context:
        context.check_files()
        directory.create()
        with directory.lock("run", progress.warn):
            async with _open_model(context, directory, "run", overwrite), context.using_reranker():
                return await run_stages(context, directory)


async def run_stages(context: RunContext, directory: RunDirectory) -> RunResult:
    """Run all stages with one model."""
    candidates = await retrieve_stage(context, directory)
    judgments = await judge_stage(context, directory)
    ranking = await rank_stage(context, directory)
    return RunResult(candidates, judgments, ranking, count_requests(context.model))


async def run_retrieve(
    config: Config,
    folder: Path,
    progress: Progress,
    *,
    overwrite: bool = False,
    lost: LostRequests = NOTHING_LOST,
) -> Candidates:
    """Run the first stage, with a model if queries are expanded; errors and other arguments as `run_all`.

    `lost` are the requests that batch files left without an answer.
    """
    directory = RunDirectory(folder)
    with RunContext(config, progress) as context:
        context.check_sources()
        directory.create()
        with directory.lock("retrieve", progress.warn):
            if not config.expansion.use:
                check_settings(directory, context, "retrieve", overwrite=overwrite)
                return await retrieve_stage(context, directory)
            async with _open_model(context, directory, "retrieve", overwrite, lost):
                return await retrieve_stage(context, directory)


async def run_judge(
    config: Config,
    folder: Path,
    progress: Progress,
    *,
    overwrite: bool = False,
    lost: LostRequests = NOTHING_LOST,
) -> Judgments:
    """Run the second stage; arguments and errors as `run_retrieve`."""
    directory = RunDirectory(folder)
    with directory.lock("judge", progress.warn), RunContext(config, progress) as context:
        async with _open_model(context, directory, "judge", overwrite, lost):
            return await judge_stage(context, directory)


async def run_rank(config: Config, folder: Path, progress: Progress, *, lost: LostRequests = NOTHING_LOST) -> Ranking:
    """Run the last stage, with a model if documents are compared; arguments as `run_retrieve`.

    Raises:
        UsageError: A model sees documents, and topics or corpus changed since the first stage.
    """
    directory = RunDirectory(folder)
    with directory.lock("rank", progress.warn):
        if needs_texts(config.steps):
            check_inputs(directory, config)
        if not list_comparison_kinds(config.steps):
            if directory.config_file.exists():
                # Ranking without comparisons uses no engine, so the metadata keeps the one of the judgments.
                config = config.model_copy(update={"engine": directory.read_config().engine})
            with RunContext(config, progress) as context:
                return await rank_stage(context, directory)
        with RunContext(config, progress) as context:
            schemas = context.list_schemas(*list_comparison_kinds(config.steps))
            async with open_model(config.engine, config.sampling, config.cache, lost, schemas, progress) as model:
                with context.using(model):
                    return await rank_stage(context, directory)


@asynccontextmanager
async def _open_model(
    context: RunContext,
    directory: RunDirectory,
    command: str,
    overwrite: bool,
    lost: LostRequests = NOTHING_LOST,
) -> AsyncIterator[None]:
    """Open the model for the context while the block runs.

    Raises:
        UsageError: The folder holds a run with other settings.
    """
    # Checked before the slow loading of the model, and again once its name and context are known.
    check_settings(directory, context, command, overwrite=overwrite)
    config, schemas = context.config, context.list_schemas(*PURPOSES.get(command, ()))
    async with open_model(config.engine, config.sampling, config.cache, lost, schemas, context.progress) as model:
        with context.using(model):
            check_settings(directory, context, command, overwrite=overwrite)
            yield
