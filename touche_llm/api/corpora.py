"""Corpora: the documents of a run, and the first stage that searches them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from touche_llm.api.opening import OpenPooling, open_pooling
from touche_llm.api.progress import Progress
from touche_llm.config.configuration import Config
from touche_llm.config.files import index_folder
from touche_llm.corpus.ir_dataset import dataset_index
from touche_llm.corpus.store import DocumentStore, ensure_store
from touche_llm.data.records import Candidate, Topic
from touche_llm.data.topics.reading import build_query
from touche_llm.engines.dry_run import DryRunEngine
from touche_llm.engines.pooling import PoolingClient
from touche_llm.engines.use import PoolingUse
from touche_llm.errors import DataError, ReplayMiss, UsageError, Warn
from touche_llm.kinds.known import get_kind
from touche_llm.kinds.search_space import SearchSpace
from touche_llm.llm.settings import CacheConfig
from touche_llm.ranking.fusion import fuse_candidates
from touche_llm.retrieval.corpus import Corpus, CorpusRecord, FirstStage
from touche_llm.retrieval.dense import (
    DenseIndex,
    DenseSettings,
    read_vectors,
    split_rows,
)
from touche_llm.retrieval.first_stages import RetrieverConfig
from touche_llm.retrieval.registry import EngineInputs, StageInputs
from touche_llm.retrieval.settings import QueryField
from touche_llm.settings.section import Section
from touche_llm.tasks.task import Task
from touche_llm.text.sanitize import sanitize


class LocalCorpus(Corpus):
    """A corpus in a document store on disk, searched with BM25.

    Attributes:
        store: Store of the documents.
        retriever: First stage.
        retriever_settings: Settings that the first stage declares.
        space: What the first stage searches of the store, and what a run ranks of it.
        warn: Receives notices; None if an index may be opened, but not built.
    """

    def __init__(
        self,
        *,
        task: Task,
        store: DocumentStore,
        retriever: RetrieverConfig,
        space: SearchSpace,
        warn: Warn | None,
        retriever_settings: Any = None,
    ) -> None:
        """Take over an open store."""
        self.task = task
        self.store = store
        self.retriever = retriever
        self.retriever_settings = retriever_settings
        self.space = space
        self.warn = warn

        manifest = store.manifest
        self.description = CorpusRecord(
            source=manifest.corpus,
            sha256=manifest.sha256,
            documents=manifest.documents,
            bad_lines=manifest.bad_lines,
            sentences=manifest.parts if task.sentence_aspects else None,
        )
        self.candidates = self.space.candidates
        self.documents = self.space.documents
        self.empty = (
            "the first stage found nothing for any topic: no word of a query is in the corpus, or each is in more "
            "than half of its documents (`retriever.method: lucene` scores those too)"
        )
        if self.space.nothing_found is not None:
            self.empty += f"; or {self.space.nothing_found}"

    async def search(
        self,
        topics: list[Topic],
        fields: tuple[QueryField, ...],
        depth: int,
        done: Callable[[], None],
    ) -> list[list[Candidate]]:
        """Search the index, built first if it is missing; see the base class."""
        stages = self.open_first_stages()
        rankings: list[list[Candidate]] = []
        for ranking in self.space.search(topics, stages, fields, depth):
            rankings.append(ranking)
            done()
        return rankings

    def limit(self, ranking: list[Candidate], depth: int) -> list[Candidate]:
        """Return the best candidates of a fused ranking; see the base class."""
        return self.space.limit(ranking, depth)

    def open_first_stages(self) -> list[FirstStage]:
        """Open the index of each table that is searched; missing ones are built."""
        open_stage = self.retriever.kind.open_stage
        assert open_stage is not None, "else the corpus is searched in another way"
        stages: list[FirstStage] = []
        for table in self.space.tables:
            inputs = StageInputs(
                table=table,
                bm25=self.retriever.bm25,
                settings=self.retriever_settings,
                warn=self.warn,
            )
            stages.append(open_stage(inputs))
        return stages

    def close(self) -> None:
        """Close the store."""
        super().close()
        self.store.close()


def open_run_corpus(config: Config, task: Task, warn: Warn) -> Corpus:
    """Open the corpus of a configuration; store it first unless the store is up to date."""
    open_engine = config.retriever.kind.open_engine
    if open_engine is not None:
        inputs = EngineInputs(
            task=task,
            bm25=config.retriever.bm25,
            settings=config.retriever_settings,
            warn=warn,
        )
        return open_engine(inputs)
    return open_local_corpus(
        config.dataset or config.corpus,
        config.index,
        task,
        skip_bad_lines=config.skip_bad_lines,
        retriever=config.retriever,
        search_settings=config.search_settings,
        warn=warn,
        retriever_settings=config.retriever_settings,
    )


def open_local_corpus(
    corpus: Path | str | None,
    index: Path | None,
    task: Task,
    *,
    skip_bad_lines: bool,
    warn: Warn,
    retriever: RetrieverConfig = RetrieverConfig(),  # noqa: B008, frozen
    search_settings: Section | None = None,
    retriever_settings: Any = None,
) -> LocalCorpus:
    """Open a corpus on disk, or an index without its corpus.

    A corpus is stored first unless its store is up to date. Without its corpus an index cannot be
    checked, so it is opened as it is.

    Args:
        corpus: File, or id of a dataset; None to open the index alone.
        index: Folder of the store and its index; None for the default folder of the corpus.
        task: Task of the corpus.
        skip_bad_lines: Whether to leave out lines that are not documents.
        warn: Receives notices.
        retriever: First stage.
        search_settings: Section that the kind of the task declares for its search; None for the
            defaults.
        retriever_settings: Settings that the first stage declares.

    Raises:
        DataError: The corpus cannot be read, or belongs to another task.
        UsageError: Neither a corpus nor an index is given.
    """
    kind = get_kind(task)
    store = _open_store(corpus, index, task, skip_bad_lines=skip_bad_lines, warn=warn)
    _check_store(store, task)

    return LocalCorpus(
        task=task,
        store=store,
        retriever=retriever,
        space=kind.open_space(store, search_settings),
        warn=None if corpus is None else warn,
        retriever_settings=retriever_settings,
    )


def _open_store(
    corpus: Path | str | None,
    index: Path | None,
    task: Task,
    *,
    skip_bad_lines: bool,
    warn: Warn,
) -> DocumentStore:
    """Open the store of a corpus, built first unless it is up to date, or a store alone.

    Raises:
        DataError: The corpus or the store cannot be read.
        UsageError: Neither a corpus nor an index is given.
    """
    if corpus is not None:
        source = task.make_source(corpus)
        folder = index or _find_default_folder(corpus)
        return ensure_store(source, folder, skip_bad_lines=skip_bad_lines, warn=warn)
    if index is not None:
        return DocumentStore(index)
    raise UsageError(
        "corpus: missing; give the corpus file, the folder of its index, or `dataset: ID`"
    )


def _find_default_folder(corpus: Path | str) -> Path:
    """Return the default folder of the store of a corpus file, or of a dataset by its id."""
    if isinstance(corpus, str):
        return dataset_index(corpus)
    return index_folder(corpus)


def _check_store(store: DocumentStore, task: Task) -> None:
    """Close a store and raise DataError if it has no sentences, and the task needs them, or vice versa."""
    has_sentences = bool(store.manifest.parts)
    needs_sentences = bool(task.sentence_aspects)
    if has_sentences == needs_sentences:
        return

    store.close()
    content = "sentences of arguments" if has_sentences else "documents without sentences"
    raise DataError(
        f"{store.folder}: holds {content} of {store.manifest.corpus}, not a corpus of the task {task.name}; "
        "give the corpus or the index of this task"
    )


class DenseCorpus(LocalCorpus):
    """A corpus in a document store, searched by vectors that an embedding model gives its documents.

    Attributes:
        settings: Settings of the embedding model, and of the fusion with the first stage on disk.
        usage: Use of the embedding model by the last search, for the metadata.
    """

    def __init__(
        self,
        corpus: LocalCorpus,
        settings: DenseSettings,
        cache: CacheConfig,
        progress: Progress,
        opener: OpenPooling = open_pooling,
    ) -> None:
        """Take over an open corpus.

        Args:
            corpus: Corpus whose retriever needs embeddings.
            settings: Settings of the embedding model.
            cache: Cache of the queries' vectors.
            progress: Display of the progress.
            opener: Opens the client of the embedding model.

        Raises:
            UsageError: The retriever cannot search the documents of the task.
        """
        problem = corpus.retriever.kind.find_problem(corpus.task)
        if problem is not None:
            raise UsageError(f"retriever.name: {problem}")

        super().__init__(
            task=corpus.task,
            store=corpus.store,
            retriever=corpus.retriever,
            space=corpus.space,
            warn=corpus.warn,
            retriever_settings=settings,
        )
        self.settings = settings
        self.usage: PoolingUse | None = None
        self._progress = progress
        self._open_client = partial(opener, "embedding", settings, cache, settings.dimensions)

    async def embed(self) -> None:
        """Embed the documents that have no vector yet; raise as `search`."""
        async with self._open_client() as client:
            await self._embed_documents(client)

    async def search(
        self,
        topics: list[Topic],
        fields: tuple[QueryField, ...],
        depth: int,
        done: Callable[[], None],
    ) -> list[list[Candidate]]:
        """Search by the vectors, and fuse the rankings with those of the first stage on disk, if any.

        Documents without a vector are embedded first, and stored also if the server fails. In a dry
        run that lacks a vector, documents from all over the corpus stand for those of the search.

        Raises:
            EngineError: The server failed.
            ReplayMiss: The cache of a replay lacks a vector.
        """
        is_hybrid = self.retriever.kind.open_stage is not None
        pool = max(depth, self.settings.pool) if is_hybrid else depth
        async with self._open_client() as client:
            sent_before = client.counts.requests
            index = await self._embed_documents(client)
            queries = await self._embed_queries(client, topics, fields)
            self.usage = PoolingUse.from_client(client, self.settings, index.dimensions)
            has_sent = client.counts.requests > sent_before
            if isinstance(client.engine, DryRunEngine) and has_sent:
                # The vectors of a dry run are invented.
                return [self._spread(topic, depth, done) for topic in topics]

        rankings: list[list[Candidate]] = []
        if topics:
            for ranking in index.retrieve(topics, read_vectors(queries), pool):
                rankings.append(ranking)
                done()
        if not is_hybrid:
            return rankings

        by_words = await super().search(topics, fields, pool, lambda: None)
        return self._fuse(by_words, rankings, depth)

    async def _embed_queries(
        self,
        client: PoolingClient,
        topics: list[Topic],
        fields: tuple[QueryField, ...],
    ) -> list[bytes]:
        """Return the vectors of the topics' queries, as little-endian float32."""
        inputs = []
        for topic in topics:
            query = sanitize(build_query(topic, fields))
            inputs.append(client.wrap(self.settings.render_query(query), topic.id))
        vectors = await client.embed(inputs)
        client.raise_on_misses()
        return vectors

    async def _embed_documents(self, client: PoolingClient) -> DenseIndex:
        """Return the index of the client's model, after embedding the documents without a vector.

        Raises:
            EngineError: The server failed.
            ReplayMiss: A document has no vector, and there is no server.
        """
        index = DenseIndex(self.store, self.settings, client.engine_info)
        missing = index.find_missing()
        if len(missing) == 0:
            return index
        if client.engine is None:
            raise ReplayMiss(
                f"{index.folder}: {len(missing):,} of {len(self.store):,} documents have no vector of "
                f"{client.engine_info.model}; embed them with `touche-llm index` and the address of its server "
                "(`dense.url`)"
            )

        with self._progress.stage("embedding documents", len(missing), client.counts) as done:
            if isinstance(client.engine, DryRunEngine):
                await _count_embeddings(index, client, missing, done)
            else:
                await index.embed_missing(client, done)
        return index

    def _fuse(
        self,
        by_words: list[list[Candidate]],
        by_vectors: list[list[Candidate]],
        depth: int,
    ) -> list[list[Candidate]]:
        """Fuse the rankings of each topic, and keep the best `depth` documents."""
        weights = [1.0, self.settings.weight]
        fused: list[list[Candidate]] = []
        for words, vectors in zip(by_words, by_vectors, strict=True):
            ranking = fuse_candidates([words, vectors], weights, self.settings.k)
            fused.append(ranking[:depth])
        return fused

    def _spread(self, topic: Topic, depth: int, done: Callable[[], None]) -> list[Candidate]:
        """Return documents from all over the corpus, as many as a search would find."""
        count = min(depth, len(self.store))
        rows = np.linspace(0, len(self.store) - 1, count).astype(np.int64)
        document_ids = self.store.get_ids(rows.tolist())
        done()
        return [
            Candidate(topic.id, document_id, rank, -float(rank))
            for rank, document_id in enumerate(document_ids, start=1)
        ]


async def _count_embeddings(
    index: DenseIndex,
    client: PoolingClient,
    missing: NDArray[np.int64],
    done: Callable[[], None],
) -> None:
    """Send a dry run's requests for the documents in the missing rows, and store nothing."""
    for rows in split_rows(missing, client.batch):
        await index.embed(client, rows)
        for _ in rows:
            done()
