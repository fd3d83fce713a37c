"""First stage and documents in an Elasticsearch index, and the loader of a corpus into it."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field

from touche_llm.corpus.json_lines import CorpusFile, OnBadLine, Reader, SkippedLines
from touche_llm.data.files import sha256
from touche_llm.data.records import Candidate, Document, Model, Topic
from touche_llm.data.topics.reading import build_query
from touche_llm.engines.connections import to_line
from touche_llm.errors import (
    BadLine,
    DataError,
    EngineError,
    TransientFailure,
    UsageError,
    Warn,
    needs_extra,
)
from touche_llm.llm.retries import RetryNotice, retry
from touche_llm.retrieval.corpus import Corpus, CorpusRecord
from touche_llm.retrieval.registry import (
    EngineInputs,
    LoadedCorpus,
    Retriever,
    find_engine_problem,
    register,
)
from touche_llm.retrieval.settings import QueryField
from touche_llm.settings.section import NamedSection, Option, Scope, Section, check_address
from touche_llm.tasks.task import Task
from touche_llm.text.analysis import STOP_WORDS

if TYPE_CHECKING:  # the client is loaded when a server is opened
    from elasticsearch import Elasticsearch

# HTTP statuses of transient failures, of a request or of one document in it.
_RETRYABLE = (429, 502, 503, 504)
_HOW_TO_LOG_IN = (
    "give ELASTICSEARCH_API_KEY, or ELASTICSEARCH_USER and ELASTICSEARCH_PASSWORD, but not both, "
    "in the environment"
)

ResultT = TypeVar("ResultT")

# What the client logs as a warning is reported as a notice or an error here.
logging.getLogger("elastic_transport").addHandler(logging.NullHandler())


class ElasticsearchSettings(Section):
    """Settings of Elasticsearch; times are in seconds."""

    url: Annotated[
        str,
        AfterValidator(partial(check_address, secret="the environment")),
        Option("--elasticsearch", "Address of Elasticsearch", "Retrieval", metavar="URL"),
        Scope.DELIVERY,
    ] = "http://127.0.0.1:9200"
    index: Annotated[
        str,
        Option(
            "--elasticsearch-index",
            "Name of the index in Elasticsearch",
            "Retrieval",
            metavar="NAME",
        ),
        Scope.RETRIEVE,
    ] = Field("touche-llm", pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=200)
    request_timeout: Annotated[float, Scope.DELIVERY] = Field(60.0, gt=0.0, allow_inf_nan=False)
    retry_for: Annotated[float, Scope.DELIVERY] = Field(300.0, ge=0.0, allow_inf_nan=False)


class Server:
    """One server, behind the official client.

    `what` describes a request in errors; `call` sends it and reads its reply, and may raise
    TransientFailure.
    """

    # The synchronous client, each request in a thread of its own: the asynchronous one follows
    # redirects, with the documents, and nothing public turns that off. Neither waits before it
    # repeats a request after a 429 or 503 (15 requests in 7 ms with max_retries=14, of version
    # 9.5), so that the program's own retry policy is used.

    def __init__(self, settings: ElasticsearchSettings, warn: Warn) -> None:
        """Connect without retries, since a wrong address is likelier than a transient failure.

        Raises:
            UsageError: The client is not installed, the environment holds no valid login, or the
                server refuses it.
            EngineError: The server is unreachable or is not Elasticsearch.
        """
        with needs_extra("elasticsearch", "`retriever.name: elasticsearch`"):
            from elasticsearch import Elasticsearch, ElasticsearchWarning
            from elasticsearch.serializer import OrjsonSerializer
        self._settings = settings
        self._note = RetryNotice(warn, settings.url, settings.retry_for)
        options = _read_login()
        if settings.url.startswith("https:"):
            import ssl  # takes a while to load

            # Certificates as Python takes them: those of the system, or of SSL_CERT_FILE.
            options["ssl_context"] = ssl.create_default_context()
        self._client = Elasticsearch(
            settings.url,
            serializer=OrjsonSerializer(),  # refuses NaN
            request_timeout=settings.request_timeout,
            max_retries=0,
            **options,
        )
        # Deprecations concern this program, not its user.
        warnings.filterwarnings("ignore", category=ElasticsearchWarning)
        self.version = to_line(
            str(self.send("start-up check", lambda client: client.info()["version"]["number"]))
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send(self, what: str, call: Callable[[Elasticsearch], ResultT]) -> ResultT:
        """Return the result of a request that is sent once; raise as `request`."""
        try:
            return self._send(what, call)
        except TransientFailure as failed:
            raise self._give_up(what, failed) from None

    async def request(self, what: str, call: Callable[[Elasticsearch], ResultT]) -> ResultT:
        """Return the result of a request; transient failures are retried for `retry_for` seconds.

        Raises:
            UsageError: The server refuses the key or the password.
            EngineError: The server cannot be reached, refuses, sends another reply, or fails for as
                long as is retried.
        """
        try:
            send = partial(asyncio.to_thread, self._send, what, call)
            return await retry(send, self._settings.retry_for, self._note)
        except TransientFailure as failed:
            raise self._give_up(what, failed) from None

    def error(self, problem: str) -> EngineError:
        """Return an error that names this server."""
        return EngineError(f"{self._settings.url}: {problem}")

    def _give_up(self, what: str, failed: TransientFailure) -> EngineError:
        return self.error(
            f"{what}: {failed.reason}; is Elasticsearch running there? Set its address with `elasticsearch.url`, "
            f"or retry for more than {self._settings.retry_for:g} s with `elasticsearch.retry_for`"
        )

    def _send(self, what: str, call: Callable[[Elasticsearch], ResultT]) -> ResultT:
        from elastic_transport import ConnectionError as NotReached
        from elastic_transport import ConnectionTimeout, TransportError
        from elasticsearch import ApiError, UnsupportedProductError

        try:
            return call(self._client)
        except ConnectionTimeout:
            raise TransientFailure(
                f"no answer within {self._settings.request_timeout:g} s"
            ) from None
        except NotReached as error:
            raise TransientFailure(f"the connection broke: {to_line(str(error.message))}") from None
        except (
            UnsupportedProductError,
            TransportError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
        ) as error:
            cause = getattr(error, "message", None) or f"malformed reply: {error!r}"
            raise self.error(f"{what}: {to_line(str(cause))}; is this Elasticsearch?") from None
        except ApiError as error:
            body = error.body
            problem = f"HTTP {error.status_code}: {_describe(body.get('error') if isinstance(body, dict) else body)}"
            if error.status_code in _RETRYABLE:
                raise TransientFailure(problem) from None
            if error.status_code == 401:
                raise UsageError(
                    f"{self._settings.url}: login refused ({problem}); {_HOW_TO_LOG_IN}"
                ) from None
            raise self.error(f"{what}: {problem}") from None


def _describe(refusal: Any) -> str:
    """Return `type: reason` of the error of a refusal, shortened."""
    if isinstance(refusal, dict) and "type" in refusal:
        refusal = f"{refusal['type']}: {refusal.get('reason')}"
    return to_line(str(refusal))


def _read_login() -> dict[str, Any]:
    """Return the arguments of the client that log in, from the environment.

    Empty if it holds no login.
    """
    names = ("API_KEY", "USER", "PASSWORD")
    key, user, password = (os.environ.get(f"ELASTICSEARCH_{name}", "") for name in names)
    is_valid = f"{key}{user}{password}".isprintable() and key.isascii()
    if bool(user) is not bool(password) or (key and user) or not is_valid:
        raise UsageError(
            f"Elasticsearch: the login is incomplete or has an invalid form; {_HOW_TO_LOG_IN}"
        )
    if key:
        return {"api_key": key}
    # Encoded here, since the client accepts only ASCII and Elasticsearch UTF-8.
    return {"basic_auth": base64.b64encode(f"{user}:{password}".encode()).decode()} if user else {}


META = "touche-llm"


class ElasticManifest(Model, strict=True):
    """Source and settings of an index, stored in the `_meta` of its mapping.

    `format` changes with the analysis of the texts. `documents` is None until all of them are
    loaded.
    """

    format: Literal[3] = 3
    corpus: str
    sha256: str
    k1: float
    b: float
    documents: int | None = None
    bad_lines: int | None = None


def build_index_body(manifest: ElasticManifest) -> dict[str, Any]:
    """Build settings and mappings of an index: one analyzed field with BM25, and the id.

    The analysis is that of text/analysis.py; Lucene refuses terms of more than 32,766 bytes. `id`
    breaks ties, since Elasticsearch does not sort by `_id`.
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
        "mappings": {
            "dynamic": "strict",
            "_meta": {META: manifest.model_dump()},
            "properties": properties,
        },
    }


def _read_manifest(name: str, client: Elasticsearch) -> ElasticManifest | None:
    """Return the manifest of an index, or None.

    Raise UsageError if this version created no index of this name.
    """
    response = client.options(ignore_status=404).indices.get(index=name)
    if response.meta.status == 404:
        return None
    try:
        (index,) = response.body.values()
        return ElasticManifest.model_validate(index["mappings"]["_meta"][META])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UsageError(
            f"{name}: no index that `touche-llm index` of this version created; name another one "
            "(`elasticsearch.index`)"
        ) from None


def _check(manifest: ElasticManifest, place: str, k1: float, b: float) -> None:
    """Raise UsageError if an index has other parameters."""
    for name, value, own in (("k1", k1, manifest.k1), ("b", b, manifest.b)):
        if own != value:
            raise UsageError(
                f"{place}: has {name} {own}, not {value}; use the index's own (`retriever.{name}: {own}`), or load the "
                "corpus into another index (`elasticsearch.index`) with yours"
            )


# Max documents of a request for their texts.
_TEXTS_AT_ONCE = 100


class ElasticIndex(Corpus):
    """Complete index of Elasticsearch.

    A stage that sends requests to the model fetches its documents first; `get` takes them from
    memory then, and the event loop never waits for Elasticsearch. Other documents are fetched when
    they are needed.
    """

    def __init__(
        self, task: Task, settings: ElasticsearchSettings, *, k1: float, b: float, warn: Warn
    ) -> None:
        """Open the index.

        Raise as `Server`, and UsageError or DataError if it is missing, incomplete or another.
        """
        self.task, self.candidates, self.documents = task, self, self
        self._name, place = settings.index, f"{settings.url}, index {settings.index}"
        self.empty = f"{place}: no document has a word of any topic; see `retriever.query`"
        self._server = Server(settings, warn)
        found = self._server.send(f"index {self._name}", partial(_read_manifest, self._name))
        if found is None or found.documents is None:
            problem = (
                f"incomplete, since loading {found.corpus} was interrupted"
                if found
                else "no such index"
            )
            raise DataError(
                f"{place}: {problem}; load the corpus, or resume with the same file: "
                f"`touche-llm index --retriever elasticsearch --elasticsearch {settings.url} "
                f"--elasticsearch-index {settings.index} --corpus FILE`"
            )
        _check(found, place, k1, b)
        self.description = CorpusRecord(
            source=settings.url,
            engine=f"Elasticsearch {self._server.version}",
            index=settings.index,
            loaded_from=found.corpus,
            sha256=found.sha256,
            documents=found.documents,
            bad_lines=found.bad_lines or 0,
        )
        # By id; None if the index lacks the document.
        self._texts: dict[str, str | None] = {}

    def close(self) -> None:
        """Close the connections."""
        super().close()
        self._server.close()

    async def search(
        self,
        topics: list[Topic],
        fields: tuple[QueryField, ...],
        depth: int,
        done: Callable[[], None],
    ) -> list[list[Candidate]]:
        """Return the best documents of each topic; see the base class.

        By descending score, equal scores by ascending document id, also where the last place is
        tied. Scores are Lucene's BM25 with the statistics of all shards.
        """
        rankings = []
        for topic in topics:
            search = partial(self._search, topic.id, build_query(topic, fields), depth)
            rankings.append(await self._server.request(f"search for topic {topic.id}", search))
            done()
        return rankings

    def _search(
        self, topic_id: str, query: str, depth: int, client: Elasticsearch
    ) -> list[Candidate]:
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
        hits = enumerate(reply["hits"]["hits"], start=1)
        return [Candidate(topic_id, hit["_id"], rank, float(hit["_score"])) for rank, hit in hits]

    async def fetch(self, document_ids: Iterable[str]) -> None:
        """Fetch documents that were not fetched before; ids that the index lacks are no error."""
        for what, part in self._split_wanted(document_ids):
            self._texts |= await self._server.request(what, partial(self._fetch, part))

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the ids that the index lacks, in the order given."""
        wanted = list(dict.fromkeys(document_ids))
        for what, part in self._split_wanted(wanted):
            self._texts |= self._server.send(what, partial(self._fetch, part))
        return [ident for ident in wanted if self._texts[ident] is None]

    def get(self, document_id: str) -> Document:
        """Return the document of this id.

        Raises DataError if there is none, and EngineError as `Server.request`.
        """
        self.find_unknown([document_id])
        text = self._texts[document_id]
        if text is None:
            raise DataError(
                f"{self._name}: document {document_id!r} is not in this index of Elasticsearch"
            )
        return Document(document_id, text)

    def _split_wanted(self, document_ids: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        """Yield the ids that were not fetched before, in the parts of a request, each with its description."""
        wanted = [ident for ident in dict.fromkeys(document_ids) if ident not in self._texts]
        for start in range(0, len(wanted), _TEXTS_AT_ONCE):
            part = wanted[start : start + _TEXTS_AT_ONCE]
            yield f"documents {part[0]} and {len(part) - 1} more", part

    def _fetch(self, ids: list[str], client: Elasticsearch) -> dict[str, str | None]:
        texts = {}
        for ident, document in zip(
            ids, client.mget(index=self._name, ids=ids, source="text")["docs"], strict=True
        ):
            if "error" in document:
                raise self._server.error(f"document {ident}: {_describe(document['error'])}")
            texts[ident] = document["_source"]["text"] if document["found"] else None
        return texts


# Max documents of a batch to load, and max bytes of a request unless one document has more.
_BATCH, _REQUEST_BYTES = 500, 8 * 2**20
# Statuses of a stored document: created, or there already from an earlier load or a request whose
# reply was lost.
_STORED = (201, 409)
_NOTICE_EVERY = 60.0  # seconds


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

    One batch of documents is in memory at a time, and the ids of all. The index is marked as
    complete at the end.

    Raises:
        DataError: The corpus cannot be read, or has a bad line (unless `skip_bad_lines`).
        UsageError: The index holds another corpus, has other settings, or was not created by this
            program.
        EngineError: Elasticsearch cannot be reached or refuses; the same command resumes.
    """
    source, name = CorpusFile(corpus, read), settings.index
    source.check()
    wanted = ElasticManifest(corpus=corpus.name, sha256=sha256(corpus), k1=k1, b=b)
    place = f"{settings.url}, index {name}"
    skipped = SkippedLines(warn)
    with closing(Server(settings, warn)) as server:
        found = await server.request(f"index {name}", partial(_read_manifest, name))
        if found is None:
            body = build_index_body(wanted)
            await server.request(
                f"creating the index {name}", lambda it: it.indices.create(index=name, **body)
            )
            warn(f"loading {corpus} into {place}")
            found = wanted
        elif found.documents is None:
            warn(
                f"{place}: an earlier load was interrupted; resuming without the documents that are stored"
            )
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
        rows = _read_distinct(source, skipped.add if skip_bad_lines else None)
        documents = await _store_all(server, name, source, rows, warn)
        if not documents:
            raise DataError(f"{corpus}: no usable document in it")
        await server.request(
            f"refresh of {name}", lambda client: client.indices.refresh(index=name)
        )
        complete = wanted.model_copy(update={"documents": documents, "bad_lines": skipped.count})
        meta = {META: complete.model_dump()}
        await server.request(
            f"completing the index {name}", lambda it: it.indices.put_mapping(index=name, meta=meta)
        )
    if skipped.count:
        warn(f"left out {skipped.count} bad lines of {corpus}")
    return complete


def _read_distinct(
    source: CorpusFile, on_bad_line: OnBadLine | None
) -> Iterator[tuple[int, Document]]:
    """Yield the documents of a corpus with their lines; a repeated id makes a bad line."""
    seen: set[str] = set()
    for line, document in source.read(on_bad_line):
        if document.id in seen:
            bad = BadLine(
                source, line, f"document {document.id}: the id occurs already in an earlier line"
            )
            if on_bad_line is None:
                raise bad
            on_bad_line(bad)
        else:
            seen.add(document.id)
            yield line, document


async def _store_all(
    server: Server, name: str, source: CorpusFile, rows: Iterator[tuple[int, Document]], warn: Warn
) -> int:
    """Store documents in an index, and return their number; those that it has already stay."""
    count, noticed = 0, time.monotonic()
    while batch := list(islice(rows, _BATCH)):
        left = {document.id: document.text for _, document in batch}
        what = f"documents of lines {batch[0][0]} to {batch[-1][0]} of {source}"
        await server.request(what, partial(_store, server, name, left))
        count += len(batch)
        if time.monotonic() - noticed > _NOTICE_EVERY:
            noticed = time.monotonic()
            warn(f"{count:,} documents so far")
    return count


def _store(server: Server, name: str, left: dict[str, str], client: Elasticsearch) -> None:
    """Store texts by id, and keep in `left` only those that a busy server refuses."""
    from elasticsearch.helpers import streaming_bulk

    actions = [
        {"_op_type": "create", "_id": ident, "id": ident, "text": text}
        for ident, text in left.items()
    ]
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
        refusal = f"HTTP {item['status']}: {_describe(item.get('error'))}"
        if item["status"] in _RETRYABLE:
            busy = refusal
        elif item["status"] in _STORED:
            del left[item["_id"]]
        else:
            raise server.error(f"document {item['_id']}: {refusal}")
    if left:
        raise TransientFailure(f"{len(left)} documents refused: {busy}")


def _open(inputs: EngineInputs) -> ElasticIndex:
    return ElasticIndex(
        inputs.task,
        inputs.settings,
        k1=inputs.bm25.k1,
        b=inputs.bm25.b,
        warn=inputs.warn,
    )


async def _load(inputs: EngineInputs, corpus: Path, skip_bad_lines: bool) -> LoadedCorpus:
    """Load a corpus; raise as `load_corpus`."""
    settings: ElasticsearchSettings = inputs.settings
    manifest = await load_corpus(
        corpus,
        inputs.task.read_corpus,
        settings,
        k1=inputs.bm25.k1,
        b=inputs.bm25.b,
        skip_bad_lines=skip_bad_lines,
        warn=inputs.warn,
    )
    assert manifest.documents is not None, "of a complete load"
    return LoadedCorpus(
        documents=manifest.documents,
        place=f"{settings.url}, index {settings.index}",
        columns={"url": settings.url, "index": settings.index},
    )


def _get_index(settings: ElasticsearchSettings) -> str:
    return settings.index


register(
    Retriever(
        name="elasticsearch",
        help="a server",
        method="Elasticsearch BM25",
        section=NamedSection(name="elasticsearch", settings=ElasticsearchSettings),
        open_engine=_open,
        load_corpus=_load,
        # Elasticsearch scores like Lucene.
        bm25_method="lucene",
        find_problem=find_engine_problem,
        describe=_get_index,
        order=60,
    )
)
