"""What the stages of one command share: configuration, task, topics, corpus, prompts, model and progress."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from touche_llm.api.corpora import DenseCorpus, LocalCorpus, open_run_corpus
from touche_llm.api.dataset import read_run_topics
from touche_llm.api.opening import OpenPooling, open_pooling
from touche_llm.api.progress import Progress
from touche_llm.config.configuration import Config
from touche_llm.data.recognize import require_kind
from touche_llm.data.records import Topic
from touche_llm.data.runs.reading import read_candidates
from touche_llm.engines.pooling import PoolingClient
from touche_llm.engines.use import ModelRecord
from touche_llm.errors import BadLine, UsageError
from touche_llm.judging.requests import RequestBuilder, make_request_builder
from touche_llm.llm.answer_schema import build_schema
from touche_llm.llm.model import ModelClient
from touche_llm.prompts.leakage import check_examples
from touche_llm.prompts.prompt import Prompt, check_overlay
from touche_llm.prompts.purposes import list_judging_purposes, load, purposes_of
from touche_llm.ranking.steps import CROSS_ENCODER, list_comparison_kinds
from touche_llm.retrieval.candidates import Candidates, check_topics
from touche_llm.retrieval.corpus import Corpus
from touche_llm.runs.known_models import KnownModels, complete_config
from touche_llm.tasks import get_task
from touche_llm.tasks.published import list_topic_tasks


class RunContext:
    """What the stages of one command share; a context manager that closes the corpus.

    Topics are read when the context is made; corpus and prompts are opened when a stage first needs
    them.

    Attributes:
        config: Configuration of the run.
        known_models: What the servers opened so far say about their models.
        topics: Chosen topics, in the order of their file; `file_topics` has all.
        reranker: Client of the cross-encoder, if it is open.
        open_pooling: Opens pooling models; a dry run has another function.
    """

    def __init__(
        self,
        config: Config,
        progress: Progress,
        model: ModelClient | None = None,
        topics: list[Topic] | None = None,
    ) -> None:
        """Make the context, and read the topics unless they are given.

        Args:
            config: Configuration of the run.
            progress: Display of progress.
            model: Client of the language model, if it is open.
            topics: Topics in place of those that the configuration names.
        """
        self.config: Final = config
        self.task = get_task(config.task)
        self.progress = progress
        self.model = model
        self.known_models = KnownModels()
        self.reranker: PoolingClient | None = None
        self.open_pooling: OpenPooling = open_pooling
        self.file_topics = read_run_topics(config) if topics is None else topics
        self.topics = choose_topics(self.file_topics, config)
        self._prompts: dict[str, Prompt] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if "corpus" in self.__dict__:
            self.corpus.close()

    @cached_property
    def corpus(self) -> Corpus:
        """Corpus of the run, opened at first use; stored first unless the store is up to date."""
        corpus = open_run_corpus(self.config, self.task, self.progress.warn)
        if not self.config.retriever.kind.needs_embeddings:
            return corpus

        assert isinstance(corpus, LocalCorpus), "vectors are those of documents on disk"
        return DenseCorpus(
            corpus,
            self.config.retriever_settings,
            self.config.cache,
            self.progress,
            self.open_pooling,
        )

    @property
    def chosen_topics(self) -> list[str] | None:
        """Ids of the topics of the run if the configuration chooses some, else None."""
        return [topic.id for topic in self.topics] if self.config.has_chosen_topics else None

    @property
    def builder(self) -> RequestBuilder:
        """Builder of the requests to the model."""
        assert self.model is not None
        return make_request_builder(self.model)

    @property
    def recorded_config(self) -> Config:
        """Configuration as the run records it, with what is known of its models."""
        return complete_config(self.config, self.known_models)

    @contextmanager
    def using(self, model: ModelClient) -> Iterator[Self]:
        """Use a model while the block runs; what its server says about it stays known."""
        record = ModelRecord.from_info(model.engine_info)
        self.known_models = replace(self.known_models, language_model=record)
        self.model = model
        try:
            yield self
        finally:
            self.model = None

    @asynccontextmanager
    async def using_reranker(self) -> AsyncIterator[Self]:
        """Open the cross-encoder while the block runs, if a step needs one and it is not open.

        What its server says about it stays known.
        """
        needs_reranker = any(step.name == CROSS_ENCODER for step in self.config.steps)
        if self.reranker is not None or not needs_reranker:
            yield self
            return

        settings = self.config.ranking.cross_encoder
        async with self.open_pooling("score", settings, self.config.cache) as client:
            record = ModelRecord.from_info(client.engine_info)
            self.known_models = replace(self.known_models, cross_encoder=record)
            self.reranker = client
            try:
                yield self
            finally:
                self.reranker = None

    def load_prompts(self, *names: str) -> dict[str, Prompt]:
        """Return the prompts of these purposes or, without names, of all that the run needs.

        Each is loaded once.
        """
        stance_depth = 0 if self.config.stance is None else self.config.stance.depth
        needed = {
            *list_judging_purposes(self.task, self.topics, stance_depth),
            *list_comparison_kinds(self.config.steps),
            *(("queries",) if self.config.expansion.use else ()),
        }
        wanted = [
            name
            for name in purposes_of(self.task)
            if name in needed and (not names or name in names)
        ]
        if missing := [name for name in wanted if name not in self._prompts]:
            settings, purposes = self.config.prompts, purposes_of(self.task)
            if settings.folder is not None:
                # A template for a purpose whose prompt is given as a path is unused, but not a
                # mistake.
                given = {*purposes, *(getattr(settings, name) for name in purposes)}
                check_overlay(
                    settings.folder,
                    self.task.name,
                    {name for name in given if not name.endswith(".jinja")},
                )
            for name in missing:
                template, judge_per = getattr(settings, name), self.config.judge_per
                prompt = load(
                    self.task, purposes[name], template, settings.folder, judge_per=judge_per
                )
                check_examples(prompt, self.topics, self.config.topics, self.progress.warn)
                self._prompts[name] = prompt
        return {name: self._prompts[name] for name in wanted}

    def read_candidates(
        self, path: Path, depth: int | None = None, *, are_pairs: bool = False
    ) -> Candidates:
        """Read up to `depth` candidates of each chosen topic, or all, from a run file.

        The corpus is not opened.
        """
        found = read_candidates(path, depth)
        check_topics(path, found, self.file_topics)
        rankings = {topic.id: found[topic.id] for topic in self.topics if topic.id in found}
        return Candidates(
            self.task, self.topics, None, rankings, self.config.depth, str(path), are_pairs
        )

    def check_sources(self) -> None:
        """Check corpus and candidates before an engine starts, and warn of topics that belong to another task.

        Only number and title of the first topic count. A task of one's own may use any topics.
        """
        corpus, candidates = self.config.corpus, self.config.candidates
        if candidates is not None:
            require_kind(candidates, "run", "rerank")
        if corpus is not None:
            with suppress(BadLine):  # the store decides on bad lines
                next(iter(self.task.read_corpus(corpus, None)), None)
        first = self.file_topics[0]
        if self.task.is_own and (tasks := list_topic_tasks(first)) and self.task.name not in tasks:
            self.progress.warn(
                f"{self.config.topics}: begins with topic {first.id}, {first.title!r:.80}, as published for "
                f"{', '.join(tasks)}, but the task is {self.task.name}; give `task: NAME` unless this is intended"
            )


def choose_topics(topics: list[Topic], config: Config) -> list[Topic]:
    """Return the topics that the configuration selects, in the order of their file.

    Raise UsageError if one lacks.
    """
    if config.topic:
        unknown = sorted(set(config.topic) - {topic.id for topic in topics})
        if unknown:
            raise UsageError(f"{config.topics}: no topic {', '.join(unknown)}")
        topics = [topic for topic in topics if topic.id in config.topic]
    return topics[: config.limit_topics]


def list_schemas(
    prompts: Iterable[Prompt], shown: Mapping[str, int] | None = None
) -> list[Mapping[str, Any]]:
    """Return the schemas of the answers to prompts.

    Answers with the objects of a topic are left out: their labels are words of its title, which are
    read as text.

    Args:
        prompts: Prompts to list.
        shown: Number of documents by purpose of the prompts that compare some; None if none does.
    """
    topic = Topic("", "")
    shown = shown or {}
    schemas: list[Mapping[str, Any]] = []
    for prompt in prompts:
        purpose = prompt.header.answer
        if purpose == "objects":
            continue

        documents = shown.get(purpose, 1)
        for sent in prompt.sent:
            schemas.append(build_schema(sent.answer_for(topic, documents), prompt.header.form))
    return schemas
