"""Dry run: the stages of a run with an engine that sends nothing, to estimate its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from touche_llm.config import Config
from touche_llm.llm.cache import Cache
from touche_llm.llm.model import ModelClient
from touche_llm.llm.pooling import PoolingClient
from touche_llm.llm.recorder import RecordingEngine, Usage, make_dry_engine, open_known_answers
from touche_llm.llm.settings import CacheConfig, PoolingConfig, PoolingPurpose
from touche_llm.pipeline.candidates import NoCandidates
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.engines import OpenPooling, assume_engine_info
from touche_llm.pipeline.identity import check_settings
from touche_llm.pipeline.progress import ForwardedProgress, Progress
from touche_llm.pipeline.rank import Ranking
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.stages import StageName, compute_stage
from touche_llm.ranking.steps import bound_requests, list_comparison_kinds


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated minimum and maximum usage of a stage, or of a part of a comparison, with one prompt."""

    stage: str
    prompt: str
    least: Usage
    most: Usage


@dataclass(slots=True)
class DryRun:
    """Estimated cost of a run.

    Attributes:
        costs: Cost of each stage and prompt.
        known: Minimum number of requests of each stage that are cached or repeated within the run.
        failed: Minimum number of requests of each stage with only unusable answers in the cache.
        context: Context of the engine in tokens; None if unknown, then documents are counted without truncation.
        has_unknown_queries: Whether the model expands queries, so that the first stage may find other documents.
    """

    costs: list[Cost] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    context: int | None = None
    has_unknown_queries: bool = False


async def estimate_cost(
    config: Config, folder: Path | None, stages: Sequence[StageName], progress: Progress, *, overwrite: bool = False
) -> DryRun:
    """Estimate the requests of stages from their rendered prompts; no request is sent and no run file written.

    The corpus is stored and indexed, and ChatNoir queried, as in the run. Judgments that are not cached count as
    undecided, so documents are compared in first-stage order, and every sentence takes a side. Comparisons are answered
    so that they confirm the ranking; where their number depends on the answers, its minimum and maximum are those of
    the methods over all answers, and a request has the average length. The folder has the outputs of earlier stages
    than `stages`. If only queries of the model can find documents, nothing is known of the later stages.

    Raises:
        UsageError: The first stage would not start in this folder: it is a file, or holds another run.
    """
    result = DryRun()
    directory, output = RunDirectory(folder or Path()), None
    if stages[0] == "retrieve":
        with RunContext(config, progress) as context:
            context.check_sources()
            if folder is not None:
                directory.check_path()
                check_settings(directory, context, "run" if len(stages) > 1 else "retrieve", overwrite=overwrite)
    with (
        RunContext(config, ForwardedProgress(progress, "dry run")) as context,
        open_known_answers(config.cache.file, config.cache.mode) as cache,
    ):
        facts = assume_engine_info(config.engine, cache)
        result.context = facts.context if facts.engine or config.engine.context else None
        answered: set[str] = set()
        for stage in stages:
            engine = make_dry_engine(task=context.task.name, answered=answered)
            retry = config.cache.retry_failures
            context.model = ModelClient(engine_info=facts, engine=engine, cache=cache, retry_failures=retry)
            context.open_pooling = _make_opener(engine, context.model)
            try:
                earlier = None if isinstance(output, Ranking) else output
                output = await compute_stage(stage, context, directory, earlier)
            except NoCandidates:
                if not (result.has_unknown_queries or _invents_queries(context, engine)):
                    raise
                output = None
            result.has_unknown_queries |= _invents_queries(context, engine)
            result.known[stage] = context.model.counts.cache_hits + engine.repeated
            result.failed[stage] = context.model.counts.known_failures
            bounds = {}
            if isinstance(output, Ranking):
                bounds = dict(_bound_comparisons(context, cache, output, engine.usage))
            for prompt, usage in engine.usage.items():
                least, most = bounds.get(prompt, (usage.requests, usage.requests))
                result.costs.append(Cost(stage, prompt, usage.scale(least), usage.scale(most)))
            if output is None:
                break
    return result


def _invents_queries(context: RunContext, engine: RecordingEngine) -> bool:
    """Return whether the engine was to expand queries, since the cache lacks the model's."""
    return context.config.expansion.use and context.load_prompts("queries")["queries"].name in engine.usage


def _bound_comparisons(
    context: RunContext, cache: Cache, ranking: Ranking, usage: Mapping[str, Usage]
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the prompts that compare documents, each with the minimum and maximum number of its requests.

    A topic whose comparisons all have an answer in the cache needs no request. In another, the first one that has none
    is certain; which others are made, and which of them have an answer, depends on the answers before.

    Args:
        context: The dry run's context.
        cache: Known answers.
        ranking: Ranking of the dry run, which has all documents of each topic.
        usage: Usage of the dry run, of prompts with requests only.
    """
    config = context.config
    for kind in list_comparison_kinds(config.steps):
        (prompt,) = context.load_prompts(kind).values()
        if (found := usage.get(prompt.name)) is None:
            continue
        stored: dict[str, Counter[int]] = {topic: Counter() for each in usage.values() for topic in each.topics}
        for entry in [*cache.find("answer", prompt=prompt.name), *cache.find("unusable", prompt=prompt.name)]:
            if entry.topic in stored:
                stored[entry.topic][len((entry.document or "").split())] += 1
        thinking = config.sampling.thinking.think_for(kind)
        requests = 2 * thinking.chains if thinking else 1
        bounds = {
            topic_id: bound_requests(
                kind, config.steps, config.ranking, topic_id, len(ranking.rankings[topic_id])
            ).scale(requests)
            for topic_id in stored
        }
        if any(each.count_min({}) < each.max for each in bounds.values()):
            least = sum(
                max(topic_id in found.topics, each.count_min(stored[topic_id])) for topic_id, each in bounds.items()
            )
            yield prompt.name, (least, sum(each.max for each in bounds.values()))


def _make_opener(engine: RecordingEngine, model: ModelClient) -> OpenPooling:
    """Return a function that opens pooling models which send nothing, and whose requests `engine` records."""

    @asynccontextmanager
    async def open_dry(
        purpose: PoolingPurpose, asked: PoolingConfig, answers: CacheConfig, dimensions: int | None = None
    ) -> AsyncIterator[PoolingClient]:
        yield PoolingClient(
            engine_info=assume_engine_info(asked, model.cache, purpose),
            engine=engine,
            cache=model.cache,
            purpose=purpose,
            counts=model.counts,
            batch=asked.batch,
            concurrency=asked.concurrency,
            dimensions=dimensions,
        )

    return open_dry
