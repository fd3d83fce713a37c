"""The commands that make a run: all stages, or one of them, in the run's folder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from touche_llm.api.corpora import DenseCorpus
from touche_llm.api.judge import judge
from touche_llm.api.opening import open_client
from touche_llm.api.progress import Progress
from touche_llm.api.rank import Ranking, rank
from touche_llm.api.retrieve import list_empty, retrieve, warn_of_empty
from touche_llm.config.configuration import PURPOSES, Config
from touche_llm.config.files import CONFIG
from touche_llm.data.locks import LOCK
from touche_llm.data.records import Failure
from touche_llm.engines.use import ModelRecord, PoolingUse
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.judging.grades import mean_off_label_mass
from touche_llm.judging.queries import QueryExpander
from touche_llm.judging.result import Judgments
from touche_llm.kinds.known import get_kind
from touche_llm.llm.counts import Counts
from touche_llm.llm.label_statistics import LabelCounts
from touche_llm.llm.model import ModelClient
from touche_llm.ranking.steps import count_shown_documents, list_comparison_kinds, needs_texts
from touche_llm.ranking.topics import RankingPlan
from touche_llm.retrieval.candidates import Candidates, NoCandidates, normalise_rankings
from touche_llm.retrieval.corpus import Corpus
from touche_llm.runs.context import RunContext, list_schemas
from touche_llm.runs.directory import RunDirectory
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


@dataclass(frozen=True, slots=True)
class _StageStart:
    """Start of a stage, from which its record measures what the stage took.

    Attributes:
        seconds: Time of `time.monotonic`.
        counts: Counts of the language model; none if no model is open.
    """

    seconds: float
    counts: Counts

    @classmethod
    def now(cls, context: RunContext) -> _StageStart:
        """Return the start of a stage that begins now."""
        return cls(time.monotonic(), count_requests(context.model))


async def retrieve_stage(context: RunContext, directory: RunDirectory) -> Candidates:
    """Write the candidates of each topic, retrieved or read from a run file of another tool.

    Measurements and hashes of the inputs are recorded beside the candidates.

    Raises:
        DataError: A file is missing or invalid, or the corpus lacks a candidate of a given run.
        EngineError: An engine failed.
        NoCandidates: Nothing was found for any topic.
    """
    start = _StageStart.now(context)
    # The first use of the property opens the corpus, and indexes it unless that was done before.
    corpus = context.corpus
    seconds_to_open_corpus = round(time.monotonic() - start.seconds, 3)

    # Hashed before the search, during which a file could change.
    inputs = hash_inputs(context.config)
    candidates = await retrieve_candidates(context)

    # Known only after the search: what the server of an embedding model reports about the model.
    dense = _find_embedding_use(corpus)
    if dense is not None:
        context.note_embedding_model(dense.model)
    llm: ModelUse | None = None
    if context.config.expansion.use:
        llm = _record_model_use(context, ("queries",), start.counts, candidates.failures)

    directory.path.mkdir(parents=True, exist_ok=True)
    begin_stage(context, directory, "retrieve")
    directory.write_candidates(candidates, context.config)

    record = RetrieveRecord(
        chosen_topics=context.chosen_topics,
        llm=llm,
        seconds=measure_seconds(start.seconds),
        peak_memory_mib=measure_peak_memory(),
        inputs=inputs,
        corpus=corpus.description,
        seconds_to_open_corpus=seconds_to_open_corpus,
        topics=len(context.topics),
        depth=context.config.first_stage_depth,
        candidates=_count_candidates(candidates),
        topics_without_candidates=list_empty(candidates),
        dense=dense,
    )
    record_stage(context, directory, record)
    return candidates


def _find_embedding_use(corpus: Corpus) -> PoolingUse | None:
    """Return the use of an embedding model by a search of a corpus; None if there was none."""
    return corpus.usage if isinstance(corpus, DenseCorpus) else None


def _count_candidates(candidates: Candidates) -> int:
    """Return the number of candidates of all topics."""
    return sum(len(ranking) for ranking in candidates.list_rankings())


async def judge_stage(context: RunContext, directory: RunDirectory) -> Judgments:
    """Judge the candidates of the folder, or the documents that are made of them.

    Raises:
        DataError: A file is missing or invalid.
        EngineError: The engine failed, or the labels of no answer can be read.
        NoCandidates: Documents were to be made, and no topic has one.
        UsageError: The folder has fewer candidates per topic than are to be judged.
    """
    start = _StageStart.now(context)
    candidates = read_first_stage(context, directory)
    judgments = await _judge_candidates(context, candidates)

    begin_stage(context, directory, "judge")
    prompts = context.load_prompts(*PURPOSES["judge"])
    directory.write_judgments(judgments, context.config.tag, prompts)

    record_stage(context, directory, _make_judge_record(context, start, judgments))
    # Checked last: the judgments of the sentences show why no document was made.
    _check_made(judgments, directory)
    return judgments


def _make_judge_record(
    context: RunContext, start: _StageStart, judgments: Judgments
) -> JudgeRecord:
    """Return the record of the second stage, and warn of known failures."""
    requested = judgments.list_requested()
    without_probabilities = [judgment for judgment in requested if judgment.source == "value"]

    sentences: int | None = None
    pairs: int | None = None
    if judgments.sentences is not None:
        sentences = len(judgments.sentences)
        pairs = _count_candidates(judgments.candidates)

    return JudgeRecord(
        chosen_topics=context.chosen_topics,
        llm=_record_model_use(context, PURPOSES["judge"], start.counts, judgments.failures),
        seconds=measure_seconds(start.seconds),
        peak_memory_mib=measure_peak_memory(),
        judgments=len(requested),
        judgments_without_probabilities=len(without_probabilities),
        mean_off_label_mass=mean_off_label_mass(requested),
        sentences=sentences,
        pairs=pairs,
    )


async def rank_stage(context: RunContext, directory: RunDirectory) -> Ranking:
    """Rank the candidates of the run's folder; write run, results and comparisons.

    Raises:
        DataError: A file is missing or invalid.
        EngineError: An engine failed.
    """
    start = _StageStart.now(context)
    judgments = directory.read_judgments(context)
    _warn_of_missing_stances(context, directory)

    cross_encoder: PoolingUse | None = None
    async with context.using_reranker():
        ranking = await _rank_judgments(context, judgments)
        if context.reranker is not None:
            settings = context.config.ranking.cross_encoder
            cross_encoder = PoolingUse.from_client(context.reranker, settings)

    kinds = list_comparison_kinds(context.config.steps)
    llm: ModelUse | None = None
    if kinds:
        llm = _record_model_use(context, kinds, start.counts, ranking.failures)

    begin_stage(context, directory, "rank")
    directory.write_ranking(ranking, compared=bool(kinds))

    record = RankRecord(
        chosen_topics=context.chosen_topics,
        llm=llm,
        seconds=measure_seconds(start.seconds),
        peak_memory_mib=measure_peak_memory(),
        lines=len(ranking.lines),
        imputed_stances=ranking.imputed,
        cross_encoder=cross_encoder,
    )
    record_stage(context, directory, record)
    return ranking


def _warn_of_missing_stances(context: RunContext, directory: RunDirectory) -> None:
    """Warn if the stance prompt is to decide, and the folder has no answers to it."""
    stance = context.config.stance
    needs_stances = stance is not None and stance.depth > 0
    if needs_stances and not directory.stances_file.exists():
        context.progress.warn(
            f"{directory.stances_file}: no such file; every stance is that of the judge prompt"
        )


async def compute_stage(
    stage: StageName,
    context: RunContext,
    directory: RunDirectory,
    earlier: Candidates | Judgments | None = None,
) -> Candidates | Judgments | Ranking:
    """Run a stage without writing anything.

    Args:
        stage: Stage to run.
        context: Context with the models that the stage needs.
        directory: Folder of the run.
        earlier: Output of the stage before, candidates or judgments; None to read it from the folder.

    Raises:
        DataError: A file is missing or invalid, or the corpus lacks a candidate of a given run.
        EngineError: An engine failed, or the labels of no answer can be read.
        NoCandidates: Nothing was found for any topic, or no pair could be made.
        UsageError: The folder has fewer candidates per topic than are to be judged.
    """
    match stage:
        case "retrieve":
            return await retrieve_candidates(context)
        case "judge":
            candidates = earlier if isinstance(earlier, Candidates) else None
            return await _compute_judgments(context, directory, candidates)
        case "rank":
            judgments = earlier if isinstance(earlier, Judgments) else None
            return await _compute_ranking(context, directory, judgments)


async def _compute_judgments(
    context: RunContext, directory: RunDirectory, candidates: Candidates | None
) -> Judgments:
    """Judge candidates, those of the folder if None, without writing anything."""
    if candidates is None:
        candidates = read_first_stage(context, directory)
    judgments = await _judge_candidates(context, candidates)
    _check_made(judgments, directory)
    return judgments


async def _compute_ranking(
    context: RunContext, directory: RunDirectory, judgments: Judgments | None
) -> Ranking:
    """Rank judged candidates, those of the folder if None, without writing anything."""
    if judgments is None:
        judgments = directory.read_judgments(context)
    async with context.using_reranker():
        return await _rank_judgments(context, judgments)


async def _judge_candidates(context: RunContext, candidates: Candidates) -> Judgments:
    """Judge candidates with the prompts and settings of the run."""
    return await judge(
        replace(candidates, corpus=context.corpus),
        context.load_prompts(*PURPOSES["judge"]),
        context.requester,
        context.progress,
        stance=context.config.stance,
        judging_settings=context.config.judging_settings,
    )


async def _rank_judgments(context: RunContext, judgments: Judgments) -> Ranking:
    """Rank judgments with the steps and settings of the run.

    Args:
        context: Context with the models that the steps need.
        judgments: Judgments with their candidates.
    """
    config = context.config
    plan = RankingPlan(
        task=context.task,
        weights=config.weights,
        steps=config.steps,
        settings=config.ranking,
        tag=config.tag,
        objective=config.objective,
    )
    # The corpus and the model are opened only if a step needs them.
    if needs_texts(config.steps):
        candidates = replace(judgments.candidates, corpus=context.corpus)
        await candidates.check()
        plan = replace(plan, documents=context.corpus.documents, reranker=context.reranker)
    kinds = list_comparison_kinds(config.steps)
    if kinds:
        plan = replace(plan, prompts=context.load_prompts(*kinds), requester=context.requester)

    ranking = await rank(judgments, plan, context.progress, stance=config.stance)
    return replace(ranking, chosen_topics=context.chosen_topics)


def read_first_stage(context: RunContext, directory: RunDirectory) -> Candidates:
    """Read the candidates to judge.

    Raises:
        DataError: The file is missing or invalid.
        UsageError: The first stage was shallower than the depth that is to be judged.
    """
    candidates = directory.read_first_stage(context)
    record = directory.read_metadata().stages.retrieve
    depth = context.config.first_stage_depth
    if record is not None and depth > record.depth:
        raise UsageError(
            f"{directory}: the first stage has a depth of {record.depth:,} documents per topic, and {depth:,} are to "
            f"be judged; give `depth: {record.depth}`, or repeat the first stage with `touche-llm retrieve --overwrite`"
        )
    return candidates


def _check_made(judgments: Judgments, directory: RunDirectory) -> None:
    """Raise NoCandidates if documents were to be made of sentences, and none was."""
    kind = get_kind(judgments.candidates.task)
    if kind.makes_documents and _count_candidates(judgments.candidates) == 0:
        raise NoCandidates(f"{directory.sentences_file}: {kind.nothing_made}")


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
    model = context.requester.client
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

    Errors of files, and those of an engine that the cache does not know, come before the first
    stage.

    Args:
        config: Configuration of the run.
        folder: Folder of the run; made if it is missing.
        progress: Shows the progress and warnings.
        overwrite: Whether to replace outputs that were made with other settings.

    Raises:
        DataError: A file is missing or invalid.
        EngineError: An engine failed, or the labels of no answer can be read.
        NoCandidates: Nothing was found for any topic, or no pair could be made.
        PromptError: A prompt is invalid.
        UsageError: The folder has a run of other settings.
    """
    async with (
        _open_run("run", config, folder, progress, overwrite=overwrite) as run,
        run.context.using_reranker(),
    ):
        candidates = await retrieve_stage(run.context, run.directory)
        judgments = await judge_stage(run.context, run.directory)
        ranking = await rank_stage(run.context, run.directory)
        return RunResult(candidates, judgments, ranking)


async def run_retrieve(
    config: Config, folder: Path, progress: Progress, *, overwrite: bool = False
) -> Candidates:
    """Run the first stage, with a model if queries are expanded.

    Args:
        config: Configuration of the run.
        folder: Folder of the run; made if it is missing.
        progress: Shows the progress and warnings.
        overwrite: Whether to replace outputs that were made with other settings.

    Raises:
        DataError: A file is missing or invalid.
        EngineError: An engine failed.
        NoCandidates: Nothing was found for any topic.
        PromptError: The prompt that expands queries is invalid.
        UsageError: The folder has a run of other settings.
    """
    async with _open_run("retrieve", config, folder, progress, overwrite=overwrite) as run:
        return await retrieve_stage(run.context, run.directory)


async def run_judge(
    config: Config, folder: Path, progress: Progress, *, overwrite: bool = False
) -> Judgments:
    """Run the second stage on the candidates of the folder.

    Args:
        config: Configuration of the run.
        folder: Folder of the run.
        progress: Shows the progress and warnings.
        overwrite: Whether to replace outputs that were made with other settings.

    Raises:
        DataError: A file is missing or invalid.
        EngineError: The engine failed, or the labels of no answer can be read.
        NoCandidates: Pairs were to be made, and no topic has one.
        PromptError: A prompt is invalid.
        UsageError: The folder has judgments of other settings, or too few candidates.
    """
    async with _open_run("judge", config, folder, progress, overwrite=overwrite) as run:
        return await judge_stage(run.context, run.directory)


async def run_rank(config: Config, folder: Path, progress: Progress) -> Ranking:
    """Run the last stage on the judgments of the folder, with a model if documents are compared.

    Args:
        config: Configuration of the run.
        folder: Folder of the run.
        progress: Shows the progress and warnings.

    Raises:
        DataError: A file is missing or invalid.
        EngineError: An engine failed.
        PromptError: A prompt that compares documents is invalid.
        UsageError: The inputs changed since the run, and a step needs the texts of documents.
    """
    directory = RunDirectory(folder)
    uses_engine = len(list_comparison_kinds(config.steps)) > 0
    if not uses_engine and directory.config_file.exists():
        # The stage writes its configuration to the folder. If it uses no engine, that configuration
        # keeps the engine that judged.
        judging_engine = directory.read_config().engine
        config = config.model_copy(update={"engine": judging_engine})

    async with _open_run("rank", config, folder, progress) as run:
        return await rank_stage(run.context, run.directory)


@dataclass(frozen=True, slots=True)
class _OpenRun:
    """Context and locked folder of a run."""

    context: RunContext
    directory: RunDirectory


@asynccontextmanager
async def _open_run(
    command: CommandName,
    config: Config,
    folder: Path,
    progress: Progress,
    *,
    overwrite: bool = False,
) -> AsyncIterator[_OpenRun]:
    """Lock the folder of a run, check its settings, and open the model if the command needs one.

    Args:
        command: Command that runs.
        config: Configuration of the run.
        folder: Folder of the run.
        progress: Shows the progress and warnings.
        overwrite: Whether the command may replace outputs that were made with other settings.

    Yields:
        The run; when the block ends, the model is closed and the folder unlocked.
    """
    directory = RunDirectory(folder)
    async with AsyncExitStack() as stack:
        begins_run = command in ("run", "retrieve")
        prepare = _begin_run if begins_run else _continue_run
        context = prepare(
            command=command,
            config=config,
            directory=directory,
            progress=progress,
            stack=stack,
        )
        run = _OpenRun(context, directory)
        # A wrong setting is reported before the model is loaded, which can take minutes.
        _check_run(run, command, overwrite=overwrite)

        if _needs_model(command, config):
            model = await stack.enter_async_context(_open_model(command, context))
            stack.enter_context(context.using(model))
            # The model's name and context are known only now, so the settings are checked again.
            _check_run(run, command, overwrite=overwrite)
        yield run


def _begin_run(
    *,
    command: CommandName,
    config: Config,
    directory: RunDirectory,
    progress: Progress,
    stack: AsyncExitStack,
) -> RunContext:
    """Make and lock the folder of a new run, and return its context, which the stack closes.

    Errors of prompts and files come before the folder is made.
    """
    context = stack.enter_context(RunContext(config, progress))
    if command == "run":
        context.load_prompts()
    context.check_sources()

    _make_folder(directory.path, progress)
    stack.enter_context(directory.lock(command, progress.warn))
    return context


def _continue_run(
    *,
    command: CommandName,
    config: Config,
    directory: RunDirectory,
    progress: Progress,
    stack: AsyncExitStack,
) -> RunContext:
    """Lock the folder of a run for a later stage, and return its context; the stack closes both."""
    stack.enter_context(directory.lock(command, progress.warn))
    if command == "rank" and needs_texts(config.steps):
        check_inputs(directory, config)
    return stack.enter_context(RunContext(config, progress))


def _check_run(run: _OpenRun, command: CommandName, *, overwrite: bool) -> None:
    """Raise an error if a command would replace outputs that were made with other settings.

    Ranking replaces no answers of a model, so it may have other settings.
    """
    if command != "rank":
        check_settings(run.directory, run.context, command, overwrite=overwrite)


def _open_model(
    command: CommandName, context: RunContext
) -> AbstractAsyncContextManager[ModelClient]:
    """Return the client of the model that a command needs, to be opened."""
    config = context.config
    prompts = context.load_prompts(*_list_purposes(command, config))
    shown_documents = count_shown_documents(config.steps, config.ranking)
    return open_client(
        config.engine,
        config.sampling,
        config.cache,
        schemas=list_schemas(prompts.values(), shown_documents),
        progress=context.progress,
    )


def _make_folder(folder: Path, progress: Progress) -> None:
    """Make the folder of a run; warn if it has files, but none of a run."""
    names: set[str] = set()
    if folder.is_dir():
        names.update(path.name for path in folder.iterdir())
    has_run = CONFIG in names or LOCK in names
    if names and not has_run:
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

    Raises:
        DataError: A file is missing or invalid, or the corpus lacks a candidate of a given run.
        EngineError: The engine that expands queries failed.
        NoCandidates: Nothing was found for any topic.
    """
    config = context.config
    if config.candidates is not None:
        return await _read_given_candidates(context, config.candidates)

    expander = None
    if config.expansion.use:
        prompt = context.load_prompts("queries")["queries"]
        expander = QueryExpander(config.expansion, prompt, context.requester)
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
    # This is `depth`, or more for sentences: if these give too few pairs, more of them are judged.
    depth = context.config.first_stage_depth
    given = context.read_candidates(file, depth)
    if not any(given.rankings.values()):
        ids = [topic.id for topic in context.topics]
        raise DataError(f"{file}: no candidates for any chosen topic: {shorten(ids)}")

    rankings = normalise_rankings(given.rankings.values())
    candidates = replace(given, corpus=context.corpus, rankings=rankings)
    await candidates.check()
    warn_of_empty(candidates, context.progress)
    return candidates
