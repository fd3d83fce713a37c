"""First stage and documents in an Elasticsearch index, and the loader of a corpus into it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from touche_llm.corpus.json_lines import Reader, SkippedLines
from touche_llm.data.concurrency import TransientFailure
from touche_llm.data.io import is_word, read_file_state, sha256
from touche_llm.data.records import Candidate, Document, Topic
from touche_llm.data.topics import build_query
from touche_llm.errors import BadLine, DataError, UsageError, Warn
from touche_llm.retrieval.elasticsearch_server import (
    RETRYABLE_STATUSES,
    ElasticsearchSettings,
    Server,
    describe_refusal,
)
from touche_llm.text.analysis import STOP_WORDS

if TYPE_CHECKING:  # the client is loaded when a server is opened
    from elasticsearch import Elasticsearch

FORMAT: Final = 1
# The analysis of text/analysis.py in Elasticsearch's terms. Lucene refuses terms of more than 32,766 bytes.
ANALYSIS = (
    "pattern (?U)\\b\\w\\w+\\b, lower case, Lucene's 33 English stop words, Snowball English stemmer, "
    "terms cut at 255 characters"
)
META = "touche-llm"


class ElasticManifest(BaseModel):
    """Source and settings of an index, stored in the `_meta` of its mapping.

    `documents` is None until all of them are loaded.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal[1] = FORMAT
    corpus: str
    sha256: str
    k1: float
    b: float
    analysis: str
    documents: int | None = None
    bad_lines: int | None = None


def build_index_body(manifest: ElasticManifest, shards: int | None) -> dict[str, Any]:
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
    if shards is not None:
        index["number_of_shards"] = shards
    text = {"type": "text", "analyzer": "touche", "similarity": "touche", "index_options": "freqs"}
    properties = {
        "id": {"type": "keyword"},
        "text": text,
        "line": {"type": "long", "index": False, "doc_values": False},
    }
    return {
        "settings": {"index": index},
        "mappings": {"dynamic": "strict", "_meta": {META: manifest.model_dump()}, "properties": properties},
    }


# Max documents of a request for their fields.
_FIELDS_AT_ONCE = 100
# Max documents of a request to load, and the bytes after which no other document is added to it.
_BATCH, _BATCH_BYTES = 500, 8 * 2**20
# Max bytes of an id in Elasticsearch; a longer one fails the whole request.
_MAX_ID_BYTES = 512
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


def _request_field(
    server: Server, name: str, ids: list[str], field: Literal["line", "text"]
) -> tuple[str, Callable[[Elasticsearch], dict[str, Any]]]:
    """Return the request of a field of documents: its description, and the function that sends it.

    The result has the values by id, without the documents that the index lacks; `ids` has at least one.
    """
    what = f"documents {ids[0]} and {len(ids) - 1} more"

    def send(client: Elasticsearch) -> dict[str, Any]:
        found = {}
        for wanted, document in zip(ids, client.mget(index=name, ids=ids, source=field)["docs"], strict=True):
            if "error" in document:
                raise server.error(f"document {wanted}: {describe_refusal(document['error'])}")
            if document["_id"] != wanted:
                raise server.error(f"{what}: the reply has another document, {document['_id']!r:.80}")
            if document["found"]:
                found[wanted] = document["_source"][field]
        return found

    return what, send


class ElasticIndex:
    """Complete index: a first stage and a source of documents.

    A stage that sends requests to the model fetches its documents first; `get` takes them from a temporary database
    then, and the event loop never waits for Elasticsearch. Other documents are fetched when they are needed.
    """

    def __init__(self, settings: ElasticsearchSettings, *, k1: float, b: float, warn: Warn) -> None:
        """Open the index.

        Raises:
            UsageError: The client is not installed, this program did not create the index, or it has other settings.
            DataError: There is no such index, or it is not complete.
            EngineError: As `Server`.
        """
        self._name = settings.index
        self._server = Server(settings, warn)
        try:
            # Not retried, since a stage opens the index in its event loop.
            found = self._server.request(f"index {self._name}", partial(_read_manifest, self._name), once=True)
            self.manifest = _require_complete(found, settings)
            _check(self.manifest, f"{settings.url}: index {settings.index}", k1, b)
        except BaseException:
            self._server.close()
            raise
        self.description: dict[str, str | int] = {
            "search engine": settings.url,
            "engine": f"Elasticsearch {self._server.version}",
            "index": settings.index,
            "loaded from": self.manifest.corpus,
            "sha256": self.manifest.sha256,
            "documents": self.manifest.documents or 0,
            "bad lines": self.manifest.bad_lines or 0,
        }
        # A temporary file that SQLite deletes; documents that the index lacks have no text.
        self._fetched = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._fetched.execute("CREATE TABLE documents (id TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID")

    def close(self) -> None:
        """Close the connection, and delete the fetched documents."""
        self._fetched.close()
        self._server.close()

    async def retrieve(
        self, topics: list[Topic], *, fields: tuple[str, ...], depth: int, done: Callable[[], None]
    ) -> list[list[Candidate]]:
        """Return the best documents of each topic; `done` is called after each.

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
            self._keep(part, await self._server.request_async(*_request_field(self._server, self._name, part, "text")))

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the ids that the index lacks, in the order given."""
        wanted = list(dict.fromkeys(document_ids))
        for part in self._split_wanted(wanted):
            self._keep(part, self._server.request(*_request_field(self._server, self._name, part, "text")))
        return [ident for ident in wanted if self._row(ident) == (None,)]

    def get(self, document_id: str) -> Document:
        """Return the document of this id; raises DataError if there is none, and EngineError as `Server.request`."""
        unknown = self.find_unknown([document_id])
        row = self._row(document_id)
        if unknown or row is None:
            raise DataError(f"{self._name}: document {document_id!r} is not in this index of Elasticsearch")
        return Document(document_id, row[0])

    def _split_wanted(self, document_ids: Iterable[str]) -> list[list[str]]:
        """Return the ids that were not fetched before, in the parts of a request."""
        wanted = [ident for ident in dict.fromkeys(document_ids) if self._row(ident) is None]
        return [wanted[start : start + _FIELDS_AT_ONCE] for start in range(0, len(wanted), _FIELDS_AT_ONCE)]

    def _keep(self, ids: list[str], texts: dict[str, str]) -> None:
        rows = [(ident, texts.get(ident)) for ident in ids]
        self._fetched.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?)", rows)

    def _row(self, document_id: str) -> Any:
        return self._fetched.execute("SELECT text FROM documents WHERE id = ?", (document_id,)).fetchone()

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


def _require_complete(manifest: ElasticManifest | None, settings: ElasticsearchSettings) -> ElasticManifest:
    """Return the manifest of a complete index; raise DataError if there is none."""
    if manifest is not None and manifest.documents is not None:
        return manifest
    problem = "no such index" if manifest is None else f"incomplete, since loading {manifest.corpus} was interrupted"
    raise DataError(
        f"{settings.url}: index {settings.index}: {problem}; load the corpus, or resume with the same file: "
        f"`touche-llm index --retriever elasticsearch --elasticsearch {settings.url} "
        f"--elasticsearch-index {settings.index} --corpus FILE`"
    )


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

    One batch of documents is in memory at a time. The index is marked as complete only after all documents were
    counted in it.

    Raises:
        DataError: The corpus cannot be read, has a bad line (unless `skip_bad_lines`) or changes while it is read.
        UsageError: The index holds another corpus, has other settings, or was not created by this program.
        EngineError: Elasticsearch cannot be reached or refuses; the next load skips the documents loaded before.
    """
    if not corpus.is_file():
        raise DataError(f"{corpus}: no such corpus file")
    before, name = read_file_state(corpus), settings.index
    wanted = ElasticManifest(corpus=corpus.name, sha256=sha256(corpus), k1=k1, b=b, analysis=ANALYSIS)
    place = f"{settings.url}, index {name}"
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
        _check_source(found, wanted, skip_bad_lines, place)
        if found.documents is not None:
            return found
        load = _Load(server, name, corpus, skip_bad_lines=skip_bad_lines, warn=warn)
        try:
            for line, document in read(corpus, load.bad_line if skip_bad_lines else None):
                load.add(line, document)
            load.flush()
        except (KeyboardInterrupt, asyncio.CancelledError):
            warn(f"{place}: {load.documents:,} documents are stored; the same command resumes")
            raise
        if read_file_state(corpus) != before:
            raise DataError(
                f"{corpus}: changed while it was read; delete the index {name} or name another, and run the command "
                "again"
            )
        _check_count(server, name, load.documents, corpus)
        complete = wanted.model_copy(update={"documents": load.documents, "bad_lines": load.left_out.count})
        meta = {META: complete.model_dump()}
        server.request(f"completing the index {name}", lambda client: client.indices.put_mapping(index=name, meta=meta))
    if load.known:
        warn(f"{load.known:,} of the documents were stored before")
    if load.left_out.count:
        warn(f"left out {load.left_out.count} bad lines of {corpus}")
    return complete


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


def _create(server: Server, manifest: ElasticManifest, settings: ElasticsearchSettings, client: Elasticsearch) -> None:
    body = build_index_body(manifest, settings.shards)
    response = client.options(ignore_status=400).indices.create(index=settings.index, **body)
    if response.meta.status == 400:
        refusal = describe_refusal(response.body["error"])
        if not refusal.startswith("resource_already_exists_exception"):
            raise server.error(f"cannot create the index {settings.index}: {refusal}")


def _check_source(found: ElasticManifest, wanted: ElasticManifest, skip_bad_lines: bool, place: str) -> None:
    """Raise UsageError if an index has another corpus or other settings."""
    other = "delete the index, or name another one (`elasticsearch.index`)"
    if found.sha256 != wanted.sha256:
        raise UsageError(f"{place}: has another corpus, or another version of {found.corpus}; {other}")
    _check(found, place, wanted.k1, wanted.b)
    if found.bad_lines and not skip_bad_lines:
        raise UsageError(
            f"{place}: was loaded without {found.bad_lines} bad lines; allow that with `skip_bad_lines: true`, or "
            f"correct the corpus and {other}"
        )


class _Load:
    """Load in progress: the next batch, and counts of the documents in the index."""

    def __init__(self, server: Server, name: str, corpus: Path, *, skip_bad_lines: bool, warn: Warn) -> None:
        # Number of documents in the index, and of those that were there before.
        self.documents = self.known = 0
        self.left_out = SkippedLines(warn)
        self._server, self._name, self._corpus = server, name, corpus
        self._skip, self._warn = skip_bad_lines, warn
        # Documents to send, by id, with their lines in the corpus.
        self._batch: dict[str, tuple[int, str]] = {}
        self._bytes = 0
        self._noticed = time.monotonic()

    def bad_line(self, bad: BadLine) -> None:
        """Skip a bad line, or raise it."""
        if not self._skip:
            raise bad
        self.left_out.add(bad)

    def add(self, line: int, document: Document) -> None:
        """Add a document to the batch; send the batch when it is full."""
        if len(document.id.encode()) > _MAX_ID_BYTES:
            self._bad(line, document.id, f"the id is longer than {_MAX_ID_BYTES} bytes, the max of Elasticsearch")
        elif document.id in self._batch:
            self._bad(line, document.id, f"the id occurs already in line {self._batch[document.id][0]}")
        else:
            self._batch[document.id] = line, document.text
            self._bytes += len(document.text.encode())
        if len(self._batch) >= _BATCH or self._bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the batch; documents that a busy server refuses are sent again."""
        if not self._batch:
            return
        lines = [line for line, _ in self._batch.values()]
        # Lines of ids that the index has already, from an earlier load or line, or a request that seemed to fail.
        taken: dict[str, int] = {}
        what = f"documents of lines {min(lines)} to {max(lines)} of {self._corpus}"
        self._server.request(what, partial(self._send, taken))
        if taken:
            self._count_stored(taken)
        self._bytes = 0
        if time.monotonic() - self._noticed > _NOTICE_EVERY:
            self._noticed = time.monotonic()
            self._warn(f"{self.documents:,} documents so far")

    def _send(self, taken: dict[str, int], client: Elasticsearch) -> None:
        """Send the batch, and keep in it only the documents that a busy server refuses."""
        from elasticsearch.helpers import streaming_bulk

        actions = [
            {"_op_type": "create", "_id": ident, "id": ident, "text": text, "line": line}
            for ident, (line, text) in self._batch.items()
        ]
        paths = ["items.*._id", "items.*.status", "items.*.error"]
        busy = "the reply lacks them"
        for is_stored, reply in streaming_bulk(
            client, actions, chunk_size=len(actions), index=self._name, raise_on_error=False, filter_path=paths
        ):
            ident, status = reply["create"]["_id"], reply["create"]["status"]
            refusal = f"HTTP {status}: {describe_refusal(reply['create'].get('error'))}"
            if status in RETRYABLE_STATUSES:
                busy = refusal
                continue
            line, _ = self._batch.pop(ident)
            if is_stored:
                self.documents += 1
            elif status == 409:
                taken[ident] = line
            elif status >= 500:
                raise self._server.error(f"document {ident}: {refusal}")
            else:
                self._bad(line, ident, f"Elasticsearch refuses it: {refusal}")
        if self._batch:
            raise TransientFailure(f"{len(self._batch)} documents refused: {busy}")

    def _count_stored(self, lines: dict[str, int]) -> None:
        """Count the documents of the index that came from these lines; an id from another line is a duplicate."""
        stored = self._server.request(*_request_field(self._server, self._name, list(lines), "line"))
        for ident, line in lines.items():
            if stored.get(ident) == line:
                self.documents += 1
                self.known += 1
            else:
                self._bad(line, ident, f"the id occurs already in line {stored.get(ident)}")

    def _bad(self, line: int, ident: str, problem: str) -> None:
        self.bad_line(BadLine(self._corpus, line, f"document {ident}: {problem}"))
