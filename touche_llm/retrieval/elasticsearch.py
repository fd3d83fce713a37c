"""Search and document access in an Elasticsearch index."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from touche_llm.data.io import is_word
from touche_llm.data.records import Candidate, Document, Topic
from touche_llm.data.topics import build_query
from touche_llm.data.transport import run_coroutine
from touche_llm.errors import DataError, UsageError, Warn, needs_extra
from touche_llm.retrieval.settings import ElasticReply, ElasticsearchSettings
from touche_llm.text.analysis import STOP_WORDS

if TYPE_CHECKING:
    from elastic_transport import ApiResponse
    from elasticsearch import Elasticsearch

    from touche_llm.retrieval.elasticsearch_server import Server


FORMAT = 1
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

    format: int
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
        "mappings": {"dynamic": "strict", "_meta": build_meta(manifest), "properties": properties},
    }


def build_meta(manifest: ElasticManifest) -> dict[str, Any]:
    """Build the `_meta` of the mapping."""
    return {META: manifest.model_dump()}


# Max documents of a request.
_TEXTS_AT_ONCE = 100


class _Source(ElasticReply):
    text: str | None = None
    line: int | None = None


class _Got(ElasticReply):
    id: str = Field(alias="_id")
    found: bool = False
    source: _Source | None = Field(None, alias="_source")
    error: Any = None


class _Many(ElasticReply):
    docs: list[_Got]


class Shards(ElasticReply):
    """Number of shards that failed."""

    failed: int


class _Hit(ElasticReply):
    id: str = Field(alias="_id")
    score: float = Field(alias="_score", allow_inf_nan=False)


class _Hits(ElasticReply):
    hits: list[_Hit]


class _Found(ElasticReply):
    timed_out: bool
    shards: Shards = Field(alias="_shards")
    hits: _Hits


async def fetch_manifest(server: Server, name: str) -> ElasticManifest | None:
    """Return the manifest of an index, or None if there is no such index; raises as `parse_manifest`."""
    return parse_manifest(name, await server.request(f"index {name}", partial(_get_index, name)))


def parse_manifest(name: str, response: ApiResponse[Any]) -> ElasticManifest | None:
    """Parse the manifest of an index from its description; return None if there is no such index.

    Raises:
        UsageError: The name stands for several indices, or for one that this program did not create.
    """
    if response.meta.status == 404:
        return None
    found = response.body if isinstance(response.body, dict) else {}
    if len(found) != 1:
        raise UsageError(f"{name}: stands for {len(found)} indices in Elasticsearch; name one (`elasticsearch.index`)")
    try:
        meta = next(iter(found.values()))["mappings"]["_meta"][META]
        version = meta.get("format", FORMAT)
        if version == FORMAT:
            return ElasticManifest.model_validate(meta)
    except (LookupError, TypeError, AttributeError, ValidationError):
        raise UsageError(
            f"{name}: `touche-llm index` did not create this index; name another one (`elasticsearch.index`)"
        ) from None
    raise UsageError(
        f"{name}: the index has format {version!r:.20}, this program reads {FORMAT}; load the corpus into an index of "
        "another name"
    )


def _get_index(name: str, client: Elasticsearch) -> ApiResponse[Any]:
    return client.options(ignore_status=404).indices.get(index=name)


class ElasticIndex:
    """Complete index: a first stage and a source of documents.

    A stage that sends requests to the model fetches its documents first; `get` takes them from a temporary database
    then, and the event loop never waits for Elasticsearch. Other documents are fetched when they are needed.
    """

    def __init__(self, settings: ElasticsearchSettings, *, k1: float, b: float, warn: Warn) -> None:
        """Open the index.

        Raises:
            UsageError: The client is not installed, or this program did not create the index.
            DataError: There is no such index, or it is not complete or has other settings.
            EngineError: As `Server`.
        """
        self._name = settings.index
        self._server = open_server(settings, warn)
        try:
            # Not retried, since a stage opens the index in its event loop.
            response = self._server.request_once(f"index {self._name}", partial(_get_index, self._name))
            self.manifest = _check_manifest(parse_manifest(self._name, response), settings, k1, b)
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
            ordered = sorted(found, key=lambda hit: (-hit.score, hit.id))
            rankings.append([Candidate(topic.id, hit.id, rank, hit.score) for rank, hit in enumerate(ordered, start=1)])
            done()
        return rankings

    async def fetch(self, document_ids: Iterable[str]) -> None:
        """Fetch documents that were not fetched before; ids that the index lacks are no error."""
        wanted = [ident for ident in dict.fromkeys(document_ids) if self._row(ident) is None]
        for start in range(0, len(wanted), _TEXTS_AT_ONCE):
            part = wanted[start : start + _TEXTS_AT_ONCE]
            found = await fetch_field(self._server, self._name, part, "text")
            rows = [(ident, found.get(ident)) for ident in part]
            self._fetched.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?)", rows)

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the ids that the index lacks, in the order given."""
        wanted = list(dict.fromkeys(document_ids))
        return [ident for ident in wanted if self._text(ident, wanted) is None]

    def get(self, document_id: str) -> Document:
        """Return the document of this id; raises DataError if there is none, and EngineError as `Server.request`."""
        text = self._text(document_id, [document_id])
        if text is None:
            raise DataError(f"{self._name}: document {document_id!r} is not in this index of Elasticsearch")
        return Document(document_id, text)

    def _text(self, document_id: str, wanted: list[str]) -> str | None:
        """Return a text; if it was not fetched, all that are `wanted` are."""
        row = self._row(document_id)
        if row is None:
            run_coroutine(self.fetch(wanted))
            row = self._row(document_id)
            assert row is not None
        return row[0]

    def _row(self, document_id: str) -> tuple[str | None] | None:
        found = self._fetched.execute("SELECT text FROM documents WHERE id = ?", (document_id,))
        row: tuple[str | None] | None = found.fetchone()
        return row

    async def _search(self, topic_id: str, query: str, depth: int) -> list[_Hit]:
        response = await self._server.request(
            f"search for topic {topic_id}",
            lambda client: client.search(
                index=self._name,
                query={"match": {"text": {"query": query}}},
                size=depth,
                sort=[{"_score": "desc"}, {"id": "asc"}],
                track_scores=True,
                track_total_hits=False,
                source=False,
                search_type="dfs_query_then_fetch",
                allow_partial_search_results=False,
            ),
        )
        reply = self._server.parse(_Found, response)
        hits = reply.hits.hits
        problem = ""
        if reply.timed_out or reply.shards.failed:
            problem = f"only a part of the index was searched ({reply.shards.failed} shards failed)"
        elif len(hits) > depth or len({hit.id for hit in hits}) < len(hits):
            problem = f"{len(hits)} results, some of them repeated or beyond the requested {depth}"
        elif not all(is_word(hit.id) for hit in hits):
            problem = "a document id that is not one printable word"
        if problem:
            raise self._server.error(f"topic {topic_id}: {problem}")
        return hits


def _check_manifest(
    manifest: ElasticManifest | None, settings: ElasticsearchSettings, k1: float, b: float
) -> ElasticManifest:
    """Return the manifest; raise DataError unless the index is complete and has these settings."""
    place = f"{settings.url}: index {settings.index}"
    load = (
        f"touche-llm index --retriever elasticsearch --elasticsearch {settings.url} "
        f"--elasticsearch-index {settings.index} --corpus FILE"
    )
    if manifest is None:
        raise DataError(f"{place}: no such index; load the corpus with `{load}`")
    if manifest.documents is None:
        raise DataError(
            f"{place}: incomplete, since loading {manifest.corpus} was interrupted; resume it with `{load}` and the "
            "same file"
        )
    if manifest.analysis != ANALYSIS:
        raise DataError(f"{place}: loaded by another version of this program; load the corpus into another index")
    for name, value, own in (("k1", k1, manifest.k1), ("b", b, manifest.b)):
        if own != value:
            raise DataError(
                f"{place}: has {name} {own}, not {value}; use the index's own (`retriever.{name}: {own}`), or load the "
                "corpus into another index with yours"
            )
    return manifest


def open_server(settings: ElasticsearchSettings, warn: Warn) -> Server:
    """Return the server; raises UsageError if the client is not installed, and as `Server`."""
    with needs_extra("elasticsearch", "`retriever.name: elasticsearch`"):
        from touche_llm.retrieval.elasticsearch_server import Server
    return Server(settings, warn)


async def fetch_field(server: Server, name: str, ids: list[str], field: Literal["line", "text"]) -> dict[str, Any]:
    """Return a field of documents by id, without those that the index lacks; `ids` has at least one."""
    what = f"documents {ids[0]} and {len(ids) - 1} more"
    response = await server.request(what, lambda client: client.mget(index=name, ids=ids, source=field))
    documents = server.parse(_Many, response).docs
    if len(documents) != len(ids):
        raise server.error(f"{what}: the reply has {len(documents)} documents")
    found = {}
    for document, wanted in zip(documents, ids, strict=True):
        if document.error is not None:
            raise server.error(f"document {wanted}: {server.describe_refusal({'error': document.error})}")
        if document.id != wanted:
            raise server.error(f"{what}: the reply has another document, {server.clean(repr(document.id))}")
        if document.found:
            found[wanted] = getattr(document.source, field, None)
            if found[wanted] is None:
                raise server.error(f"document {wanted}: the reply lacks its {field}")
    return found
