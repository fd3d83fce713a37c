"""The commands that make a run: the whole way, or one stage of it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer

from touche_llm.batch.rounds import answer_stage, run_by_files
from touche_llm.cli import options as o
from touche_llm.cli.costs import print_cost
from touche_llm.cli.elastic import load_elasticsearch
from touche_llm.cli.output import Format, FormatOption, print_rows, say
from touche_llm.config import Config
from touche_llm.data.files import read_records
from touche_llm.data.records import Failure, Judgment
from touche_llm.data.trec_runs import read_run
from touche_llm.errors import UsageError, to_printable
from touche_llm.llm.cache import describe_resume
from touche_llm.pipeline import run_all as pipeline
from touche_llm.pipeline import run_files
from touche_llm.pipeline.corpora import build_index
from touche_llm.pipeline.dry_run import estimate_cost
from touche_llm.pipeline.progress import ConsoleProgress
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.stages import StageName, count_by_kind
from touche_llm.retrieval.bm25 import Bm25Settings
from touche_llm.tasks import DEFAULT_TASK, get_task

FAILURES_EXIT = 3
ResultT = TypeVar("ResultT")


def index(
    corpus: o.CorpusOption = None,
    task: o.TaskOption = None,
    folder: o.IndexOption = None,
    retriever: o.RetrieverOption = None,
    bm25_method: o.MethodOption = None,
    k1: o.K1Option = None,
    b: o.BOption = None,
    elasticsearch: o.ElasticsearchOption = None,
    elasticsearch_index: o.ElasticsearchIndexOption = None,
    skip_bad_lines: o.SkipOption = None,
    values: o.ValuesOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Store a corpus and build its BM25 index. Does nothing where both are there and up to date.

    With `--retriever elasticsearch` the corpus is loaded into an index there; a load that was stopped goes on.
    """
    if corpus is None:
        raise typer.BadParameter("give the corpus", param_hint="--corpus")
    if retriever == "elasticsearch":
        if folder is not None or bm25_method not in (None, "lucene"):
            raise UsageError("--retriever elasticsearch: keeps its index itself and scores as --bm25-method lucene")
        given = {"url": elasticsearch, "index": elasticsearch_index, "k1": k1, "b": b}
        load_elasticsearch(corpus, task, given, values or [], bool(skip_bad_lines), output)
        return
    if retriever not in (None, "bm25"):
        raise UsageError(f"--retriever {retriever}: has no index to build here; bm25 and elasticsearch have")
    if elasticsearch is not None or elasticsearch_index is not None or values:
        raise UsageError("--elasticsearch, --elasticsearch-index, --set: only with --retriever elasticsearch")
    given = {"method": bm25_method, "k1": k1, "b": b}
    known_values = {name: value for name, value in given.items() if value is not None}
    settings = o.checked(Bm25Settings, known_values, {"method": "--bm25-method"})
    progress = ConsoleProgress()
    known = get_task(task or DEFAULT_TASK)
    with build_index(known, corpus, folder, settings, bool(skip_bad_lines), progress.warn) as store:
        documents, sentences = len(store), len(store.parts)
        if output is Format.TABLE:
            parts = f" and their {sentences:,} sentences" if sentences else ""
            print(f"{documents:,} documents of {corpus}{parts} are indexed in {store.folder}")
        else:
            row = {"corpus": corpus, "documents": documents, "sentences": sentences or None, "folder": store.folder}
            print_rows(output, [row])


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
    elasticsearch: o.ElasticsearchOption = None,
    elasticsearch_index: o.ElasticsearchIndexOption = None,
    query: o.QueryOption = None,
    expand: o.ExpandOption = None,
    prompts_folder: o.PromptsOption = None,
    engine: o.EngineOption = None,
    base_url: o.BaseUrlOption = None,
    model: o.ModelOption = None,
    revision: o.RevisionOption = None,
    cache: o.CacheOption = None,
    cache_mode: o.CacheModeOption = None,
    retry_failures: o.RetryFailuresOption = None,
    concurrency: o.ConcurrencyOption = None,
    skip_bad_lines: o.SkipOption = None,
    tag: o.TagOption = None,
    dry_run: o.DryRunOption = False,
    overwrite: o.OverwriteOption = False,
    values: o.ValuesOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """First stage: write candidates.run.txt, the best documents of each topic; sentences.run.txt for pairs of them.

    Only `--query-expansion` asks the model.
    """
    settings = o.configure(context)
    if dry_run:
        show_cost(output, settings, None, ("retrieve",))
        return
    _answer("retrieve", settings, out, overwrite=overwrite)
    found = asked(settings, pipeline.run_retrieve(settings, out, ConsoleProgress(), overwrite=overwrite))
    file = RunDirectory(out).first_stage_file(found.task)
    made(output, f"candidates: {file}", file, {"failures": len(found.failures)})
    end(output, out, found.failures)


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
    prompts_folder: o.PromptsOption = None,
    prompt: o.PromptOption = None,
    objects_prompt: o.ObjectsPromptOption = None,
    sentence_prompt: o.SentencePromptOption = None,
    stance_depth: o.StanceDepthOption = None,
    judge_pairs: o.JudgePairsOption = None,
    both_orders: o.BothOrdersOption = None,
    cache: o.CacheOption = None,
    cache_mode: o.CacheModeOption = None,
    retry_failures: o.RetryFailuresOption = None,
    concurrency: o.ConcurrencyOption = None,
    request_timeout: o.TimeoutOption = None,
    retry_for: o.RetryOption = None,
    temperature: o.TemperatureOption = None,
    seed: o.SeedOption = None,
    max_tokens: o.MaxTokensOption = None,
    logprobs: o.LogprobsOption = None,
    dry_run: o.DryRunOption = False,
    overwrite: o.OverwriteOption = False,
    values: o.ValuesOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Second stage: the model judges the candidates of the run's folder. Exit code 3 when some could not be judged."""
    settings = o.configure(context)
    if dry_run:
        show_cost(output, settings, out, ("judge",))
        return
    _answer("judge", settings, out, overwrite=overwrite)
    outcome = asked(settings, pipeline.run_judge(settings, out, ConsoleProgress(), overwrite=overwrite))
    file = out / run_files.JUDGMENTS
    made(output, f"judgments: {file}", file, {"failures": len(outcome.failures)})
    end(output, out, outcome.failures)


def rank(
    context: typer.Context,
    out: o.OutOption,
    topics: o.TopicsOption = None,
    corpus: o.CorpusOption = None,
    task: o.TaskOption = None,
    config: o.ConfigOption = None,
    index: o.IndexOption = None,
    steps: o.StepsOption = None,
    objective: o.ObjectiveOption = None,
    weight_relevance: o.RelevanceOption = None,
    weight_quality: o.QualityOption = None,
    weight_coherence: o.CoherenceOption = None,
    weight_first_stage: o.FirstStageOption = None,
    thresholds: o.ThresholdsOption = None,
    engine: o.EngineOption = None,
    base_url: o.BaseUrlOption = None,
    model: o.ModelOption = None,
    revision: o.RevisionOption = None,
    context_tokens: o.ContextOption = None,
    cache: o.CacheOption = None,
    cache_mode: o.CacheModeOption = None,
    retry_failures: o.RetryFailuresOption = None,
    concurrency: o.ConcurrencyOption = None,
    request_timeout: o.TimeoutOption = None,
    retry_for: o.RetryOption = None,
    tag: o.TagOption = None,
    dry_run: o.DryRunOption = False,
    values: o.ValuesOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Last stage: write run.txt from candidates and judgments. Exit code 3 when some are missing.

    Without a server, unless a step of `--rank` compares documents.
    """
    settings = o.configure(context)
    if dry_run:
        show_cost(output, settings, out, ("rank",))
        return
    _answer("rank", settings, out)
    ranking = asked(settings, pipeline.run_rank(settings, out, ConsoleProgress()))
    file = out / run_files.RUN
    counts = {"imputed": ranking.imputed, "failures": len(ranking.failures)}
    made(output, f"run: {file} ({len(ranking.lines):,} lines)", file, counts)
    end(output, out, ranking.failures)
    if ranking.imputed:
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
    retry_failures: o.RetryFailuresOption = None,
    index: o.IndexOption = None,
    candidates: o.CandidatesOption = None,
    retriever: o.RetrieverOption = None,
    bm25_method: o.MethodOption = None,
    k1: o.K1Option = None,
    b: o.BOption = None,
    elasticsearch: o.ElasticsearchOption = None,
    elasticsearch_index: o.ElasticsearchIndexOption = None,
    query: o.QueryOption = None,
    expand: o.ExpandOption = None,
    skip_bad_lines: o.SkipOption = None,
    prompts_folder: o.PromptsOption = None,
    prompt: o.PromptOption = None,
    objects_prompt: o.ObjectsPromptOption = None,
    sentence_prompt: o.SentencePromptOption = None,
    stance_depth: o.StanceDepthOption = None,
    judge_pairs: o.JudgePairsOption = None,
    both_orders: o.BothOrdersOption = None,
    steps: o.StepsOption = None,
    objective: o.ObjectiveOption = None,
    weight_relevance: o.RelevanceOption = None,
    weight_quality: o.QualityOption = None,
    weight_coherence: o.CoherenceOption = None,
    weight_first_stage: o.FirstStageOption = None,
    thresholds: o.ThresholdsOption = None,
    concurrency: o.ConcurrencyOption = None,
    request_timeout: o.TimeoutOption = None,
    retry_for: o.RetryOption = None,
    temperature: o.TemperatureOption = None,
    seed: o.SeedOption = None,
    max_tokens: o.MaxTokensOption = None,
    logprobs: o.LogprobsOption = None,
    dry_run: o.DryRunOption = False,
    overwrite: o.OverwriteOption = False,
    values: o.ValuesOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """The whole way: retrieve, judge, rank. A run that was stopped goes on where it stopped when called again.

    Exit codes: 0 all judged; 1 the data, the prompt or the engine is not as it should be; 2 wrong usage; 3 the run is
    written, but some questions had no usable answer (they are in failures.jsonl); 130 interrupted.
    """
    settings = o.configure(context)
    if dry_run:
        show_cost(output, settings, None, ("retrieve", "judge", "rank"))
        return
    run_stages = run_by_files if settings.engine.name == "batch" else pipeline.run_all
    outcome = asked(settings, run_stages(settings, out, ConsoleProgress(), overwrite=overwrite))
    file = out / run_files.RUN
    counts = {"judgments": outcome.judgments.requested, "failures": len(outcome.failures)}
    made(output, f"run: {file} ({outcome.judgments.requested:,} judgments)", file, counts)
    end(output, out, outcome.failures)


def _answer(stage: StageName, config: Config, out: Path, *, overwrite: bool = False) -> None:
    """With `--engine batch`, have batch files answer what a stage requests, before it reads the answers."""
    if config.engine.name == "batch":
        asked(config, answer_stage(stage, config, out, ConsoleProgress(), overwrite=overwrite))


def show_cost(output: Format, config: Config, folder: Path | None, stages: tuple[StageName, ...]) -> None:
    """Print what stages would send."""
    print_cost(output, config, asked(config, estimate_cost(config, folder, stages, ConsoleProgress())), stages)


def made(output: Format, sentence: str, file: Path, counts: Mapping[str, int]) -> None:
    """Say what a stage has written: in a sentence, or in a row with the file's lines and topics, and these counts."""
    if output is Format.TABLE:
        print(sentence)
        return
    if file.name == run_files.JUDGMENTS:
        lines: Mapping[str, int] = Counter(each.topic_id for each in read_records(file, Judgment, "judgments"))
    else:
        lines = {topic_id: len(ranking) for topic_id, ranking in read_run(file).rankings.items()}
    print_rows(output, [{"file": file, "lines": sum(lines.values()), "topics": len(lines), **counts}])


def asked(config: Config, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run what asks the model; Ctrl-C, SIGTERM and SIGHUP end it with exit code 130 and say where the answers are."""
    return until_interrupted(work, lambda: describe_resume(config.cache.file, config.cache.mode))


def until_interrupted(work: Coroutine[Any, Any, ResultT], note: Callable[[], str]) -> ResultT:
    """Run a coroutine; Ctrl-C, SIGTERM and SIGHUP end it with exit code 130 and print `note`."""

    def stop(*_: object) -> None:
        # What is left then is to close, which a second Ctrl-C should not break.
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    ending = [signal.SIGINT, signal.SIGTERM]
    # Under nohup the run survives its terminal.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ending.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in ending}
    try:
        return asyncio.run(_quietly(work))
    except KeyboardInterrupt:
        print(f"interrupted; {note()}", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _quietly(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The same work; of the tasks that Ctrl-C stops, none tells on its own that it was stopped."""

    def tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), KeyboardInterrupt):
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(tell)
    return await work


def end(output: Format, out: Path, failures: Sequence[Failure]) -> None:
    """Say what failed, and exit with code 3 where something did."""
    if failures:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in count_by_kind(failures).items())
        reasons = Counter(failure.attempts[-1].reason for failure in failures)
        say(output, f"failures: {kinds}; most often: {to_printable(reasons.most_common(1)[0][0])}")
        files = [out / name for name in run_files.ALL_FAILURES if (out / name).exists() and (out / name).stat().st_size]
        say(output, f"what came back each time is in {' and '.join(map(str, files))}")
        raise typer.Exit(FAILURES_EXIT)
