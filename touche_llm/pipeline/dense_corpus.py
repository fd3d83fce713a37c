"""Corpora searched by the vectors of their documents, alone or fused with BM25."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from touche_llm.data.records import Candidate, Topic
from touche_llm.data.topics import build_query
from touche_llm.errors import ReplayMiss, UsageError
from touche_llm.llm.pooling import PooledText, PoolingClient
from touche_llm.llm.recorder import RecordingEngine
from touche_llm.llm.settings import CacheConfig
from touche_llm.pipeline.corpora import LocalCorpus
from touche_llm.pipeline.engines import OpenPooling, describe_pooling, open_pooling
from touche_llm.pipeline.progress import Progress
from touche_llm.ranking.fusion import fuse_candidates
from touche_llm.retrieval.dense import DenseIndex, DenseSettings, find_dense_problem, read_vectors, split_rows
from touche_llm.retrieval.settings import QueryField
from touche_llm.text.sanitize import sanitize


class DenseCorpus(LocalCorpus):
    """A corpus in a document store, searched by vectors that an embedding model gives its documents.

    Attributes:
        usage: Use of the embedding model by the last search, for the metadata.
    """

    usage: Mapping[str, Any]

    def __init__(
        self,
        corpus: LocalCorpus,
        settings: DenseSettings,
        cache: CacheConfig,
        progress: Progress,
        opener: OpenPooling = open_pooling,
    ) -> None:
        """Take over an open corpus, whose retriever is `dense` or `hybrid`; the queries' vectors are cached.

        Raises:
            UsageError: The task ranks pairs of sentences.
        """
        if problem := find_dense_problem(corpus.task):
            raise UsageError(problem)
        super().__init__(corpus.task, corpus.store, corpus.retriever, None, corpus.warn)
        self._settings, self._progress = settings, progress
        self._open_client = partial(opener, "embedding", settings, cache, settings.dimensions)
        self.usage = {}

    async def embed(self) -> None:
        """Embed the documents that have no vector yet; raise as `search`."""
        async with self._open_client() as client:
            await self._embed(client)

    async def search(
        self, topics: list[Topic], fields: tuple[QueryField, ...], depth: int, done: Callable[[], None]
    ) -> list[list[Candidate]]:
        """Search by the vectors; documents without one are embedded first. See the base class.

        Raises:
            EngineError: The server failed; vectors so far are stored.
            ReplayMiss: There is no server, and a vector is missing.
            UsageError: Another process embeds the documents.
        """
        settings = self._settings
        texts = [PooledText(settings.render_query(sanitize(build_query(topic, fields))), topic.id) for topic in topics]
        async with self._open_client() as client:
            index = await self._embed(client)
            queries = await client.embed(texts)
            client.raise_on_misses()
            self.usage = {**describe_pooling(client, settings), "dimensions": index.dimensions}
            if isinstance(client.engine, RecordingEngine):
                return [self._spread(topic, depth, done) for topic in topics]
        is_hybrid = self.retriever.name == "hybrid"
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
            if isinstance(client.engine, RecordingEngine):
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
        return [Candidate(topic.id, document_id, rank, -float(rank)) for rank, document_id in enumerate(ids, start=1)]
