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
from dataclasses import dataclass
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
    from elasticsearch import ApiError, Elasticsearch

# HTTP statuses of transient failures, of a request or of one document in it.
_RETRYABLE = (429, 502, 503, 504)
# Raised where a reply lacks what is read of it.
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError)
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

        version = self.send("start-up check", lambda client: client.info()["version"]["number"])
        self.version = to_line(str(version))

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
        """Send a request once, and turn the client's errors into those of this program.

        Raises:
            TransientFailure: Another try may succeed.
            UsageError: The server refuses the login.
            EngineError: The server refuses the request, or sends another reply.
        """
        from elastic_transport import ConnectionError as NotReached
        from elastic_transport import ConnectionTimeout, TransportError
        from elasticsearch import ApiError, UnsupportedProductError

        not_elasticsearch = (UnsupportedProductError, TransportError, *_MALFORMED)
        try:
            return call(self._client)
        except ConnectionTimeout:
            raise TransientFailure(
                f"no answer within {self._settings.request_timeout:g} s"
            ) from None
        except NotReached as error:
            raise TransientFailure(f"the connection broke: {to_line(str(error.message))}") from None
        except not_elasticsearch as error:
            cause = getattr(error, "message", None) or f"malformed reply: {error!r}"
            raise self.error(f"{what}: {to_line(str(cause))}; is this Elasticsearch?") from None
        except ApiError as error:
            raise self._interpret_refusal(what, error) from None

    def _interpret_refusal(self, what: str, refusal: ApiError) -> Exception:
        """Return the error for a reply with a status of failure."""
        body = refusal.body
        reason = body.get("error") if isinstance(body, dict) else body
        problem = f"HTTP {refusal.status_code}: {_describe(reason)}"
        if refusal.status_code in _RETRYABLE:
            return TransientFailure(problem)
        if refusal.status_code == 401:
            return UsageError(f"{self._settings.url}: login refused ({problem}); {_HOW_TO_LOG_IN}")
        return self.error(f"{what}: {problem}")


def _describe(refusal: Any) -> str:
    """Return `type: reason` of the error of a refusal, shortened."""
    if isinstance(refusal, dict) and "type" in refusal:
        refusal = f"{refusal['type']}: {refusal.get('reason')}"
    return to_line(str(refusal))


def _read_login() -> dict[str, Any]:
    """Return the arguments of the client that log in, from the environment.

    Empty if it holds no login.

    Raises:
        UsageError: The login is incomplete or has an invalid form.
    """
    key = os.environ.get("ELASTICSEARCH_API_KEY", "")
    user = os.environ.get("ELASTICSEARCH_USER", "")
    password = os.environ.get("ELASTICSEARCH_PASSWORD", "")

    is_incomplete = bool(user) is not bool(password)
    has_two_logins = bool(key and user)
    is_printable = f"{key}{user}{password}".isprintable()
    if is_incomplete or has_two_logins or not is_printable or not key.isascii():
        raise UsageError(
            f"Elasticsearch: the login is incomplete or has an invalid form; {_HOW_TO_LOG_IN}"
        )

    if key:
        return {"api_key": key}
    if not user:
        return {}
    # Encoded here, since the client accepts only ASCII and Elasticsearch UTF-8.
    return {"basic_auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


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
    analysis = {
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
    }
    similarity = {"touche": {"type": "BM25", "k1": manifest.k1, "b": manifest.b}}
    text = {"type": "text", "analyzer": "touche", "similarity": "touche", "index_options": "freqs"}
    return {
        "settings": {"index": {"similarity": similarity, "analysis": analysis}},
        "mappings": {
            "dynamic": "strict",
            "_meta": {META: manifest.model_dump()},
            "properties": {"id": {"type": "keyword"}, "text": text},
        },
    }


def _read_manifest(name: str, client: Elasticsearch) -> ElasticManifest | None:
    """Return the manifest of an index; None if there is no such index.

    Raises:
        UsageError: The index was not created by this version of the program.
    """
    response = client.options(ignore_status=404).indices.get(index=name)
    if response.meta.status == 404:
        return None
    try:
        (index,) = response.body.values()
        return ElasticManifest.model_validate(index["mappings"]["_meta"][META])
    except _MALFORMED:
        raise UsageError(
            f"{name}: no index that `touche-llm index` of this version created; name another one "
            "(`elasticsearch.index`)"
        ) from None


def _check_parameters(manifest: ElasticManifest, place: str, k1: float, b: float) -> None:
    """Raise UsageError if an index has other parameters of BM25.

    Args:
        manifest: Manifest of the index.
        place: Address and name of the index, for messages.
        k1: Parameter of the configuration.
        b: Parameter of the configuration.
    """
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

        Raises:
            UsageError: The index has other parameters, was not created by this program, or the
                server cannot be used, see `Server`.
            DataError: The index is missing or incomplete.
            EngineError: The server cannot be used, see `Server`.
        """
        self.task = task
        self.candidates = self
        self.documents = self
        self._name = settings.index
        place = f"{settings.url}, index {settings.index}"
        self.empty = f"{place}: no document has a word of any topic; see `retriever.query`"

        self._server = Server(settings, warn)
        manifest = self._server.send(f"index {self._name}", partial(_read_manifest, self._name))
        if manifest is None or manifest.documents is None:
            raise _explain_missing_index(manifest, settings)
        _check_parameters(manifest, place, k1, b)
        self.description = CorpusRecord(
            source=settings.url,
            engine=f"Elasticsearch {self._server.version}",
            index=settings.index,
            loaded_from=manifest.corpus,
            sha256=manifest.sha256,
            documents=manifest.documents,
            bad_lines=manifest.bad_lines or 0,
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
        rankings: list[list[Candidate]] = []
        for topic in topics:
            query = build_query(topic, fields)
            search = partial(self._search, topic.id, query, depth)
            ranking = await self._server.request(f"search for topic {topic.id}", search)
            rankings.append(ranking)
            done()
        return rankings

    def _search(
        self, topic_id: str, query: str, depth: int, client: Elasticsearch
    ) -> list[Candidate]:
        """Return the best documents for a query."""
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

        ranking: list[Candidate] = []
        for rank, hit in enumerate(reply["hits"]["hits"], start=1):
            ranking.append(Candidate(topic_id, hit["_id"], rank, float(hit["_score"])))
        return ranking

    async def fetch(self, document_ids: Iterable[str]) -> None:
        """Fetch documents that were not fetched before; ids that the index lacks are no error."""
        for batch in self._list_batches(document_ids):
            fetch = partial(self._fetch, batch)
            self._texts |= await self._server.request(_name_batch(batch), fetch)

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the ids that the index lacks, in the order given."""
        distinct_ids = list(dict.fromkeys(document_ids))
        for batch in self._list_batches(distinct_ids):
            self._texts |= self._server.send(_name_batch(batch), partial(self._fetch, batch))
        return [document_id for document_id in distinct_ids if self._texts[document_id] is None]

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

    def _list_batches(self, document_ids: Iterable[str]) -> list[list[str]]:
        """Return the ids of documents that were not fetched before, in batches of one request."""
        missing = [name for name in dict.fromkeys(document_ids) if name not in self._texts]
        starts = range(0, len(missing), _TEXTS_AT_ONCE)
        return [missing[start : start + _TEXTS_AT_ONCE] for start in starts]

    def _fetch(self, document_ids: list[str], client: Elasticsearch) -> dict[str, str | None]:
        """Return the texts of documents by id; None for those that the index lacks."""
        reply = client.mget(index=self._name, ids=document_ids, source="text")

        texts: dict[str, str | None] = {}
        for document_id, document in zip(document_ids, reply["docs"], strict=True):
            if "error" in document:
                raise self._server.error(f"document {document_id}: {_describe(document['error'])}")
            texts[document_id] = document["_source"]["text"] if document["found"] else None
        return texts


def _name_batch(document_ids: list[str]) -> str:
    """Return the name of a request for the texts of documents, for messages."""
    return f"documents {document_ids[0]} and {len(document_ids) - 1} more"


def _explain_missing_index(
    manifest: ElasticManifest | None, settings: ElasticsearchSettings
) -> DataError:
    """Return the error for an index that is missing (no manifest) or incomplete."""
    problem = "no such index"
    if manifest is not None:
        problem = f"incomplete, since loading {manifest.corpus} was interrupted"
    return DataError(
        f"{settings.url}, index {settings.index}: {problem}; load the corpus, or resume with the same file: "
        f"`touche-llm index --retriever elasticsearch --elasticsearch {settings.url} "
        f"--elasticsearch-index {settings.index} --corpus FILE`"
    )


# Max documents of a batch to load.
_BATCH = 500
# Max bytes of a request, unless one document has more.
_REQUEST_BYTES = 8 * 2**20
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
    source = CorpusFile(corpus, read)
    source.check()
    planned = ElasticManifest(corpus=corpus.name, sha256=sha256(corpus), k1=k1, b=b)
    skipped = SkippedLines(warn)
    with closing(Server(settings, warn)) as server:
        loader = _CorpusLoader(
            server, settings.index, f"{settings.url}, index {settings.index}", warn
        )
        found = await loader.open_index(planned, corpus)
        loader.check_index(found, planned, skip_bad_lines=skip_bad_lines)
        if found.documents is not None:
            return found

        rows = _read_distinct(source, skipped.add if skip_bad_lines else None)
        documents = await loader.store(rows, source)
        if documents == 0:
            raise DataError(f"{corpus}: no usable document in it")
        values = {"documents": documents, "bad_lines": skipped.count}
        complete = planned.model_copy(update=values)
        await loader.mark_complete(complete)

    if skipped.count > 0:
        warn(f"left out {skipped.count} bad lines of {corpus}")
    return complete


@dataclass(frozen=True, slots=True)
class _CorpusLoader:
    """Loader of a corpus into an index.

    Attributes:
        server: Server of the index.
        name: Name of the index.
        place: Address and name of the index, for messages.
        warn: Receives notices.
    """

    server: Server
    name: str
    place: str
    warn: Warn

    async def open_index(self, planned: ElasticManifest, corpus: Path) -> ElasticManifest:
        """Return the manifest of the index, which is created first if it is missing."""
        read = partial(_read_manifest, self.name)
        found = await self.server.request(f"index {self.name}", read)
        if found is None:
            body = build_index_body(planned)
            await self.server.request(
                f"creating the index {self.name}",
                lambda client: client.indices.create(index=self.name, **body),
            )
            self.warn(f"loading {corpus} into {self.place}")
            return planned

        if found.documents is None:
            self.warn(
                f"{self.place}: an earlier load was interrupted; resuming without the documents that are stored"
            )
        return found

    def check_index(
        self, found: ElasticManifest, planned: ElasticManifest, *, skip_bad_lines: bool
    ) -> None:
        """Raise UsageError unless an index is of the corpus that is to be loaded.

        Args:
            found: Manifest of the index.
            planned: Manifest that it is to have.
            skip_bad_lines: Whether lines that are not documents may be left out.
        """
        if found.sha256 != planned.sha256:
            raise UsageError(
                f"{self.place}: has another corpus, or another version of {found.corpus}; delete the index, or name "
                "another one (`elasticsearch.index`)"
            )
        _check_parameters(found, self.place, planned.k1, planned.b)
        if found.bad_lines and not skip_bad_lines:
            raise UsageError(
                f"{self.place}: was loaded without {found.bad_lines} bad lines; allow that with "
                "`skip_bad_lines: true`, or correct the corpus and name another index (`elasticsearch.index`)"
            )

    async def store(self, rows: Iterator[tuple[int, Document]], source: CorpusFile) -> int:
        """Store documents, of which the index may have some already, and return their number.

        Args:
            rows: Documents with their lines.
            source: Corpus of the documents, for messages.
        """
        count = 0
        last_notice = time.monotonic()
        while batch := list(islice(rows, _BATCH)):
            first_line = batch[0][0]
            last_line = batch[-1][0]
            # The texts that the index lacks; those that it stores are taken out.
            remaining = {document.id: document.text for _, document in batch}
            await self.server.request(
                f"documents of lines {first_line} to {last_line} of {source}",
                partial(_store, self.server, self.name, remaining),
            )

            count += len(batch)
            if time.monotonic() - last_notice > _NOTICE_EVERY:
                last_notice = time.monotonic()
                self.warn(f"{count:,} documents so far")
        return count

    async def mark_complete(self, manifest: ElasticManifest) -> None:
        """Make the documents of the index searchable, and store its manifest."""
        await self.server.request(
            f"refresh of {self.name}",
            lambda client: client.indices.refresh(index=self.name),
        )
        meta = {META: manifest.model_dump()}
        await self.server.request(
            f"completing the index {self.name}",
            lambda client: client.indices.put_mapping(index=self.name, meta=meta),
        )


def _read_distinct(
    source: CorpusFile, on_bad_line: OnBadLine | None
) -> Iterator[tuple[int, Document]]:
    """Yield the documents of a corpus with their lines.

    A line with the id of an earlier line is a bad one.

    Args:
        source: Corpus to read.
        on_bad_line: Receives bad lines, which are left out; None to raise them.
    """
    seen_ids: set[str] = set()
    for line, document in source.read(on_bad_line):
        if document.id not in seen_ids:
            seen_ids.add(document.id)
            yield line, document
            continue

        problem = f"document {document.id}: the id occurs already in an earlier line"
        bad_line = BadLine(source, line, problem)
        if on_bad_line is None:
            raise bad_line
        on_bad_line(bad_line)


def _store(server: Server, name: str, remaining: dict[str, str], client: Elasticsearch) -> None:
    """Store texts in an index; a repeated call stores those that a busy server refused.

    Args:
        server: Server of the index, for errors.
        name: Name of the index.
        remaining: Texts by id; those that are stored are removed.
        client: Client of the server.

    Raises:
        TransientFailure: The server was too busy for some of the texts.
        EngineError: The server refuses a document.
    """
    from elasticsearch.helpers import streaming_bulk

    actions: list[dict[str, str]] = []
    for document_id, text in remaining.items():
        action = {"_op_type": "create", "_id": document_id, "id": document_id, "text": text}
        actions.append(action)

    problem = "the reply lacks them"
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
            problem = refusal
        elif item["status"] in _STORED:
            del remaining[item["_id"]]
        else:
            raise server.error(f"document {item['_id']}: {refusal}")
    if remaining:
        raise TransientFailure(f"{len(remaining)} documents refused: {problem}")


def _open(inputs: EngineInputs) -> ElasticIndex:
    return ElasticIndex(
        inputs.task,
        inputs.settings,
        k1=inputs.bm25.k1,
        b=inputs.bm25.b,
        warn=inputs.warn,
    )


async def _load(inputs: EngineInputs, corpus: Path, skip_bad_lines: bool) -> LoadedCorpus:
    """Load a corpus into the index of the settings; raise as `load_corpus`."""
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
    assert manifest.documents is not None, "it is None only before the load is complete"
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
