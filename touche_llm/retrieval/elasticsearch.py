"""First stage and documents in an Elasticsearch index, and the loader of a corpus into it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from touche_llm.corpus.json_lines import CorpusFile, OnBadLine, Reader, SkippedLines
from touche_llm.data.concurrency import TransientFailure
from touche_llm.data.io import is_word, sha256
from touche_llm.data.records import Candidate, Document, Model, Topic
from touche_llm.data.topics import build_query
from touche_llm.errors import BadLine, DataError, UsageError, Warn
from touche_llm.retrieval.base import Corpus, QueryField
from touche_llm.retrieval.elasticsearch_server import (
    RETRYABLE_STATUSES,
    ElasticsearchSettings,
    Server,
    describe_refusal,
)
from touche_llm.tasks.task import Task
from touche_llm.text import STOP_WORDS

if TYPE_CHECKING:  # the client is loaded when a server is opened
    from elasticsearch import Elasticsearch

# The analysis of text/__init__.py in Elasticsearch's terms. Lucene refuses terms of more than 32,766 bytes.
ANALYSIS = (
    "pattern (?U)\\b\\w\\w+\\b, lower case, Lucene's 33 English stop words, Snowball English stemmer, "
    "terms cut at 255 characters"
)
META = "touche-llm"


class ElasticManifest(Model, strict=True):
    """Source and settings of an index, stored in the `_meta` of its mapping.

    `documents` is None until all of them are loaded.
    """

    format: Literal[2] = 2
    corpus: str
    sha256: str
    k1: float
    b: float
    analysis: str
    documents: int | None = None
    bad_lines: int | None = None


def build_index_body(manifest: ElasticManifest) -> dict[str, Any]:
    """Build settings and mappings of an index: one analyzed field with BM25, the others verbatim.

    `id` breaks ties, since Elasticsearch does not sort by `_id`.
    """
    index: dict[str, Any] = {
        "similarity": {"touche": {"type": "BM25", "k1": manifest.k1, "b": manifest.b}},
        "analysis": {
            "tokenizer": {"touche": {"type": "pattern", "pattern": r"(?U)\b\w\w+\b", "group": 0}},
            "filter": {
                "touche_stop": {"type": "stop", "stopwords": sorted(STOP_WORDS)},
                "touche_stem": {"type": "snowball", "language": "English"},
                "touche_cut": {"type": "truncate", "length": 255},
            },
            "analyzer": {
                "touche": {
                    "type": "custom",
                    "tokenizer": "touche",
                    "filter": ["lowercase", "touche_stop", "touche_stem", "touche_cut"],
                }
            },
        },
    }
    text = {"type": "text", "analyzer": "touche", "similarity": "touche", "index_options": "freqs"}
    properties = {"id": {"type": "keyword"}, "text": text}
    return {
        "settings": {"index": index},
        "mappings": {"dynamic": "strict", "_meta": {META: manifest.model_dump()}, "properties": properties},
    }


# Max documents of a request for their fields.
_FIELDS_AT_ONCE = 100
# Max documents of a batch to load, and max bytes of a request unless one document has more.
_BATCH, _REQUEST_BYTES = 500, 8 * 2**20
# Statuses of a stored document: created, or there already from an earlier load or a request whose reply was lost.
_STORED = (201, 409)
_NOTICE_EVERY = 60.0  # seconds


def _read_manifest(name: str, client: Elasticsearch) -> ElasticManifest | None:
    """Return the manifest of an index; None if there is no such index.

    Raises:
        UsageError: The name stands for several indices, or for one that this version did not create.
    """
    response = client.options(ignore_status=404).indices.get(index=name)
    if response.meta.status == 404:
        return None
    found = response.body if isinstance(response.body, dict) else {}
    try:
        (index,) = found.values()
        return ElasticManifest.model_validate(index["mappings"]["_meta"][META])
    except (ValueError, LookupError, TypeError):
        raise UsageError(
            f"{name}: no index that `touche-llm index` of this version created ({len(found)} indices of this name); "
            "name another one (`elasticsearch.index`)"
        ) from None


def _check(manifest: ElasticManifest, place: str, k1: float, b: float) -> None:
    """Raise UsageError if an index has other parameters or another analysis."""
    if manifest.analysis != ANALYSIS:
        raise UsageError(f"{place}: loaded by another version of this program; load the corpus into another index")
    for name, value, own in (("k1", k1, manifest.k1), ("b", b, manifest.b)):
        if own != value:
            raise UsageError(
                f"{place}: has {name} {own}, not {value}; use the index's own (`retriever.{name}: {own}`), or load the "
                "corpus into another index (`elasticsearch.index`) with yours"
            )


class ElasticIndex(Corpus):
    """Complete index of Elasticsearch.

    A stage that sends requests to the model fetches its documents first; `get` takes them from a temporary database
    then, and the event loop never waits for Elasticsearch. Other documents are fetched when they are needed.
    """

    def __init__(self, task: Task, settings: ElasticsearchSettings, *, k1: float, b: float, warn: Warn) -> None:
        """Open the index.

        Raises:
            UsageError: The client is not installed, this program did not create the index, or it has other settings.
            DataError: There is no such index, or it is not complete.
            EngineError: As `Server`.
        """
        self.task, self.candidates, self.documents = task, self, self
        self.empty = (
            f"{settings.url}, index {settings.index}: no document has a word of any topic; see `retriever.query`"
        )
        self._name, place = settings.index, f"{settings.url}: index {settings.index}"
        self._server = Server(settings, warn)
        try:
            # Not retried, since a stage opens the index in its event loop.
            found = self._server.request(f"index {self._name}", partial(_read_manifest, self._name), once=True)
            if found is None or found.documents is None:
                problem = f"incomplete, since loading {found.corpus} was interrupted" if found else "no such index"
                raise DataError(
                    f"{place}: {problem}; load the corpus, or resume with the same file: "
                    f"`touche-llm index --retriever elasticsearch --elasticsearch {settings.url} "
                    f"--elasticsearch-index {settings.index} --corpus FILE`"
                )
            _check(found, place, k1, b)
        except BaseException:
            self._server.close()
            raise
        self.manifest = found
        self.description = {
            "search engine": settings.url,
            "engine": f"Elasticsearch {self._server.version}",
            "index": settings.index,
            "loaded from": self.manifest.corpus,
            "sha256": self.manifest.sha256,
            "documents": found.documents,
            "bad lines": self.manifest.bad_lines or 0,
        }
        # A temporary file that SQLite deletes; documents that the index lacks have no text.
        self._fetched = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._fetched.execute("CREATE TABLE documents (id TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID")

    def close(self) -> None:
        """Close the connection, and delete the fetched documents."""
        super().close()
        self._fetched.close()
        self._server.close()

    async def search(
        self, topics: list[Topic], fields: tuple[QueryField, ...], depth: int, done: Callable[[], None]
    ) -> list[list[Candidate]]:
        """Return the best documents of each topic; see the base class.

        By descending score, equal scores by ascending document id, also where the last place is tied. Scores are
        Lucene's BM25 with the statistics of all shards.
        """
        rankings = []
        for topic in topics:
            found = await self._search(topic.id, build_query(topic, fields), depth)
            rankings.append([Candidate(topic.id, ident, rank, score) for rank, (ident, score) in enumerate(found, 1)])
            done()
        return rankings

    async def fetch(self, document_ids: Iterable[str]) -> None:
        """Fetch documents that were not fetched before; ids that the index lacks are no error."""
        for part in self._split_wanted(document_ids):
            await self._server.request_async(_describe(part), partial(self._fetch, part))

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the ids that the index lacks, in the order given."""
        wanted = list(dict.fromkeys(document_ids))
        for part in self._split_wanted(wanted):
            self._server.request(_describe(part), partial(self._fetch, part))
        return [ident for ident in wanted if self._row(ident) == (None,)]

    def get(self, document_id: str) -> Document:
        """Return the document of this id; raises DataError if there is none, and EngineError as `Server.request`."""
        if self.find_unknown([document_id]):
            raise DataError(f"{self._name}: document {document_id!r} is not in this index of Elasticsearch")
        return Document(document_id, *self._row(document_id))

    def _split_wanted(self, document_ids: Iterable[str]) -> list[list[str]]:
        """Return the ids that were not fetched before, in the parts of a request."""
        wanted = [ident for ident in dict.fromkeys(document_ids) if self._row(ident) is None]
        return [wanted[start : start + _FIELDS_AT_ONCE] for start in range(0, len(wanted), _FIELDS_AT_ONCE)]

    def _row(self, document_id: str) -> Any:
        return self._fetched.execute("SELECT text FROM documents WHERE id = ?", (document_id,)).fetchone()

    def _fetch(self, ids: list[str], client: Elasticsearch) -> None:
        """Fetch documents; None is stored as the text of one that the index lacks."""
        rows = []
        for wanted, document in zip(ids, client.mget(index=self._name, ids=ids, source="text")["docs"], strict=True):
            if "error" in document:
                raise self._server.error(f"document {wanted}: {describe_refusal(document['error'])}")
            if document["_id"] != wanted:
                raise self._server.error(f"document {wanted}: the reply has another, {document['_id']!r:.80}")
            rows.append((wanted, document["_source"]["text"] if document["found"] else None))
        self._fetched.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?)", rows)

    async def _search(self, topic_id: str, query: str, depth: int) -> list[tuple[str, float]]:
        """Return ids and scores of the best documents, in order."""
        what = f"search for topic {topic_id}"

        def send(client: Elasticsearch) -> list[tuple[str, float]]:
            reply = client.search(
                index=self._name,
                query={"match": {"text": {"query": query}}},
                size=depth,
                sort=[{"_score": "desc"}, {"id": "asc"}],
                track_scores=True,
                track_total_hits=False,
                source=False,
                search_type="dfs_query_then_fetch",
                allow_partial_search_results=False,
            )
            if reply["timed_out"] or reply["_shards"]["failed"]:
                failed = reply["_shards"]["failed"]
                raise self._server.error(f"{what}: only a part of the index was searched ({failed} shards failed)")
            hits = [(hit["_id"], float(hit["_score"])) for hit in reply["hits"]["hits"]]
            if not all(is_word(ident) for ident, _ in hits):
                raise self._server.error(f"{what}: a document id that is not one printable word")
            return sorted(hits, key=lambda hit: (-hit[1], hit[0]))

        return await self._server.request_async(what, send)


def _describe(ids: list[str]) -> str:
    return f"documents {ids[0]} and {len(ids) - 1} more"


def load_corpus(
    corpus: Path,
    read: Reader,
    settings: ElasticsearchSettings,
    *,
    k1: float,
    b: float,
    skip_bad_lines: bool,
    warn: Warn,
) -> ElasticManifest:
    """Load a corpus into an index, unless it is loaded; resume a load that was interrupted.

    One batch of documents is in memory at a time, and the ids of all. The index is marked as complete only after all
    documents were counted in it.

    Raises:
        DataError: The corpus cannot be read, has a bad line (unless `skip_bad_lines`) or changes while it is read.
        UsageError: The index holds another corpus, has other settings, or was not created by this program.
        EngineError: Elasticsearch cannot be reached or refuses; the same command resumes.
    """
    source, name = CorpusFile(corpus, read), settings.index
    source.check()
    wanted = ElasticManifest(corpus=corpus.name, sha256=sha256(corpus), k1=k1, b=b, analysis=ANALYSIS)
    place = f"{settings.url}, index {name}"
    skipped = SkippedLines(warn)
    with Server(settings, warn) as server:
        fetch = partial(server.request, f"index {name}", partial(_read_manifest, name))
        found = fetch()
        if found is None:
            server.request(f"creating the index {name}", partial(_create, server, wanted, settings))
            warn(f"loading {corpus} into {place}")
            # Another process may have created it meanwhile, of another corpus.
            found = fetch() or wanted
        elif found.documents is None:
            warn(f"{place}: an earlier load was interrupted; resuming without the documents that are stored")
        if found.sha256 != wanted.sha256:
            raise UsageError(
                f"{place}: has another corpus, or another version of {found.corpus}; delete the index, or name another "
                "one (`elasticsearch.index`)"
            )
        _check(found, place, k1, b)
        if found.bad_lines and not skip_bad_lines:
            raise UsageError(
                f"{place}: was loaded without {found.bad_lines} bad lines; allow that with `skip_bad_lines: true`, or "
                "correct the corpus and name another index (`elasticsearch.index`)"
            )
        if found.documents is not None:
            return found
        documents = _store_all(
            server, name, source, _read_distinct(source, skipped.add if skip_bad_lines else None), warn
        )
        _check_count(server, name, documents, corpus)
        complete = wanted.model_copy(update={"documents": documents, "bad_lines": skipped.count})
        meta = {META: complete.model_dump()}
        server.request(f"completing the index {name}", lambda client: client.indices.put_mapping(index=name, meta=meta))
    if skipped.count:
        warn(f"left out {skipped.count} bad lines of {corpus}")
    return complete


def _create(server: Server, manifest: ElasticManifest, settings: ElasticsearchSettings, client: Elasticsearch) -> None:
    response = client.options(ignore_status=400).indices.create(index=settings.index, **build_index_body(manifest))
    if response.meta.status == 400:
        refusal = describe_refusal(response.body["error"])
        if not refusal.startswith("resource_already_exists_exception"):
            raise server.error(f"cannot create the index {settings.index}: {refusal}")


def _read_distinct(source: CorpusFile, on_bad_line: OnBadLine | None) -> Iterator[tuple[int, Document]]:
    """Yield the documents of a corpus with their lines; a repeated id makes a bad line."""
    seen: set[str] = set()
    for line, document in source.read(on_bad_line):
        if document.id in seen:
            bad = BadLine(source, line, f"document {document.id}: the id occurs already in an earlier line")
            if on_bad_line is None:
                raise bad
            on_bad_line(bad)
        else:
            seen.add(document.id)
            yield line, document


def _store_all(server: Server, name: str, source: CorpusFile, rows: Iterator[tuple[int, Document]], warn: Warn) -> int:
    """Store documents in an index, and return their number; those that it has already stay."""
    count, noticed = 0, time.monotonic()
    try:
        while batch := list(islice(rows, _BATCH)):
            left = {document.id: document.text for _, document in batch}
            what = f"documents of lines {batch[0][0]} to {batch[-1][0]} of {source}"
            server.request(what, partial(_store, server, name, left))
            count += len(batch)
            if time.monotonic() - noticed > _NOTICE_EVERY:
                noticed = time.monotonic()
                warn(f"{count:,} documents so far")
    except (KeyboardInterrupt, asyncio.CancelledError):
        warn(f"index {name}: {count:,} documents are stored; the same command resumes")
        raise
    return count


def _store(server: Server, name: str, left: dict[str, str], client: Elasticsearch) -> None:
    """Store texts by id, and keep in `left` only those that a busy server refuses."""
    from elasticsearch.helpers import streaming_bulk

    actions = [{"_op_type": "create", "_id": ident, "id": ident, "text": text} for ident, text in left.items()]
    busy = "the reply lacks them"
    for _, reply in streaming_bulk(
        client,
        actions,
        index=name,
        chunk_size=len(actions),
        max_chunk_bytes=_REQUEST_BYTES,
        raise_on_error=False,
        filter_path=["items.*._id", "items.*.status", "items.*.error"],
    ):
        item = reply["create"]
        refusal = f"HTTP {item['status']}: {describe_refusal(item.get('error'))}"
        if item["status"] in RETRYABLE_STATUSES:
            busy = refusal
        elif item["status"] in _STORED:
            del left[item["_id"]]
        else:
            raise server.error(f"document {item['_id']}: {refusal}")
    if left:
        raise TransientFailure(f"{len(left)} documents refused: {busy}")


def _check_count(server: Server, name: str, documents: int, corpus: Path) -> None:
    if not documents:
        raise DataError(f"{corpus}: no usable document in it")
    server.request(f"refresh of {name}", lambda client: client.indices.refresh(index=name))
    count = server.request(f"count of {name}", lambda client: client.count(index=name)["count"])
    if count != documents:
        raise server.error(
            f"index {name}: has {count!r:.20} documents, not {documents}; if fewer, run the command again, which "
            "loads the missing ones; if more, another program writes to this index: delete it or name another"
        )
