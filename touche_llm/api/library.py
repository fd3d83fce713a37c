"""The library: the stages as functions for notebooks and scripts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, cast, get_args

from pydantic import Field

from touche_llm.api import judge as judging
from touche_llm.api import rank as ranking
from touche_llm.api import retrieve as retrieval
from touche_llm.api.corpora import DenseCorpus, open_local_corpus
from touche_llm.api.dataset import Dataset
from touche_llm.api.language_model import LanguageModel
from touche_llm.api.opening import open_pooling
from touche_llm.api.progress import ForwardedProgress, Progress, default_progress
from touche_llm.api.rank import Ranking
from touche_llm.api.retrieve import add_objects
from touche_llm.data import concurrency
from touche_llm.data.records import Topic
from touche_llm.errors import ToucheWarning, UsageError, Warn
from touche_llm.judging.grades import check_judgments
from touche_llm.judging.queries import QueryExpander
from touche_llm.judging.result import Judgments
from touche_llm.judging.stance_labels import StanceSettings
from touche_llm.kinds.known import get_kind
from touche_llm.llm.settings import CacheConfig
from touche_llm.prompts.fields import JudgePer
from touche_llm.prompts.leakage import check_examples
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import list_judging_purposes, load, purposes_of
from touche_llm.ranking.steps import (
    RankingSettings,
    Step,
    check_sides,
    list_comparison_kinds,
    needs_scores,
    needs_texts,
    parse_steps,
)
from touche_llm.ranking.topics import RankingPlan
from touche_llm.retrieval.candidates import Candidates
from touche_llm.retrieval.corpus import Corpus
from touche_llm.retrieval.dense import DenseSettings
from touche_llm.retrieval.first_stages import RETRIEVERS, RetrieverConfig
from touche_llm.retrieval.registry import EngineInputs
from touche_llm.retrieval.settings import ExpansionSettings, QueryField
from touche_llm.settings.section import Section, read_settings
from touche_llm.tasks import get_task
from touche_llm.tasks.parts import Objective
from touche_llm.tasks.task import Task

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class RankOptions(Section):
    """Options of a ranking; the cache is that of the cross-encoder's scores.

    Attributes:
        objective: Criterion of the comparisons and of the default weights.
        weights: Weights of grades and first-stage score that differ from those of the objective.
    """

    objective: Objective = "both"
    weights: Mapping[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] = {}
    settings: RankingSettings = RankingSettings()
    stance: StanceSettings = StanceSettings()
    cache: CacheConfig = CacheConfig()


class DenseOptions(Section):
    """Options of dense retrieval: embedding model and fusion, and the cache of the queries' vectors."""

    settings: DenseSettings = DenseSettings()
    cache: CacheConfig = CacheConfig()


def open_corpus(
    file: Path | str | Dataset | None = None,
    *,
    task: str | None = None,
    index: Path | str | None = None,
    skip_bad_lines: bool = False,
    retriever: RetrieverConfig | None = None,
    retriever_settings: Section | None = None,
    search_engine: Section | None = None,
    dense: DenseOptions | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Open a corpus; a file is stored and indexed first unless that was done before.

    Args:
        file: Corpus as published, or a dataset; None to open an index without its corpus, or a
            search engine.
        task: Name of the task; None for that of the dataset.
        index: Folder of the store and its index; None for the default folder of the corpus.
        skip_bad_lines: Whether to leave out lines that are not documents, with a warning.
        retriever: Method and parameters of BM25; None for the defaults.
        retriever_settings: Settings that a retriever of another package declares; None for its
            defaults.
        search_engine: Settings of the search engine that holds the documents instead, as
            `ChatNoirSettings` or `ElasticsearchSettings`.
        dense: Embedding model for the retrievers `dense` and `hybrid`, which embed the documents at
            the first search.
        progress: Receives what is stored, indexed or left out; None for that of a program.

    Raises:
        DataError: The corpus cannot be read, or belongs to another task.
        UsageError: None of corpus, index and search engine is given, or more than one kind of them.
    """
    known_task = _find_task(file, task)
    chosen = read_settings(RetrieverConfig, retriever, "retriever")
    display = progress or default_progress()

    has_local_documents = file is not None or index is not None
    if search_engine is not None and has_local_documents:
        raise UsageError("search_engine: it holds the documents itself; leave out file and index")
    if search_engine is not None:
        return _open_search_engine(search_engine, known_task, chosen, display.warn)

    _check_dense(dense, chosen)
    corpus = open_local_corpus(
        corpus=_locate_corpus(file),
        index=None if index is None else Path(index),
        task=known_task,
        skip_bad_lines=skip_bad_lines,
        retriever=chosen,
        warn=display.warn,
        retriever_settings=_complete_settings(chosen, retriever_settings),
    )
    if dense is None:
        return corpus

    options = read_settings(DenseOptions, dense, "dense")
    return DenseCorpus(corpus, options.settings, options.cache, display)


def _check_dense(dense: DenseOptions | None, retriever: RetrieverConfig) -> None:
    """Raise UsageError unless the options of dense retrieval are given if, and only if, needed."""
    is_needed = retriever.kind.needs_embeddings
    is_missing = is_needed and dense is None
    is_superfluous = not is_needed and dense is not None
    if is_missing or is_superfluous:
        raise UsageError("dense: only for the retrievers dense and hybrid, which need it")


def _find_task(file: Path | str | Dataset | None, name: str | None) -> Task:
    """Return the task of a corpus: the named one, or that of a dataset.

    Raises:
        UsageError: None is named, and the corpus is no dataset; or there is no such task.
        DataError: The task is a folder with an invalid definition.
    """
    if name is not None:
        return get_task(name)
    if isinstance(file, Dataset):
        return file.task
    raise UsageError("task: missing; name the task of the corpus, see `touche-llm tasks list`")


def _locate_corpus(file: Path | str | Dataset | None) -> Path | str | None:
    """Return the path of a corpus file, or the id of a dataset; None for no corpus."""
    if file is None:
        return None
    if isinstance(file, Dataset):
        return file.id
    return Path(file)


def _open_search_engine(
    settings: Section, task: Task, retriever: RetrieverConfig, warn: Warn
) -> Corpus:
    """Open the search engine to which settings belong, which their type shows.

    Args:
        settings: Settings of the search engine, as `ChatNoirSettings`.
        task: Task of the corpus.
        retriever: Settings of BM25.
        warn: Receives notices.

    Raises:
        UsageError: The settings belong to no search engine.
    """
    inputs = EngineInputs(task=task, bm25=retriever.bm25, settings=settings, warn=warn)
    for kind in RETRIEVERS.values():
        if kind.open_engine is None or kind.section is None:
            continue
        if kind.section.settings is type(settings):
            return kind.open_engine(inputs)

    raise UsageError(
        f"search_engine: {type(settings).__name__} are no settings of a search engine; give "
        "ChatNoirSettings or ElasticsearchSettings"
    )


def _complete_settings(retriever: RetrieverConfig, settings: Section | None) -> Section | None:
    """Return the settings that a retriever declares: the given ones, or its defaults.

    Raises:
        UsageError: The settings are of another type.
    """
    section = retriever.kind.section
    if section is not None:
        return read_settings(section.settings, settings, "retriever_settings")
    if settings is not None:
        raise UsageError(
            f"retriever_settings: the retriever {retriever.name} has no settings of its own"
        )
    return None


def _publish(function: Callable[P, Coroutine[Any, Any, ResultT]]) -> Callable[P, ResultT]:
    """Make a plain function of a stage, which is a coroutine function, for users of the library.

    The function runs the stage to its end and shows its progress. Warnings of the stage become
    warnings of Python.

    Args:
        function: Stage with the keyword `progress`.
    """

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> ResultT:
        display = cast(Progress | None, options.get("progress"))
        progress = ForwardedProgress(display or default_progress())
        options["progress"] = progress
        try:
            return concurrency.run(function(*arguments, **options))
        finally:
            # Also if the stage failed. With this level, a warning names the line of the caller.
            for message in progress.messages:
                warnings.warn(message, ToucheWarning, stacklevel=2)

    return call


@_publish
async def retrieve(
    topics: list[Topic],
    corpus: Corpus,
    *,
    depth: int = 100,
    fields: QueryField | Sequence[QueryField] = ("title",),
    expand_with: LanguageModel | None = None,
    prompt: str | None = None,
    progress: Progress | None = None,
) -> Candidates:
    """Retrieve the candidates of each topic.

    Args:
        topics: Topics to search for.
        corpus: Corpus to search.
        depth: Maximum number of documents per topic; of sentences that documents are made of, the
            number judged at a time.
        fields: Fields of a topic that make the query: title, description, narrative, objects.
        expand_with: Model that expands the queries; None to search with the topics' own queries
            only.
        prompt: Prompt of the expansion: a name or the path of a `.jinja` file.
        progress: Display of the progress; None for a bar in a terminal, else a line every ten
            seconds.

    Raises:
        DataError: No topic has a candidate.
        PromptError: The prompt is missing or invalid.
    """
    assert progress is not None, "the decorator gives one"
    _check_topics(topics)
    if type(depth) is not int or depth < 1:
        raise UsageError(f"depth: {depth!r:.40}: must be a whole number of 1 or more")
    if prompt is not None and expand_with is None:
        raise UsageError("prompt: only for the expansion of queries; give the model in expand_with")
    query = read_settings(RetrieverConfig, {"query": fields}, "fields").query
    corpus.require_open()

    expander: QueryExpander | None = None
    if expand_with is not None:
        loader = _PromptLoader(corpus.task, topics, progress)
        expander = _make_expander(expand_with, prompt, loader)
    return await retrieval.retrieve(
        topics,
        corpus,
        progress,
        depth=depth,
        fields=query,
        expander=expander,
    )


def _check_topics(topics: object) -> None:
    """Raise UsageError unless these are one or more topics."""
    if (
        isinstance(topics, Sequence)
        and topics
        and all(isinstance(topic, Topic) for topic in topics)
    ):
        return
    raise UsageError("topics: must be a list of one or more Topic, as read_topics returns")


@_publish
async def judge(
    candidates: Candidates,
    model: LanguageModel,
    *,
    prompt: str | None = None,
    prompts: Mapping[str, str] | None = None,
    stance: StanceSettings | None = None,
    judging_settings: Section | None = None,
    judge_per: JudgePer = "document",
    progress: Progress | None = None,
) -> Judgments:
    """Judge candidates, or the documents that the kind of their task makes of them.

    Args:
        candidates: Candidates of `retrieve`, of a frame or of a run file.
        model: Open model.
        prompt: Judge prompt: a name or the path of a `.jinja` file; None for the task's own.
        prompts: Prompts of other purposes: objects, sentence, stance.
        stance: Settings of the stance prompt; None for the defaults.
        judging_settings: Settings that the kind of the task declares, as `PairSettings` for pairs
            of sentences; None for the defaults.
        judge_per: `field` for one request for each field of the answer instead of one for each
            document.
        progress: Display of the progress; None for a bar in a terminal, else a line every ten
            seconds.

    Raises:
        PromptError: A prompt is missing or invalid.
        UsageError: A few-shot example is about one of the topics.
        EngineError: The engine failed; answers so far are in the cache.
        ReplayMiss: The cache of a replay lacks an answer.
    """
    assert progress is not None, "the decorator gives one"
    task = candidates.task
    checked_stance = read_settings(StanceSettings, stance, "stance")
    checked_judging_settings = get_kind(task).read_judging_settings(judging_settings)
    if judge_per not in get_args(JudgePer):
        raise UsageError(f"judge_per: {judge_per!r:.40}: must be {' or '.join(get_args(JudgePer))}")

    chosen_prompts = dict(prompts or {})
    if prompt is not None:
        chosen_prompts["judge"] = prompt
    needed = list_judging_purposes(task, candidates.topics, checked_stance.depth)
    loader = _PromptLoader(task, candidates.topics, progress, judge_per)
    loaded_prompts = loader.load(
        needed,
        chosen_prompts,
        allowed=["judge", "objects", "sentence", "stance"],
    )

    return await judging.judge(
        candidates,
        loaded_prompts,
        model.requester,
        progress,
        stance=checked_stance,
        judging_settings=checked_judging_settings,
    )


@_publish
async def rank(
    candidates: Candidates,
    judgments: Judgments,
    *,
    steps: Sequence[str] = ("judge",),
    model: LanguageModel | None = None,
    prompts: Mapping[str, str] | None = None,
    options: RankOptions | None = None,
    progress: Progress | None = None,
) -> Ranking:
    """Rank candidates by their judgments, and the best of them by comparisons.

    Args:
        candidates: Candidates to rank; if documents were made of them, those are ranked instead.
        judgments: Judgments of the candidates.
        steps: Steps in order: `judge`, then others with a number of documents, such as
            `pairwise:10`.
        model: Open model; required if a step compares documents.
        prompts: Prompts of the comparisons: best, order.
        options: Objective, weights, settings of the steps, and thresholds of the stance.
        progress: Display of the progress; None for a bar in a terminal, else a line every ten
            seconds.

    Raises:
        UsageError: A step or weight is unknown, a step needs a model, or the judgments are of
            another task.
        EngineError: A server failed.
        DataError: There is no candidate to rank, or a judgment has a grade or label that the task
            does not have.
        ReplayMiss: The cache of a replay lacks an answer.
    """
    assert progress is not None, "the decorator gives one"
    checked_options = read_settings(RankOptions, options, "options")
    _check_judgments(judgments, candidates.task)
    ranked = _choose_ranked(candidates, judgments)

    plan = _plan_ranking(ranked, read_steps(steps, candidates.task), checked_options)
    if list_comparison_kinds(plan.steps):
        loader = _PromptLoader(candidates.task, candidates.topics, progress)
        plan = _add_comparisons(plan, model, prompts or {}, loader)

    stance = checked_options.stance
    if not needs_scores(plan.steps):
        return await ranking.rank(ranked, plan, progress, stance=stance)

    cross_encoder = checked_options.settings.cross_encoder
    async with open_pooling("score", cross_encoder, checked_options.cache) as reranker:
        plan = replace(plan, reranker=reranker)
        return await ranking.rank(ranked, plan, progress, stance=stance)


def _make_expander(
    model: LanguageModel, prompt: str | None, loader: _PromptLoader
) -> QueryExpander:
    """Return the expander of queries with a model; without a prompt with the task's own."""
    chosen = {} if prompt is None else {"queries": prompt}
    prompts = loader.load(["queries"], chosen, allowed=["queries"])
    return QueryExpander(ExpansionSettings(), prompts["queries"], model.requester)


def _check_judgments(judgments: Judgments, task: Task) -> None:
    """Raise an error unless judgments are of this task, and have its grades and labels.

    Raises:
        UsageError: The judgments are of another task.
        DataError: A judgment has a grade or label that the task does not have.
    """
    judged_task = judgments.candidates.task
    if judged_task.name != task.name:
        raise UsageError(
            f"judgments: of the task {judged_task.name}, not of {task.name}; give the judgments of these candidates"
        )
    check_judgments(judgments.judgments, task.question, "judgments")


def _choose_ranked(candidates: Candidates, judgments: Judgments) -> Judgments:
    """Return judgments with the candidates to rank.

    Those are the given ones, or the documents that were made of judged sentences.
    """
    if judgments.sentences is not None:
        return judgments

    topics = add_objects(candidates.topics, judgments.objects)
    return replace(judgments, candidates=replace(candidates, topics=topics))


def _plan_ranking(
    judgments: Judgments, steps: tuple[Step, ...], options: RankOptions
) -> RankingPlan:
    """Return the plan of a ranking without the models of its steps.

    Raises:
        UsageError: A weight is unknown, or a step needs texts and the candidates have no corpus.
    """
    task = judgments.candidates.task
    weights = _complete_weights(options, task)
    documents = judgments.candidates.documents if needs_texts(steps) else None
    return RankingPlan(
        task=task,
        weights=weights,
        steps=steps,
        settings=options.settings,
        objective=options.objective,
        documents=documents,
    )


def _add_comparisons(
    plan: RankingPlan,
    model: LanguageModel | None,
    prompts: Mapping[str, str],
    loader: _PromptLoader,
) -> RankingPlan:
    """Return the plan of a ranking with the model and the prompts that compare documents.

    Args:
        plan: Plan with a step that compares.
        model: Open model; None is an error.
        prompts: Names or paths of prompts by purpose; the others are the task's own.
        loader: Loader of the prompts.

    Raises:
        PromptError: A prompt is missing or invalid.
        UsageError: The model is missing or not open, or a prompt has another purpose.
    """
    if model is None:
        raise UsageError(
            f"model: missing; the steps {', '.join(map(str, plan.steps))} compare documents"
        )
    purposes = list_comparison_kinds(plan.steps)
    loaded = loader.load(purposes, prompts, allowed=["best", "order"])
    return replace(plan, prompts=loaded, requester=model.requester)


def _complete_weights(options: RankOptions, task: Task) -> dict[str, float]:
    """Return the weights of a ranking: those of the objective, in part replaced by given ones.

    Raises:
        UsageError: The task has no weight of a given name.
    """
    weights = {**task.objectives[options.objective], **options.weights}
    unknown = [name for name in weights if name not in task.weight_names]
    if unknown:
        raise UsageError(
            f"weights: no {', '.join(unknown)}; {task.name} has {', '.join(task.weight_names)}"
        )
    return weights


def read_steps(steps: Sequence[str], task: Task) -> tuple[Step, ...]:
    """Parse the steps of a ranking, as `["judge", "pairwise:10"]`.

    Args:
        steps: Steps in order, or one text with commas between them.
        task: Task of the ranking.

    Raises:
        UsageError: A step is unknown, or does not fit the task.
    """
    texts = steps.split(",") if isinstance(steps, str) else steps
    try:
        parsed = parse_steps(texts)
        check_sides(parsed, task.sides, "balance")
    except ValueError as error:
        raise UsageError(f"steps: {error}") from error
    return parsed


@dataclass(frozen=True, slots=True)
class _PromptLoader:
    """Loader of the prompts of a stage.

    Attributes:
        task: Task of the prompts.
        topics: Topics of the run, which no few-shot example may be about.
        progress: Receives warnings.
        judge_per: Whether a judge prompt is sent for each field of its answer.
    """

    task: Task
    topics: list[Topic]
    progress: Progress
    judge_per: JudgePer = "document"

    def load(
        self,
        needed: Sequence[str],
        chosen: Mapping[str, str],
        *,
        allowed: Sequence[str],
    ) -> dict[str, Prompt]:
        """Load the prompts of some purposes, and check their few-shot examples.

        Args:
            needed: Purposes of the prompts.
            chosen: Names or paths of prompts by purpose; the others are the task's own.
            allowed: Purposes for which prompts may be chosen.

        Returns:
            Prompts by purpose.

        Raises:
            PromptError: A prompt is missing or invalid.
            UsageError: A prompt is chosen for another purpose, or an example is about one of the
                topics.
        """
        purposes = purposes_of(self.task)
        possible = [name for name in allowed if name in purposes]
        unknown = [name for name in chosen if name not in possible]
        if unknown:
            raise UsageError(
                f"prompts: no purpose {', '.join(unknown)} here; expected {', '.join(possible)}"
            )

        prompts: dict[str, Prompt] = {}
        for name in needed:
            template = chosen.get(name, name)
            prompts[name] = load(self.task, purposes[name], template, judge_per=self.judge_per)
        for prompt in prompts.values():
            check_examples(prompt, self.topics, None, self.progress.warn)
        return prompts
