"""The commands that make a run: all stages, or one of them, in the run's folder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from touche_llm.api.corpora import DenseCorpus
from touche_llm.api.judge import Judgments, judge
from touche_llm.api.opening import open_client
from touche_llm.api.progress import Progress
from touche_llm.api.rank import Ranking, rank
from touche_llm.api.retrieve import list_empty, retrieve, warn_of_empty
from touche_llm.config.configuration import PURPOSES, Config
from touche_llm.config.files import CONFIG
from touche_llm.data.records import Failure
from touche_llm.engines.use import ModelRecord, PoolingUse
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.judging.grades import mean_off_label_mass
from touche_llm.judging.queries import QueryExpander
from touche_llm.llm.counts import Counts
from touche_llm.llm.label_statistics import LabelCounts
from touche_llm.llm.model import ModelClient
from touche_llm.ranking.steps import (
    RankingPlan,
    count_shown_documents,
    list_comparison_kinds,
    needs_texts,
)
from touche_llm.retrieval.candidates import Candidates, NoCandidates, normalise_rankings
from touche_llm.runs.context import RunContext, list_schemas
from touche_llm.runs.directory import LOCK, RunDirectory
from touche_llm.runs.inputs import hash_inputs
from touche_llm.runs.metadata import begin_stage, measure_peak_memory, measure_seconds, record_stage
from touche_llm.runs.record import (
    JudgeRecord,
    ModelUse,
    RankRecord,
    RequestCounts,
    RetrieveRecord,
    StageName,
)
from touche_llm.runs.resume import check_inputs, check_settings

CommandName = Literal["run"] | StageName


async def retrieve_stage(context: RunContext, directory: RunDirectory) -> Candidates:
    """Write the candidates of each topic, retrieved or read from a run file of another tool."""
    started = time.monotonic()
    before = count_requests(context.model)
    corpus = context.corpus
    opened = time.monotonic()
    inputs = hash_inputs(context.config)

    candidates = await retrieve_candidates(context)

    dense: PoolingUse | None = None
    if isinstance(corpus, DenseCorpus) and corpus.usage is not None:
        dense = corpus.usage
        context.known_models = replace(context.known_models, embedding_model=dense.model)
    llm: ModelUse | None = None
    if context.config.expansion.use:
        llm = _record_model_use(context, ("queries",), before, candidates.failures)

    directory.path.mkdir(parents=True, exist_ok=True)
    begin_stage(context, directory, "retrieve")
    directory.write_candidates(candidates, context.config)

    record = RetrieveRecord(
        chosen_topics=context.chosen_topics,
        llm=llm,
        seconds=measure_seconds(started),
        peak_memory_mib=measure_peak_memory(),
        inputs=inputs,
        corpus=corpus.description,
        seconds_to_open_corpus=round(opened - started, 3),
        topics=len(context.topics),
        depth=context.config.first_stage_depth,
        candidates=sum(map(len, candidates.list_rankings())),
        topics_without_candidates=list_empty(candidates),
        dense=dense,
    )
    record_stage(context, directory, record)
    return candidates


async def judge_stage(context: RunContext, directory: RunDirectory) -> Judgments:
    """Judge the candidates of the folder, or sentences and the pairs made of them.

    NoCandidates without a pair.
    """
    started = time.monotonic()
    before = count_requests(context.model)
    candidates = read_first_stage(context, directory)
    judgments = await _judge_candidates(context, candidates)

    begin_stage(context, directory, "judge")
    prompts = context.load_prompts(*PURPOSES["judge"])
    directory.write_judgments(judgments, context.config.tag, prompts)

    requested = judgments.list_requested()
    sentences = pairs = None
    if judgments.sentences is not None:
        sentences = len(judgments.sentences)
        pairs = sum(map(len, judgments.candidates.list_rankings()))
    record = JudgeRecord(
        chosen_topics=context.chosen_topics,
        llm=_record_model_use(context, PURPOSES["judge"], before, judgments.failures),
        seconds=measure_seconds(started),
        peak_memory_mib=measure_peak_memory(),
        judgments=len(requested),
        judgments_without_probabilities=sum(each.source == "value" for each in requested),
        mean_off_label_mass=mean_off_label_mass(requested),
        sentences=sentences,
        pairs=pairs,
    )
    record_stage(context, directory, record)
    _check_pairs(judgments, directory)
    return judgments


async def rank_stage(context: RunContext, directory: RunDirectory) -> Ranking:
    """Rank the candidates of the run's folder; write run, results and comparisons."""
    started = time.monotonic()
    before = count_requests(context.model)
    judgments = directory.read_judgments(context)
    config = context.config
    kinds = list_comparison_kinds(config.steps)

    needs_stances = config.stance is not None and config.stance.depth > 0
    if needs_stances and not directory.stances_file.exists():
        context.progress.warn(
            f"{directory.stances_file}: no such file; every stance is that of the judge prompt"
        )

    cross_encoder: PoolingUse | None = None
    async with context.using_reranker():
        ranking = await _rank_judgments(context, judgments)
        if context.reranker is not None:
            settings = config.ranking.cross_encoder
            cross_encoder = PoolingUse.from_client(context.reranker, settings)
    llm: ModelUse | None = None
    if kinds:
        llm = _record_model_use(context, kinds, before, ranking.failures)

    begin_stage(context, directory, "rank")
    directory.write_ranking(ranking, compared=bool(kinds))

    record = RankRecord(
        chosen_topics=context.chosen_topics,
        llm=llm,
        seconds=measure_seconds(started),
        peak_memory_mib=measure_peak_memory(),
        lines=len(ranking.lines),
        imputed_stances=ranking.imputed,
        cross_encoder=cross_encoder,
    )
    record_stage(context, directory, record)
    return ranking


async def compute_stage(
    stage: StageName,
    context: RunContext,
    directory: RunDirectory,
    earlier: Candidates | Judgments | None = None,
) -> Candidates | Judgments | Ranking:
    """Run a stage without writing anything.

    The output of the stage before is `earlier` or read from the folder.
    """
    match stage:
        case "retrieve":
            return await retrieve_candidates(context)
        case "judge":
            if isinstance(earlier, Candidates):
                candidates = earlier
            else:
                candidates = read_first_stage(context, directory)
            judgments = await _judge_candidates(context, candidates)
            _check_pairs(judgments, directory)
            return judgments
        case "rank":
            if isinstance(earlier, Judgments):
                judgments = earlier
            else:
                judgments = directory.read_judgments(context)
            async with context.using_reranker():
                return await _rank_judgments(context, judgments)


async def _judge_candidates(context: RunContext, candidates: Candidates) -> Judgments:
    return await judge(
        replace(candidates, corpus=context.corpus),
        context.load_prompts(*PURPOSES["judge"]),
        context.builder,
        context.progress,
        stance=context.config.stance,
        pairs=context.config.pairs,
    )


async def _rank_judgments(context: RunContext, judgments: Judgments) -> Ranking:
    config = context.config
    plan = RankingPlan(
        context.task, config.weights, config.steps, config.ranking, config.tag, config.objective
    )
    if needs_texts(config.steps):
        await replace(judgments.candidates, corpus=context.corpus).check()
        plan = replace(plan, documents=context.corpus.documents, reranker=context.reranker)
    kinds = list_comparison_kinds(config.steps)
    if kinds:
        plan = replace(plan, prompts=context.load_prompts(*kinds), builder=context.builder)

    ranking = await rank(judgments, plan, context.progress, stance=config.stance)
    return replace(ranking, chosen_topics=context.chosen_topics)


def read_first_stage(context: RunContext, directory: RunDirectory) -> Candidates:
    """Read the candidates to judge; raise UsageError if there are too few for the depth."""
    candidates = directory.read_first_stage(context)
    record = directory.read_metadata().stages.retrieve
    depth = context.config.first_stage_depth
    if record is not None and depth > record.depth:
        raise UsageError(
            f"{directory}: the first stage has a depth of {record.depth:,} documents per topic, and {depth:,} are to "
            f"be judged; give `depth: {record.depth}`, or repeat the first stage with `touche-llm retrieve --overwrite`"
        )
    return candidates


def _check_pairs(judgments: Judgments, directory: RunDirectory) -> None:
    """Raise NoCandidates if pairs were to be made and none was."""
    if judgments.sentences is not None and not any(judgments.candidates.list_rankings()):
        raise NoCandidates(
            f"{directory.sentences_file}: no topic has two sentences on one side, so there is no pair; read the "
            "judgments of the sentences there, or set pairs.no_side_above higher"
        )


def count_requests(model: ModelClient | None) -> Counts:
    """Return a copy of the model's counts so far."""
    return Counts() if model is None else replace(model.counts)


def count_by_kind(failures: Iterable[Failure]) -> dict[str, int]:
    """Count failures by kind."""
    return dict(Counter(failure.kind for failure in failures))


def describe_known_failures(count: int) -> str:
    """Describe requests that failed before and were not repeated."""
    return f"{count:,} had no usable answer before and were not sent again; `cache.retry_failures: true` sends them"


def report_known_failures(progress: Progress, model: ModelClient, before: Counts) -> None:
    """Warn of requests with only unusable answers in the cache, unless no engine is open."""
    count = model.counts.since(before).known_failures
    if count and model.engine is not None:
        progress.warn(f"questions: {describe_known_failures(count)}")


def _record_model_use(
    context: RunContext,
    purposes: Iterable[str],
    before: Counts,
    failures: Iterable[Failure],
) -> ModelUse:
    """Return the record of a stage's use of the model, and warn of known failures.

    Args:
        context: Context with an open model.
        purposes: Purposes of the prompts that the stage may use.
        before: Counts of the model before the stage.
        failures: Failures of the stage.
    """
    model = context.model
    assert model is not None
    report_known_failures(context.progress, model, before)
    prompts = context.load_prompts(*purposes)

    labels: dict[str, LabelCounts] = {}
    for purpose, prompt in prompts.items():
        label_counts = model.labels.summarize(prompt.name)
        if label_counts is not None:
            labels[purpose] = label_counts

    return ModelUse(
        model=ModelRecord.from_info(model.engine_info),
        prompts={purpose: prompt.label for purpose, prompt in prompts.items()},
        counts=RequestCounts.from_counts(model.counts.since(before)),
        failures=count_by_kind(failures),
        labels=labels,
    )


@dataclass(frozen=True, slots=True)
class RunResult:
    """Outputs of all stages of a run."""

    candidates: Candidates
    judgments: Judgments
    ranking: Ranking

    @property
    def failures(self) -> list[Failure]:
        """Failures of all stages."""
        return [*self.candidates.failures, *self.judgments.failures, *self.ranking.failures]


async def run_all(
    config: Config, folder: Path, progress: Progress, *, overwrite: bool = False
) -> RunResult:
    """Run all stages.

    Missing files, and errors of an engine that the cache does not know, are raised before the
    first.

    A folder with a run of other settings raises UsageError without `overwrite`.
    """
    async with (
        _open_run("run", config, folder, progress, overwrite) as (context, directory),
        context.using_reranker(),
    ):
        candidates = await retrieve_stage(context, directory)
        judgments = await judge_stage(context, directory)
        return RunResult(candidates, judgments, await rank_stage(context, directory))


async def run_retrieve(
    config: Config, folder: Path, progress: Progress, *, overwrite: bool = False
) -> Candidates:
    """Run the first stage, with a model if queries are expanded.

    Arguments and errors as `run_all`.
    """
    async with _open_run("retrieve", config, folder, progress, overwrite) as (context, directory):
        return await retrieve_stage(context, directory)


async def run_judge(
    config: Config, folder: Path, progress: Progress, *, overwrite: bool = False
) -> Judgments:
    """Run the second stage; arguments and errors as `run_retrieve`."""
    async with _open_run("judge", config, folder, progress, overwrite) as (context, directory):
        return await judge_stage(context, directory)


async def run_rank(config: Config, folder: Path, progress: Progress) -> Ranking:
    """Run the last stage, with a model if documents are compared.

    Arguments and errors as `run_retrieve`.
    """
    directory = RunDirectory(folder)
    if not list_comparison_kinds(config.steps) and directory.config_file.exists():
        # Ranking without comparisons uses no engine, so the metadata keeps the one of the
        # judgments.
        config = config.model_copy(update={"engine": directory.read_config().engine})
    async with _open_run("rank", config, folder, progress) as (context, directory):
        return await rank_stage(context, directory)


@asynccontextmanager
async def _open_run(
    command: CommandName, config: Config, folder: Path, progress: Progress, overwrite: bool = False
) -> AsyncIterator[tuple[RunContext, RunDirectory]]:
    """Lock the folder of a run, check its settings, and open the model if the command needs one."""
    directory = RunDirectory(folder)
    with ExitStack() as stack:
        if command in ("judge", "rank"):
            stack.enter_context(directory.lock(command, progress.warn))
        if command == "rank" and needs_texts(config.steps):
            check_inputs(directory, config)
        context = stack.enter_context(RunContext(config, progress))
        if command in ("run", "retrieve"):
            # Missing prompts and files are errors before the folder is made.
            if command == "run":
                context.load_prompts()
            context.check_sources()
            _make_folder(folder, progress)
            stack.enter_context(directory.lock(command, progress.warn))

        def check() -> None:
            if command != "rank":
                check_settings(directory, context, command, overwrite=overwrite)

        # Checked before the slow loading of the model, and again once its name and context are
        # known.
        check()
        if not _needs_model(command, config):
            yield context, directory
            return

        prompts = context.load_prompts(*_list_purposes(command, config))
        shown = count_shown_documents(config.steps, config.ranking)
        schemas = list_schemas(prompts.values(), shown)
        opening = open_client(
            config.engine,
            config.sampling,
            config.cache,
            schemas=schemas,
            progress=progress,
        )
        async with opening as model:
            with context.using(model):
                check()
                yield context, directory


def _make_folder(folder: Path, progress: Progress) -> None:
    """Make the folder of a run; warn if it has files, but none of a run."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names and names.isdisjoint((CONFIG, LOCK)):
        progress.warn(f"{folder}: has files of no run; those of the run are written beside them")
    folder.mkdir(parents=True, exist_ok=True)


def _needs_model(command: CommandName, config: Config) -> bool:
    """Return whether a command sends requests to the language model."""
    match command:
        case "retrieve":
            return config.expansion.use
        case "rank":
            return bool(list_comparison_kinds(config.steps))
        case "run" | "judge":
            return True


def _list_purposes(command: CommandName, config: Config) -> Sequence[str]:
    """Return the purposes of the prompts that a command may use; none for all of the run."""
    match command:
        case "run":
            return ()
        case "rank":
            return list_comparison_kinds(config.steps)
        case "retrieve" | "judge":
            return PURPOSES[command]


async def retrieve_candidates(context: RunContext) -> Candidates:
    """Retrieve the candidates of a run, or read them from the run file of another tool.

    See `retrieve`.
    """
    config = context.config
    if config.candidates is not None:
        return await _read_given_candidates(context, config.candidates)

    expander = None
    if config.expansion.use:
        prompt = context.load_prompts("queries")["queries"]
        expander = QueryExpander(config.expansion, prompt, context.builder)
    return await retrieve(
        context.topics,
        context.corpus,
        context.progress,
        depth=config.depth,
        fields=config.retriever.query,
        expander=expander,
    )


async def _read_given_candidates(context: RunContext, file: Path) -> Candidates:
    """Read the candidates from the run file of another tool.

    Raises:
        DataError: No chosen topic has a candidate, or the corpus lacks one.
    """
    # More sentences than `depth` may be judged if they give too few pairs.
    found = context.read_candidates(file, context.config.first_stage_depth)
    if not any(found.rankings.values()):
        ids = [topic.id for topic in context.topics]
        raise DataError(f"{file}: no candidates for any chosen topic: {shorten(ids)}")

    rankings = normalise_rankings(found.rankings.values())
    candidates = replace(found, corpus=context.corpus, rankings=rankings)
    await candidates.check()
    warn_of_empty(candidates, context.progress)
    return candidates
