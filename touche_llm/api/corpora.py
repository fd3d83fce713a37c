"""Corpora: the documents of a run, and the first stage that searches them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from touche_llm.api.opening import OpenPooling, open_pooling
from touche_llm.api.progress import Progress
from touche_llm.config.configuration import Config
from touche_llm.config.files import index_folder
from touche_llm.corpus.ir_dataset import dataset_index
from touche_llm.corpus.store import DocumentStore, TextTable, ensure_store
from touche_llm.data.records import Candidate, Topic
from touche_llm.data.topics.reading import build_query
from touche_llm.engines.dry_run import DryRunEngine
from touche_llm.engines.pooling import PoolingClient
from touche_llm.engines.use import PoolingUse
from touche_llm.errors import DataError, ReplayMiss, UsageError, Warn
from touche_llm.llm.settings import CacheConfig
from touche_llm.pairs.documents import PairDocuments
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
from touche_llm.retrieval.sentences import SentenceSettings, retrieve_sentences
from touche_llm.retrieval.settings import QueryField
from touche_llm.tasks.task import Task
from touche_llm.text.sanitize import sanitize


class LocalCorpus(Corpus):
    """A corpus in a document store on disk, searched with BM25."""

    def __init__(
        self,
        task: Task,
        store: DocumentStore,
        retriever: RetrieverConfig,
        sentences: SentenceSettings | None,
        warn: Warn | None,
        retriever_settings: Any = None,
    ) -> None:
        """Take over an open store; without `warn`, an index is opened, but not built.

        `retriever_settings` are those that the chosen retriever declares.
        """
        self.task = task
        self.store = store
        self.retriever = retriever
        self.retriever_settings = retriever_settings
        self.sentences = sentences
        self.warn = warn

        manifest = store.manifest
        self.description = CorpusRecord(
            source=manifest.corpus,
            sha256=manifest.sha256,
            documents=manifest.documents,
            bad_lines=manifest.bad_lines,
            sentences=None if task.sentence_question is None else manifest.parts,
        )
        self.candidates = store
        self.documents = store
        if task.sentence_question is not None:
            self.candidates = store.parts
            self.documents = PairDocuments(store.parts)
        self.empty = (
            "the first stage found nothing for any topic: no word of a query is in the corpus, or each is in more "
            "than half of its documents (`retriever.method: lucene` scores those too)"
        )
        if sentences is not None:
            self.empty += "; or no sentence can stand alone (sentences.least_words, most_chars)"

    async def search(
        self,
        topics: list[Topic],
        fields: tuple[QueryField, ...],
        depth: int,
        done: Callable[[], None],
    ) -> list[list[Candidate]]:
        """Search the index, built first if it is missing; see the base class."""
        stages = self.open_first_stages()
        if self.sentences is None:
            found = stages[0].retrieve(topics, fields=fields, depth=depth)
        else:
            found = retrieve_sentences(
                topics, stages[0], stages[1], self.store.parts, self.sentences, fields
            )
        candidates = []
        for ranking in found:
            candidates.append(ranking)
            done()
        return candidates

    def open_first_stages(self) -> list[FirstStage]:
        """Open the index of the documents and, if pairs are made, that of the sentences.

        Build missing ones.
        """
        open_stage = self.retriever.kind.open_stage
        assert open_stage is not None, "else the corpus is searched in another way"
        tables: list[TextTable] = [self.store]
        if self.task.sentence_question is not None:
            tables.append(self.store.parts)

        stages: list[FirstStage] = []
        for table in tables:
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
        sentences=config.sentences,
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
    sentences: SentenceSettings | None = None,
    retriever_settings: Any = None,
) -> LocalCorpus:
    """Open a corpus, a file or the id of a dataset, or an index without its corpus.

    A corpus is stored first unless the store in `index`, or in its default folder, is up to date.
    """
    if corpus is not None:
        folder = index or (
            dataset_index(corpus) if isinstance(corpus, str) else index_folder(corpus)
        )
        store = ensure_store(
            task.make_source(corpus), folder, skip_bad_lines=skip_bad_lines, warn=warn
        )
    elif index is not None:
        store = DocumentStore(index)
    else:
        raise UsageError(
            "corpus: missing; give the corpus file, the folder of its index, or `dataset: ID`"
        )
    manifest = store.manifest
    if (task.sentence_question is not None) is not bool(manifest.parts):
        store.close()
        kind = "sentences of arguments" if manifest.parts else "documents without sentences"
        raise DataError(
            f"{store.folder}: holds {kind} of {manifest.corpus}, not a corpus of the task {task.name}; "
            "give the corpus or the index of this task"
        )
    if task.sentence_question is not None:
        sentences = sentences or SentenceSettings()
    # Without its corpus an index cannot be checked, so it is not built anew.
    index_warn = None if corpus is None else warn
    return LocalCorpus(
        task,
        store,
        retriever,
        sentences,
        index_warn,
        retriever_settings,
    )


class DenseCorpus(LocalCorpus):
    """A corpus in a document store, searched by vectors that an embedding model gives its documents."""

    def __init__(
        self,
        corpus: LocalCorpus,
        settings: DenseSettings,
        cache: CacheConfig,
        progress: Progress,
        opener: OpenPooling = open_pooling,
    ) -> None:
        """Take over an open corpus, whose retriever needs embeddings.

        The queries' vectors are cached.
        """
        problem = corpus.retriever.kind.find_problem(corpus.task)
        if problem:
            raise UsageError(f"retriever.name: {problem}")
        super().__init__(corpus.task, corpus.store, corpus.retriever, None, corpus.warn, settings)
        self._settings, self._progress = settings, progress
        self._open_client = partial(opener, "embedding", settings, cache, settings.dimensions)
        # Use of the embedding model by the last search, for the metadata.
        self.usage: PoolingUse | None = None

    async def embed(self) -> None:
        """Embed the documents that have no vector yet; raise as `search`."""
        async with self._open_client() as client:
            await self._embed(client)

    async def search(
        self,
        topics: list[Topic],
        fields: tuple[QueryField, ...],
        depth: int,
        done: Callable[[], None],
    ) -> list[list[Candidate]]:
        """Search by the vectors.

        Documents without one are embedded first, and stored also if the server fails. In a dry run
        that lacks a vector, documents from all over the corpus stand for those of the search.
        """
        settings = self._settings
        texts = [settings.render_query(sanitize(build_query(topic, fields))) for topic in topics]
        async with self._open_client() as client:
            sent_before = client.counts.requests
            index = await self._embed(client)
            wrapped = [
                client.wrap(text, topic.id) for text, topic in zip(texts, topics, strict=True)
            ]
            queries = await client.embed(wrapped)
            client.raise_on_misses()
            self.usage = PoolingUse.from_client(client, settings, index.dimensions)
            has_invented_vectors = (
                isinstance(client.engine, DryRunEngine) and client.counts.requests > sent_before
            )
            if has_invented_vectors:
                return [self._spread(topic, depth, done) for topic in topics]
        is_hybrid = self.retriever.kind.open_stage is not None
        pool = max(depth, settings.pool) if is_hybrid else depth
        rankings = []
        for ranking in index.retrieve(topics, read_vectors(queries), pool) if topics else ():
            rankings.append(ranking)
            done()
        if not is_hybrid:
            return rankings
        by_words = await super().search(topics, fields, pool, lambda: None)
        weights = [1.0, settings.weight]
        return [
            fuse_candidates([words, dense], weights, settings.k)[:depth]
            for words, dense in zip(by_words, rankings, strict=True)
        ]

    async def _embed(self, client: PoolingClient) -> DenseIndex:
        """Return the index of the client's model, after embedding the documents without a vector."""
        index = DenseIndex(self.store, self._settings, client.engine_info)
        missing = index.find_missing()
        if not len(missing):
            return index
        if client.engine is None:
            raise ReplayMiss(
                f"{index.folder}: {len(missing):,} of {len(self.store):,} documents have no vector of "
                f"{client.engine_info.model}; embed them with `touche-llm index` and the address of its server "
                "(`dense.url`)"
            )
        with self._progress.stage("embedding documents", len(missing), client.counts) as done:
            if isinstance(client.engine, DryRunEngine):
                for rows in split_rows(missing, client.batch):
                    await index.embed(client, rows)
                    for _ in rows:
                        done()
            else:
                await index.embed_missing(client, done)
        return index

    def _spread(self, topic: Topic, depth: int, done: Callable[[], None]) -> list[Candidate]:
        """Return documents from all over the corpus, as many as a search would find."""
        rows = np.linspace(0, len(self.store) - 1, min(depth, len(self.store))).astype(np.int64)
        ids = self.store.get_ids(rows.tolist())
        done()
        return [
            Candidate(topic.id, document_id, rank, -float(rank))
            for rank, document_id in enumerate(ids, start=1)
        ]
