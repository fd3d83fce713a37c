"""Loader of a corpus into Elasticsearch, in batches; an interrupted load can be resumed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import Field

from touche_llm.corpus.json_lines import Reader, SkippedLines
from touche_llm.data.io import read_file_state, sha256
from touche_llm.data.records import Document
from touche_llm.data.transport import TransientFailure
from touche_llm.errors import BadLine, DataError, UsageError, Warn
from touche_llm.retrieval.elasticsearch import (
    ANALYSIS,
    FORMAT,
    ElasticManifest,
    Shards,
    build_index_body,
    build_meta,
    fetch_field,
    fetch_manifest,
    open_server,
)
from touche_llm.retrieval.settings import RETRYABLE_STATUSES, ElasticReply, ElasticsearchSettings

if TYPE_CHECKING:  # the client is loaded when a server is opened
    from elastic_transport import ApiResponse
    from elasticsearch import Elasticsearch

    from touche_llm.retrieval.elasticsearch_server import Server

# Max documents of one request, and the bytes after which no other document is added to it.
_BATCH, _BATCH_BYTES = 500, 8 * 2**20
# Max bytes of an id in Elasticsearch; a longer one fails the whole request.
_MAX_ID_BYTES = 512
_NOTICE_EVERY = 60.0  # seconds

_Batch = dict[str, tuple[int, tuple[bytes, bytes]]]


class _Item(ElasticReply):
    id: str = Field(alias="_id")
    status: int
    error: Any = None


class _Created(ElasticReply):
    create: _Item


class _BulkReply(ElasticReply):
    items: list[_Created]


class _Count(ElasticReply):
    count: int
    shards: Shards = Field(alias="_shards")


async def load_corpus(
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
    before = read_file_state(corpus)
    wanted = ElasticManifest(format=FORMAT, corpus=corpus.name, sha256=sha256(corpus), k1=k1, b=b, analysis=ANALYSIS)
    place = f"{settings.url}, index {settings.index}"
    with open_server(settings, warn) as server:
        found = await fetch_manifest(server, settings.index)
        resumed = found is not None
        if found is None:
            await _create(server, wanted, settings)
            warn(f"loading {corpus} into {place}")
            # Another process may have created it meanwhile.
            found = await fetch_manifest(server, settings.index)
        elif found.documents is None:
            warn(f"{place}: an earlier load was interrupted; resuming without the documents that are stored")
        _check(found, wanted, skip_bad_lines, place)
        if found is not None and found.documents is not None:
            return found
        load = _Load(server, settings.index, corpus, skip_bad_lines=skip_bad_lines, resumed=resumed, warn=warn)
        try:
            for line, document in read(corpus, load.bad_line if skip_bad_lines else None):
                await load.add(line, document)
            await load.flush()
        except (KeyboardInterrupt, asyncio.CancelledError):
            warn(f"{place}: {load.documents:,} documents are stored; the same command resumes")
            raise
        if read_file_state(corpus) != before:
            raise DataError(
                f"{corpus}: changed while it was read; delete the index {settings.index} or name another, and run the "
                "command again"
            )
        if not load.documents:
            raise DataError(f"{corpus}: no usable document in it")
        await _check_count(server, settings.index, load.documents)
        # An index that was deleted meanwhile is created again by the next document, without these settings.
        _check(await fetch_manifest(server, settings.index), wanted, skip_bad_lines, place)
        complete = wanted.model_copy(update={"documents": load.documents, "bad_lines": load.left_out.count})
        await server.request(
            f"completing the index {settings.index}",
            lambda client: client.indices.put_mapping(index=settings.index, meta=build_meta(complete)),
        )
    if load.known:
        warn(f"{load.known:,} of the documents are from an earlier load")
    if load.left_out.count:
        warn(f"left out {load.left_out.count} bad lines of {corpus}")
    return complete


async def _create(server: Server, manifest: ElasticManifest, settings: ElasticsearchSettings) -> None:
    body = build_index_body(manifest, settings.shards)

    def create(client: Elasticsearch) -> ApiResponse[Any]:
        response = client.options(ignore_status=400).indices.create(index=settings.index, **body)
        if response.meta.status == 400:
            refusal = server.describe_refusal(response.body)
            if not refusal.startswith("resource_already_exists_exception"):
                raise server.error(f"cannot create the index {settings.index}: {refusal}")
        return response

    await server.request(f"creating the index {settings.index}", create)


def _check(found: ElasticManifest | None, wanted: ElasticManifest, skip_bad_lines: bool, place: str) -> None:
    """Raise UsageError if an index has another corpus or other settings."""
    other = "delete the index, or name another one (`elasticsearch.index`)"
    if found is None:
        raise UsageError(f"{place}: deleted just now by another program; run the command again")
    if found.sha256 != wanted.sha256:
        raise UsageError(f"{place}: has another corpus, or another version of {found.corpus}; {other}")
    for name in ("k1", "b", "analysis"):
        own, value = getattr(found, name), getattr(wanted, name)
        if own != value:
            raise UsageError(f"{place}: has {name} {own}, not {value}; {other}")
    if found.bad_lines and not skip_bad_lines:
        raise UsageError(
            f"{place}: was loaded without {found.bad_lines} bad lines; allow that with `skip_bad_lines: true`, or "
            f"correct the corpus and {other}"
        )


async def _check_count(server: Server, name: str, documents: int) -> None:
    await server.request(f"refresh of {name}", lambda client: client.indices.refresh(index=name))
    response = await server.request(f"count of {name}", lambda client: client.count(index=name))
    reply = server.parse(_Count, response)
    if reply.count != documents or reply.shards.failed:
        raise server.error(
            f"index {name}: has {reply.count:,} documents, not {documents:,}; if fewer, run the command again, which "
            "loads the missing ones; if more, another program writes to this index: delete it or name another"
        )


class _Load:
    """Load in progress: the next batch, and counts of the documents in the index."""

    def __init__(
        self, server: Server, name: str, corpus: Path, *, skip_bad_lines: bool, resumed: bool, warn: Warn
    ) -> None:
        # Number of documents in the index, and of those that an earlier load sent.
        self.documents = self.known = 0
        self.left_out = SkippedLines(corpus, warn)
        self._server, self._name, self._corpus = server, name, corpus
        self._skip, self._resumed, self._warn = skip_bad_lines, resumed, warn
        # The line of the corpus and the two lines of the request, by id.
        self._batch: _Batch = {}
        self._bytes = 0
        self._noticed = time.monotonic()

    def bad_line(self, bad: BadLine) -> None:
        """Skip a bad line, or raise it."""
        if not self._skip:
            raise bad
        self.left_out.add(bad, self.documents)

    async def add(self, line: int, document: Document) -> None:
        """Add a document to the batch; send the batch when it is full."""
        if len(document.id.encode()) > _MAX_ID_BYTES:
            self._bad(line, document.id, f"the id is longer than {_MAX_ID_BYTES} bytes, the max of Elasticsearch")
        elif document.id in self._batch:
            self._bad(line, document.id, f"the id occurs already in line {self._batch[document.id][0]}")
        else:
            source = orjson.dumps({"id": document.id, "text": document.text, "line": line})
            self._batch[document.id] = line, (orjson.dumps({"create": {"_id": document.id}}), source)
            self._bytes += len(source)
        if len(self._batch) >= _BATCH or self._bytes >= _BATCH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Send the batch, without the documents that an earlier load sent."""
        batch, self._batch, self._bytes = self._batch, {}, 0
        if self._resumed and batch:
            stored = await fetch_field(self._server, self._name, list(batch), "line")
            self.known += self._count_stored(stored, {ident: batch.pop(ident)[0] for ident in stored})
        if batch:
            await self._send(batch)
        if time.monotonic() - self._noticed > _NOTICE_EVERY:
            self._noticed = time.monotonic()
            self._warn(f"{self.documents:,} documents so far")

    def _count_stored(self, stored: dict[str, int], lines: dict[str, int]) -> int:
        """Count the documents of the index that came from these lines; an id from another line is a duplicate."""
        count = 0
        for ident, line in lines.items():
            if ident not in stored:
                raise self._server.error(f"document {ident}: disappeared; does another program write to this index?")
            if stored[ident] == line:
                count += 1
            else:
                self._bad(line, ident, f"the id occurs already in line {stored[ident]}")
        self.documents += count
        return count

    async def _send(self, batch: _Batch) -> None:
        """Send a batch; documents that a busy server refuses are sent again."""
        # Lines of ids that the index has already, from an earlier line or from a request that seemed to fail.
        taken: dict[str, int] = {}
        lines = [line for line, _ in batch.values()]
        what = f"documents of lines {min(lines)} to {max(lines)} of {self._corpus}"

        def send(client: Elasticsearch) -> ApiResponse[Any]:
            operations: Any = [part for _, parts in batch.values() for part in parts]
            response = client.bulk(
                index=self._name, operations=operations, filter_path=["items.*._id", "items.*.status", "items.*.error"]
            )
            items = [item.create for item in self._server.parse(_BulkReply, response).items]
            if [item.id for item in items] != list(batch):
                raise self._server.error(f"{what}: the reply is about other documents")
            busy = ""
            for item in items:
                if item.status in (200, 201):
                    self.documents += 1
                elif item.status == 409:
                    taken[item.id] = batch[item.id][0]
                else:
                    refusal = f"HTTP {item.status}: {self._server.describe_refusal({'error': item.error})}"
                    if item.status in RETRYABLE_STATUSES:
                        busy = refusal
                        continue
                    if item.status >= 500:
                        raise self._server.error(f"document {item.id}: {refusal}")
                    self._bad(batch[item.id][0], item.id, f"Elasticsearch refuses it: {refusal}")
                del batch[item.id]
            if busy:
                raise TransientFailure(f"{len(batch)} documents refused: {busy}")
            return response

        await self._server.request(what, send)
        if taken:
            self._count_stored(await fetch_field(self._server, self._name, list(taken), "line"), taken)

    def _bad(self, line: int, ident: str, problem: str) -> None:
        self.bad_line(BadLine(self._corpus, line, f"document {ident}: {problem}"))
