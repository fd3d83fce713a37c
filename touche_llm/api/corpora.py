"""Corpora: the documents of a run, and the first stage that searches them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from touche_llm.llm.request import Request
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
        """Set up the search in an open store; arguments as the attributes of the class."""
        self.task = task
        self.store = store
        self.retriever = retriever
        self.retriever_settings = retriever_settings
        self.space = space
        self.warn = warn
        self.candidates = space.candidates
        self.documents = space.documents
        self.description = _record_corpus(store, task)
        self.empty = _explain_empty_search(space)

    async def search(
        self,
        topics: list[Topic],
        fields: tuple[QueryField, ...],
        depth: int,
        done: Callable[[], None],
    ) -> list[list[Candidate]]:
        """Return the candidates of each topic, see the base class; a missing index is built first."""
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
        assert open_stage is not None, "only a retriever that scores documents on disk gets here"

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


def _record_corpus(store: DocumentStore, task: Task) -> CorpusRecord:
    """Return the record of a stored corpus for the metadata of a run."""
    manifest = store.manifest
    retrieves_sentences = bool(task.sentence_aspects)
    return CorpusRecord(
        source=manifest.corpus,
        sha256=manifest.sha256,
        documents=manifest.documents,
        bad_lines=manifest.bad_lines,
        sentences=manifest.parts if retrieves_sentences else None,
    )


def _explain_empty_search(space: SearchSpace) -> str:
    """Return the error message for a search that found nothing for any topic."""
    message = (
        "the first stage found nothing for any topic: no word of a query is in the corpus, or each is in more "
        "than half of its documents (`retriever.method: lucene` scores those too)"
    )
    if space.nothing_found is not None:
        message += f"; or {space.nothing_found}"
    return message


def open_run_corpus(config: Config, task: Task, warn: Warn) -> Corpus:
    """Open the corpus of a run: documents in a search engine, or in a store on disk.

    A store is built first unless it is up to date.

    Args:
        config: Configuration of the run.
        task: Task of the run.
        warn: Receives notices.
    """
    retriever = config.retriever
    open_engine = retriever.kind.open_engine
    if open_engine is not None:
        inputs = EngineInputs(
            task=task,
            bm25=retriever.bm25,
            settings=config.retriever_settings,
            warn=warn,
        )
        return open_engine(inputs)

    return open_local_corpus(
        corpus=config.dataset or config.corpus,
        index=config.index,
        task=task,
        skip_bad_lines=config.skip_bad_lines,
        retriever=retriever,
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

    # `LocalCorpus` builds a missing or outdated index only if it can warn of it.
    can_build_index = corpus is not None
    return LocalCorpus(
        task=task,
        store=store,
        retriever=retriever,
        space=kind.open_space(store, search_settings),
        warn=warn if can_build_index else None,
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
    """Open the store of a corpus, which is built first unless it is up to date.

    Args:
        corpus: File, or id of a dataset; None to open an existing store as it is.
        index: Folder of the store; None for the default folder of the corpus.
        task: Task of the corpus.
        skip_bad_lines: Whether to leave out lines that are not documents.
        warn: Receives notices.

    Raises:
        DataError: The corpus or the store cannot be read.
        UsageError: Neither a corpus nor an index is given.
    """
    if corpus is not None:
        source = task.make_source(corpus)
        folder = index or _find_default_folder(corpus)
        return ensure_store(source, folder, skip_bad_lines=skip_bad_lines, warn=warn)

    if index is None:
        raise UsageError(
            "corpus: missing; give the corpus file, the folder of its index, or `dataset: ID`"
        )
    return DocumentStore(index)


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


@dataclass(frozen=True, slots=True)
class _Vectors:
    """Vectors of the documents and queries of a search.

    Attributes:
        index: Index of the vectors of all documents.
        queries: Vectors of the topics' queries, as little-endian float32.
        are_invented: Whether they are those of a dry run, which sends nothing and invents vectors.
    """

    index: DenseIndex
    queries: list[bytes]
    are_invented: bool


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
        """Add search by vectors to an open corpus, which is closed together with this one.

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

        # This is a corpus like the given one, on the same store, with another search.
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
        """Search by vectors, and fuse the rankings with those of a first stage by words, if any.

        Documents without a vector are embedded first, and stored also if the server fails. In a dry
        run that lacks a vector, documents from all over the corpus stand for those of the search.

        Raises:
            EngineError: The server failed.
            ReplayMiss: The cache of a replay lacks a vector.
        """
        vectors = await self._embed(topics, fields)
        if vectors.are_invented:
            return self._list_stand_ins(topics, depth, done)

        searches_words_too = self.retriever.kind.open_stage is not None
        if not searches_words_too:
            return _search_vectors(vectors, topics, depth, done)

        pool = max(depth, self.settings.pool)
        by_vectors = _search_vectors(vectors, topics, pool, done)
        # The search by vectors has counted each topic for the progress already.
        by_words = await super().search(topics, fields, pool, done=lambda: None)
        return self._fuse(by_words, by_vectors, depth)

    async def _embed(self, topics: list[Topic], fields: tuple[QueryField, ...]) -> _Vectors:
        """Return the vectors of all documents and of the topics' queries; missing ones are made."""
        async with self._open_client() as client:
            requests_before = client.counts.requests
            index = await self._embed_documents(client)
            queries = await self._embed_queries(client, topics, fields)
            self.usage = PoolingUse.from_client(client, self.settings, index.dimensions)

            # A dry run invents the replies to its requests: all vectors that are not stored.
            is_dry_run = isinstance(client.engine, DryRunEngine)
            has_sent_requests = client.counts.requests > requests_before
            are_invented = is_dry_run and has_sent_requests
        return _Vectors(index, queries, are_invented)

    async def _embed_queries(
        self,
        client: PoolingClient,
        topics: list[Topic],
        fields: tuple[QueryField, ...],
    ) -> list[bytes]:
        """Return the vectors of the topics' queries, as little-endian float32.

        Raises:
            EngineError: The server failed.
            ReplayMiss: The cache of a replay lacks a vector.
        """
        requests: list[Request] = []
        for topic in topics:
            query = sanitize(build_query(topic, fields))
            text = self.settings.render_query(query)
            requests.append(client.wrap(text, topic.id))

        vectors = await client.embed(requests)
        client.raise_on_misses()
        return vectors

    async def _embed_documents(self, client: PoolingClient) -> DenseIndex:
        """Return the index of the client's model, after embedding the documents without a vector.

        Raises:
            EngineError: The server failed.
            ReplayMiss: A document has no vector, and there is no server.
        """
        index = DenseIndex(self.store, self.settings, client.engine_info)
        missing_rows = index.find_missing()
        if len(missing_rows) == 0:
            return index

        if client.engine is None:
            raise ReplayMiss(
                f"{index.folder}: {len(missing_rows):,} of {len(self.store):,} documents have no vector of "
                f"{client.engine_info.model}; embed them with `touche-llm index` and the address of its server "
                "(`dense.url`)"
            )

        is_dry_run = isinstance(client.engine, DryRunEngine)
        title = "embedding documents"
        with self._progress.stage(title, len(missing_rows), client.counts) as done:
            if is_dry_run:
                await _send_dry_requests(index, client, missing_rows, done)
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

    def _list_stand_ins(
        self, topics: list[Topic], depth: int, done: Callable[[], None]
    ) -> list[list[Candidate]]:
        """Return documents from all over the corpus, as many as a search would find for each topic.

        A dry run takes them for the candidates, since a search by invented vectors says nothing.
        """
        count = min(depth, len(self.store))
        rows = np.linspace(0, len(self.store) - 1, count).astype(np.int64)
        document_ids = self.store.get_ids(rows.tolist())

        rankings: list[list[Candidate]] = []
        for topic in topics:
            ranking: list[Candidate] = []
            for rank, document_id in enumerate(document_ids, start=1):
                ranking.append(Candidate(topic.id, document_id, rank, score=-float(rank)))
            rankings.append(ranking)
            done()
        return rankings


def _search_vectors(
    vectors: _Vectors,
    topics: list[Topic],
    depth: int,
    done: Callable[[], None],
) -> list[list[Candidate]]:
    """Return the `depth` documents whose vectors are most similar to that of each topic's query."""
    if not topics:
        return []

    rankings: list[list[Candidate]] = []
    queries = read_vectors(vectors.queries)
    for ranking in vectors.index.retrieve(topics, queries, depth):
        rankings.append(ranking)
        done()
    return rankings


async def _send_dry_requests(
    index: DenseIndex,
    client: PoolingClient,
    missing_rows: NDArray[np.int64],
    done: Callable[[], None],
) -> None:
    """Send a dry run's requests for the vectors of documents, and store nothing.

    The client counts the requests, for which a dry run is made.

    Args:
        index: Index of the documents.
        client: Client of a dry run.
        missing_rows: Rows of the documents without a vector, ascending.
        done: Is called for each document.
    """
    for rows in split_rows(missing_rows, client.batch):
        await index.embed(client, rows)
        for _ in rows:
            done()
