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
from touche_llm.data.runs.reading import read_candidates as read_candidates_of_run
from touche_llm.engines.pooling import PoolingClient
from touche_llm.engines.use import ModelRecord
from touche_llm.errors import BadLine, UsageError
from touche_llm.judging.requests import Requester, make_requester
from touche_llm.llm.answer_schema import build_schema
from touche_llm.llm.model import ModelClient
from touche_llm.prompts.leakage import check_examples
from touche_llm.prompts.prompt import Prompt, check_overlay
from touche_llm.prompts.purposes import list_judging_purposes, load, purposes_of
from touche_llm.ranking.steps import list_comparison_kinds, needs_scores
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

        assert isinstance(corpus, LocalCorpus), "only documents on disk are embedded"
        return DenseCorpus(
            corpus=corpus,
            settings=self.config.retriever_settings,
            cache=self.config.cache,
            progress=self.progress,
            opener=self.open_pooling,
        )

    @property
    def chosen_topics(self) -> list[str] | None:
        """Ids of the topics of the run if the configuration chooses some, else None."""
        return [topic.id for topic in self.topics] if self.config.has_chosen_topics else None

    @property
    def requester(self) -> Requester:
        """Client of the model, and the builder of its requests."""
        assert self.model is not None
        return make_requester(self.model)

    @property
    def recorded_config(self) -> Config:
        """Configuration as the run records it, with what is known of its models."""
        return complete_config(self.config, self.known_models)

    def note_embedding_model(self, record: ModelRecord) -> None:
        """Keep what the server of the embedding model says about it."""
        self.known_models = replace(self.known_models, embedding_model=record)

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

        Name and context of the model stay in `known_models` afterwards.
        """
        is_needed = needs_scores(self.config.steps)
        if not is_needed or self.reranker is not None:
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
        """Return the prompts that the run needs, by purpose; each is loaded once.

        Args:
            names: Purposes to choose from; all if none is given.

        Raises:
            PromptError: A prompt is invalid.
            UsageError: The folder of templates has none for the task, or a few-shot example is
                about a topic of the run.
        """
        purposes = self._list_purposes()
        if names:
            purposes = [purpose for purpose in purposes if purpose in names]
        missing = [purpose for purpose in purposes if purpose not in self._prompts]

        if missing:
            self._check_overlay()
        for purpose in missing:
            self._prompts[purpose] = self._load_prompt(purpose)
        return {purpose: self._prompts[purpose] for purpose in purposes}

    def _list_purposes(self) -> list[str]:
        """Return the purposes of the prompts that the run needs."""
        stance_depth = 0 if self.config.stance is None else self.config.stance.depth
        needed = {
            *list_judging_purposes(self.task, self.topics, stance_depth),
            *list_comparison_kinds(self.config.steps),
        }
        if self.config.expansion.use:
            needed.add("queries")
        return [name for name in purposes_of(self.task) if name in needed]

    def _check_overlay(self) -> None:
        """Raise UsageError if the user's folder of templates contains none for the task.

        The templates in it replace those of the task that have the same name.
        """
        settings = self.config.prompts
        if settings.folder is None:
            return

        # Names that a template of the folder may have: those of purposes, as `judge`, and those of
        # templates that are set for a purpose, as `short` by `prompts.judge: short`.
        usable_names = set(purposes_of(self.task))
        for purpose in purposes_of(self.task):
            template = getattr(settings, purpose)
            is_path = template.endswith(".jinja")
            if not is_path:
                usable_names.add(template)
        check_overlay(settings.folder, self.task.name, usable_names)

    def _load_prompt(self, purpose: str) -> Prompt:
        """Load the prompt for a purpose, and check its few-shot examples."""
        settings = self.config.prompts
        prompt = load(
            self.task,
            purposes_of(self.task)[purpose],
            getattr(settings, purpose),
            settings.folder,
            judge_per=self.config.judge_per,
        )
        check_examples(prompt, self.topics, self.config.topics, self.progress.warn)
        return prompt

    def read_candidates(
        self, path: Path, depth: int | None = None, *, are_made: bool = False
    ) -> Candidates:
        """Read candidates of the chosen topics from a run file; the corpus is not opened.

        Args:
            path: Run file.
            depth: Max candidates per topic that are read; None for all.
            are_made: Whether the candidates are documents that were made of sentences.

        Raises:
            DataError: The file is missing or invalid, or has an unknown topic.
        """
        rankings = read_candidates_of_run(path, depth)
        check_topics(path, rankings, self.file_topics)
        chosen = {topic.id: rankings[topic.id] for topic in self.topics if topic.id in rankings}
        return Candidates(
            task=self.task,
            topics=self.topics,
            corpus=None,
            rankings=chosen,
            depth=self.config.depth,
            source=str(path),
            are_made=are_made,
        )

    def check_sources(self) -> None:
        """Check corpus and candidates before an engine starts, and warn of topics of another task.

        Raises:
            DataError: A file is missing, or is no corpus or no run.
        """
        if self.config.candidates is not None:
            require_kind(self.config.candidates, "run", "rerank")
        if self.config.corpus is not None:
            # To read the first document shows whether the file is a corpus. A bad line is no problem
            # here: when the corpus is stored, the settings decide whether bad lines are left out.
            with suppress(BadLine):
                documents = self.task.read_corpus(self.config.corpus, None)
                next(iter(documents), None)
        # A task that a user defines may have any topics.
        if self.task.is_own:
            self._warn_of_other_topics()

    def _warn_of_other_topics(self) -> None:
        """Warn if the first topic is the first one that another task was published with."""
        first = self.file_topics[0]
        tasks = list_topic_tasks(first)
        if tasks and self.task.name not in tasks:
            self.progress.warn(
                f"{self.config.topics}: begins with topic {first.id}, {first.title!r:.80}, as published for "
                f"{', '.join(tasks)}, but the task is {self.task.name}; give `task: NAME` unless this is intended"
            )


def choose_topics(topics: list[Topic], config: Config) -> list[Topic]:
    """Return the topics that the configuration selects, in the order of their file.

    Raises:
        UsageError: The configuration names an unknown topic.
    """
    chosen = topics
    if config.topic:
        known_ids = {topic.id for topic in topics}
        unknown_ids = sorted(set(config.topic) - known_ids)
        if unknown_ids:
            raise UsageError(f"{config.topics}: no topic {', '.join(unknown_ids)}")
        chosen = [topic for topic in topics if topic.id in config.topic]
    # None limits nothing.
    return chosen[: config.limit_topics]


def list_schemas(
    prompts: Iterable[Prompt], shown_documents: Mapping[str, int] | None = None
) -> list[Mapping[str, Any]]:
    """Return the JSON schemas of the answers to prompts, which a server must be able to enforce.

    Answers with the objects of a topic are left out: their labels are words of its title, which are
    read as text.

    Args:
        prompts: Prompts of the requests.
        shown_documents: Number of documents in a request, by purpose of the prompts that compare
            documents; 1 for other prompts. None if no prompt compares documents.
    """
    # The schemas that are listed do not depend on the topic.
    any_topic = Topic("", "")
    schemas: list[Mapping[str, Any]] = []
    for prompt in prompts:
        purpose = prompt.header.answer
        if purpose == "objects":
            continue

        document_count = 1
        if shown_documents is not None:
            document_count = shown_documents.get(purpose, 1)
        for request_prompt in prompt.request_prompts:
            answer = request_prompt.answer_for(any_topic, document_count=document_count)
            schemas.append(build_schema(answer, prompt.header.form))
    return schemas
