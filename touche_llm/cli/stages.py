"""The commands that make a run: the whole way, or one stage of it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import typer

from touche_llm import pipeline
from touche_llm.cli import options as o
from touche_llm.cli.console import ConsoleObserver
from touche_llm.config import Config
from touche_llm.errors import printable
from touche_llm.first_stage import build_index
from touche_llm.llm.cache import kept
from touche_llm.pipeline import Outcome, by_kind
from touche_llm.retrieval.bm25 import Bm25Settings
from touche_llm.tasks import DEFAULT_TASK, get_task

FAILURES_EXIT = 3


def index(
    corpus: o.CorpusOption = None,
    task: o.TaskOption = None,
    folder: o.IndexOption = None,
    bm25_method: o.MethodOption = None,
    k1: o.K1Option = None,
    b: o.BOption = None,
    skip_bad_lines: o.SkipOption = None,
) -> None:
    """Store a corpus and build its BM25 index. Does nothing where both are there and up to date."""
    if corpus is None:
        raise typer.BadParameter("give the corpus", param_hint="--corpus")
    given = {"method": bm25_method, "k1": k1, "b": b}
    settings = o.checked(Bm25Settings, {name: value for name, value in given.items() if value is not None})
    observer = ConsoleObserver()
    known = get_task(task or DEFAULT_TASK)
    with build_index(known, corpus, folder, settings, bool(skip_bad_lines), observer.notify) as store:
        parts = f" and their {len(store.parts):,} sentences" if len(store.parts) else ""
        print(f"{len(store):,} documents of {corpus}{parts} are indexed in {store.folder}")


def retrieve(
    context: typer.Context,
    out: o.OutOption,
    topics: o.TopicsOption = None,
    corpus: o.CorpusOption = None,
    task: o.TaskOption = None,
    config: o.ConfigOption = None,
    index: o.IndexOption = None,
    candidates: o.CandidatesOption = None,
    depth: o.DepthOption = None,
    limit_topics: o.LimitOption = None,
    topic: o.TopicOption = None,
    retriever: o.RetrieverOption = None,
    bm25_method: o.MethodOption = None,
    k1: o.K1Option = None,
    b: o.BOption = None,
    query: o.QueryOption = None,
    skip_bad_lines: o.SkipOption = None,
    tag: o.TagOption = None,
) -> None:
    """First stage: write candidates.run.txt, the best documents of each topic; sentences.run.txt for pairs of them."""
    settings = o.configure(context)
    asyncio.run(pipeline.retrieve_stage(settings, out, ConsoleObserver()))
    print(f"candidates: {out / pipeline.first_stage_file(get_task(settings.task))}")


def judge(
    context: typer.Context,
    out: o.OutOption,
    topics: o.TopicsOption = None,
    corpus: o.CorpusOption = None,
    task: o.TaskOption = None,
    config: o.ConfigOption = None,
    index: o.IndexOption = None,
    engine: o.EngineOption = None,
    depth: o.DepthOption = None,
    base_url: o.BaseUrlOption = None,
    model: o.ModelOption = None,
    revision: o.RevisionOption = None,
    context_tokens: o.ContextOption = None,
    prompt: o.PromptOption = None,
    objects_prompt: o.ObjectsPromptOption = None,
    sentence_prompt: o.SentencePromptOption = None,
    judge_pairs: o.JudgePairsOption = None,
    both_orders: o.BothOrdersOption = None,
    cache: o.CacheOption = None,
    cache_mode: o.CacheModeOption = None,
    concurrency: o.ConcurrencyOption = None,
    request_timeout: o.TimeoutOption = None,
    retry_for: o.RetryOption = None,
    temperature: o.TemperatureOption = None,
    seed: o.SeedOption = None,
    max_tokens: o.MaxTokensOption = None,
    logprobs: o.LogprobsOption = None,
) -> None:
    """Second stage: the model judges the candidates of the run's folder. Exit code 3 when some could not be judged."""
    settings = o.configure(context)
    outcome = asked(settings, pipeline.judge_alone(settings, out, ConsoleObserver()))
    print(f"judgments: {out / pipeline.JUDGMENTS}")
    end(out, outcome)


def rank(
    context: typer.Context,
    out: o.OutOption,
    topics: o.TopicsOption = None,
    task: o.TaskOption = None,
    config: o.ConfigOption = None,
    weight_relevance: o.RelevanceOption = None,
    weight_quality: o.QualityOption = None,
    weight_coherence: o.CoherenceOption = None,
    weight_first_stage: o.FirstStageOption = None,
    tag: o.TagOption = None,
) -> None:
    """Last stage: write run.txt from candidates and judgments, without a server. Exit code 3 when some are missing."""
    lines, imputed = pipeline.rank_stage(o.configure(context), out, ConsoleObserver())
    print(f"run: {out / pipeline.RUN} ({lines:,} lines)")
    if imputed:
        raise typer.Exit(FAILURES_EXIT)


def run(
    context: typer.Context,
    out: o.OutOption,
    topics: o.TopicsOption = None,
    corpus: o.CorpusOption = None,
    task: o.TaskOption = None,
    config: o.ConfigOption = None,
    engine: o.EngineOption = None,
    base_url: o.BaseUrlOption = None,
    model: o.ModelOption = None,
    revision: o.RevisionOption = None,
    context_tokens: o.ContextOption = None,
    depth: o.DepthOption = None,
    limit_topics: o.LimitOption = None,
    topic: o.TopicOption = None,
    tag: o.TagOption = None,
    cache: o.CacheOption = None,
    cache_mode: o.CacheModeOption = None,
    index: o.IndexOption = None,
    candidates: o.CandidatesOption = None,
    retriever: o.RetrieverOption = None,
    bm25_method: o.MethodOption = None,
    k1: o.K1Option = None,
    b: o.BOption = None,
    query: o.QueryOption = None,
    skip_bad_lines: o.SkipOption = None,
    prompt: o.PromptOption = None,
    objects_prompt: o.ObjectsPromptOption = None,
    sentence_prompt: o.SentencePromptOption = None,
    judge_pairs: o.JudgePairsOption = None,
    both_orders: o.BothOrdersOption = None,
    weight_relevance: o.RelevanceOption = None,
    weight_quality: o.QualityOption = None,
    weight_coherence: o.CoherenceOption = None,
    weight_first_stage: o.FirstStageOption = None,
    concurrency: o.ConcurrencyOption = None,
    request_timeout: o.TimeoutOption = None,
    retry_for: o.RetryOption = None,
    temperature: o.TemperatureOption = None,
    seed: o.SeedOption = None,
    max_tokens: o.MaxTokensOption = None,
    logprobs: o.LogprobsOption = None,
) -> None:
    """The whole way: retrieve, judge, rank. A run that was stopped goes on where it stopped when called again.

    Exit codes: 0 all judged; 1 the data, the prompt or the engine is not as it should be; 2 wrong usage; 3 the run is
    written, but some documents could not be judged (they are in failures.jsonl); 130 interrupted.
    """
    settings = o.configure(context)
    outcome = asked(settings, pipeline.run_all(settings, out, ConsoleObserver()))
    print(f"run: {out / pipeline.RUN} ({outcome.judgments:,} judgments)")
    end(out, outcome)


def asked(config: Config, work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run what asks the model; Ctrl-C and SIGTERM end it with exit code 130 and say where the answers are."""

    def stop(*_: object) -> None:
        # What is left then is to close, which a second Ctrl-C should not break.
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return asyncio.run(_quietly(work))
    except KeyboardInterrupt:
        print(f"interrupted; {kept(config.cache.file, config.cache.mode)}", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _quietly(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """The same work; of the tasks that Ctrl-C stops, none tells on its own that it was stopped."""

    def tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), KeyboardInterrupt):
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(tell)
    return await work


def end(out: Path, outcome: Outcome) -> None:
    """Say what failed, and exit with code 3 where something did."""
    if outcome.failures:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in by_kind(outcome.failures).items())
        reasons = Counter(failure.attempts[-1].reason for failure in outcome.failures)
        print(f"failures: {kinds}; most often: {printable(reasons.most_common(1)[0][0])}")
        print(f"what came back each time is in {out / pipeline.FAILURES}")
        raise typer.Exit(FAILURES_EXIT)
