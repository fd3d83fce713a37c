"""Dry run: the stages of a run with an engine that sends nothing, to estimate its requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from touche_llm.api.opening import open_client
from touche_llm.api.progress import ForwardedProgress, Progress
from touche_llm.api.rank import Ranking
from touche_llm.config.configuration import Config
from touche_llm.engines.cached_info import assume_engine_info
from touche_llm.engines.dry_run import DryRunEngine, Usage
from touche_llm.engines.pooling import PoolingClient
from touche_llm.engines.settings import PoolingConfig, PoolingPurpose
from touche_llm.judging.result import Judgments
from touche_llm.llm.model import ModelClient
from touche_llm.llm.settings import CacheConfig
from touche_llm.ranking.registry import ComparingMethod
from touche_llm.retrieval.candidates import Candidates
from touche_llm.runs.context import RunContext
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.record import StageName
from touche_llm.runs.resume import check_settings
from touche_llm.runs.stages import compute_stage


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated usage of a stage, or of a part of a comparison, with one prompt.

    Attributes:
        usage: Expected usage, where comparisons confirm the ranking.
    """

    stage: str
    prompt: str
    usage: Usage


@dataclass(slots=True)
class DryRun:
    """Estimated cost of a run.

    Attributes:
        known: Number of requests of each stage that are cached or repeated within the run.
        failed: Number of requests of each stage with only unusable answers in the cache.
        max_requests: Maximum number of requests of each ranking step whose number of comparisons
            depends on the answers.
        context: Context of the engine in tokens; None if unknown, then documents are counted
            without truncation.
        has_unknown_queries: Whether the model expands queries, so that the first stage may find
            other documents.
    """

    costs: list[Cost] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    max_requests: dict[str, int] = field(default_factory=dict)
    context: int | None = None
    has_unknown_queries: bool = False


async def estimate_cost(
    config: Config,
    folder: Path | None,
    stages: Sequence[StageName],
    progress: Progress,
    *,
    overwrite: bool = False,
) -> DryRun:
    """Estimate the requests of stages from their rendered prompts.

    No request is sent and no run file written.

    The corpus is stored and indexed, and ChatNoir queried, as in the run. Judgments that are not
    cached count as undecided, so documents are compared in first-stage order, and every sentence
    takes a side. Comparisons that are not cached confirm the ranking. The folder has the outputs of
    earlier stages than `stages`.
    """
    result = DryRun()
    directory = RunDirectory(folder or Path())
    # Keys of the requests of earlier stages, which a run would find in the cache.
    answered: set[str] = set()
    output: Candidates | Judgments | Ranking | None = None
    with RunContext(config, progress) as context:
        if stages[0] == "retrieve":
            context.check_sources()
            if folder is not None:
                command = "run" if len(stages) > 1 else "retrieve"
                check_settings(directory, context, command, overwrite=overwrite)

        context.progress = ForwardedProgress(progress, "dry run")
        for stage in stages:
            earlier = None if isinstance(output, Ranking) else output
            engine = DryRunEngine(task=context.task.name, answered=answered)
            async with open_dry_client(config, engine) as model:
                context.model = model
                context.open_pooling = partial(_open_pooling, model)
                output = await compute_stage(stage, context, directory, earlier)
            _add_stage(result, stage, context, model, engine)
            if isinstance(output, Ranking):
                result.max_requests = _list_max_requests(context, output, engine.usage)
    return result


def _add_stage(
    result: DryRun,
    stage: StageName,
    context: RunContext,
    model: ModelClient,
    engine: DryRunEngine,
) -> None:
    """Add the requests of a stage to the result.

    Args:
        result: Estimate to complete.
        stage: Stage that was computed.
        context: Context of the run.
        model: Client of the stage, which counts what was cached.
        engine: Engine of the stage, which recorded the other requests.
    """
    result.context = find_context(context.config, model)
    result.known[stage] = model.counts.cache_hits + engine.repeated
    result.failed[stage] = model.counts.known_failures
    for prompt, usage in engine.usage.items():
        result.costs.append(Cost(stage, prompt, usage))

    if context.config.expansion.use:
        queries_prompt = context.load_prompts("queries")["queries"]
        if queries_prompt.name in engine.usage:
            result.has_unknown_queries = True


def open_dry_client(
    config: Config, engine: DryRunEngine
) -> AbstractAsyncContextManager[ModelClient]:
    """Open a client with the settings of a run that sends and stores nothing."""
    return open_client(config.engine, config.sampling, config.cache.read_only, answers=engine)


def find_context(config: Config, model: ModelClient) -> int | None:
    """Return the context of a model in tokens; None if neither settings nor cache know it."""
    is_engine_known = model.engine_info.engine != ""
    if config.engine.context is None and not is_engine_known:
        return None
    return model.engine_info.context


def _list_max_requests(
    context: RunContext, ranking: Ranking, usages: Mapping[str, Usage]
) -> dict[str, int]:
    """Return the maximum number of requests of each step that has one, by step.

    Steps that need no request are left out.

    Args:
        context: Context of the run.
        ranking: Ranking of the dry run.
        usages: Expected usage of the ranking, by prompt.
    """
    max_requests: dict[str, int] = {}
    for step in context.config.steps:
        method = context.config.ranking.find_method(step.name)
        if not isinstance(method, ComparingMethod):
            continue

        (prompt,) = context.load_prompts(method.kind).values()
        if prompt.name not in usages:
            continue

        # A topic whose comparisons all have an answer in the cache needs no request.
        topics = usages[prompt.name].topics
        depths = [min(step.depth, len(ranking.rankings[topic_id])) for topic_id in topics]
        max_comparisons = _sum_max_comparisons(method, depths)
        if max_comparisons is None:
            continue

        has_thoughts = context.config.sampling.thinking.think_for(method.kind)
        requests_per_comparison = 2 if has_thoughts else 1
        max_requests[str(step)] = max_comparisons * requests_per_comparison
    return max_requests


def _sum_max_comparisons(method: ComparingMethod, depths: Collection[int]) -> int | None:
    """Return the maximum number of comparisons of all topics.

    None if answers do not change the number.

    Args:
        method: Method of the step.
        depths: Number of documents to rerank of each topic.
    """
    total = 0
    for depth in depths:
        max_comparisons = method.bound_comparisons(depth)
        if max_comparisons is None:
            return None
        total += max_comparisons
    return total


@asynccontextmanager
async def _open_pooling(
    model: ModelClient,
    purpose: PoolingPurpose,
    asked: PoolingConfig,
    answers: CacheConfig,
    dimensions: int | None = None,
) -> AsyncIterator[PoolingClient]:
    """Open a pooling model that sends nothing, and whose requests the engine of `model` records."""
    assert isinstance(model.engine, DryRunEngine), "only dry runs open it"
    yield PoolingClient(
        engine_info=assume_engine_info(asked, model.cache, purpose),
        engine=model.engine,
        cache=model.cache,
        purpose=purpose,
        counts=model.counts,
        batch=asked.batch,
        concurrency=asked.concurrency,
        dimensions=dimensions,
    )
