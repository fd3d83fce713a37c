"""The search engine ChatNoir: settings, cache of its replies, and a client that requests each of them once."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast, get_args
from uuid import UUID

import msgspec
import orjson
from pydantic import AfterValidator, Field, SecretStr

from touche_llm.data.concurrency import (
    RetryNotice,
    TransientFailure,
    describe_connection_error,
    map_in_order,
    parse_retry_after,
    read_body,
    retry,
    to_line,
)
from touche_llm.data.databases import DatabaseFormat, connect, create_if_empty, describe_opening_error
from touche_llm.data.io import ID_FORM, is_word
from touche_llm.data.records import Candidate, Document, Malformed, Topic, decode_json
from touche_llm.data.settings import Scope, Section, check_address
from touche_llm.data.topics import build_query
from touche_llm.errors import DataError, EngineError, UsageError, Warn, needs_extra
from touche_llm.retrieval.base import Corpus, QueryField
from touche_llm.tasks.task import Task

API_KEY_VARIABLE = "CHATNOIR_API_KEY"
HOW_TO_GIVE_A_KEY = (
    f"give it in the environment variable {API_KEY_VARIABLE}, or as chatnoir.api_key in the configuration; "
    "ChatNoir hands keys out at https://www.chatnoir.eu/apikey/"
)
MAX_DOCUMENT_BYTES = 4 * 2**20
# ChatNoir lowers `from` to keep `from + size` within this window, so pages beyond it would repeat.
MAX_DEPTH = 10_000
_MAX_BYTES = 16 * 2**20
_CONCURRENCY = 8
_NEEDS_CLIENT = partial(needs_extra, "chatnoir", "`retriever.name: chatnoir`")


def _check_index(name: str) -> str:
    with _NEEDS_CLIENT():
        from chatnoir_api.model import Index

    if name not in get_args(Index):
        raise ValueError(f"must be one of {', '.join(get_args(Index))}")
    return name


class ChatNoirSettings(Section):
    """Settings of ChatNoir; times are in seconds.

    `api_key` overrides the environment variable CHATNOIR_API_KEY and is never written to a file. `leave_out` lists
    documents that are not fetched because ChatNoir cannot deliver them.
    """

    base_url: Annotated[str, AfterValidator(lambda url: check_address(url, API_KEY_VARIABLE) + "/"), Scope.DELIVERY] = (
        "https://chatnoir.eu/"
    )
    index: Annotated[str, AfterValidator(_check_index)] = "clueweb22/b"
    cache: Annotated[Path, Scope.DELIVERY] = Path(".touche-llm/chatnoir.sqlite")
    requests_per_second: Annotated[float, Scope.DELIVERY] = Field(2.0, gt=0.0, le=1000.0)
    page_size: Annotated[int, Scope.DELIVERY] = Field(100, ge=1, le=1000)
    request_timeout: Annotated[float, Scope.DELIVERY] = Field(60.0, gt=0.0)
    retry_for: Annotated[float, Scope.DELIVERY] = Field(300.0, ge=0.0)
    leave_out: tuple[str, ...] = ()
    api_key: SecretStr | None = Field(None, exclude=True, repr=False)

    @property
    def index_id(self) -> str:
        """Id of the index in requests."""
        with _NEEDS_CLIENT():
            from chatnoir_api.model import Index, index_id

        return index_id(cast(Index, self.index))


_FORMAT = DatabaseFormat(
    noun="a ChatNoir cache",
    application=0x746C636E,  # "tlcn"
    version=2,
    statements=(
        "CREATE TABLE searches (base_url TEXT, place TEXT, query TEXT, start INTEGER, size INTEGER, "
        "page TEXT NOT NULL, PRIMARY KEY (base_url, place, query, start, size)) WITHOUT ROWID",
        "CREATE TABLE documents (place TEXT, id TEXT, text TEXT, reason TEXT, PRIMARY KEY (place, id))",
    ),
)


class Hit(NamedTuple):
    """Search result: TREC id, ChatNoir's own id and score of a document."""

    document_id: str
    uuid: UUID
    score: float


class _SearchHit(msgspec.Struct, frozen=True):
    index: str
    uuid: str
    trec_id: str | None
    score: float


class _SearchMeta(msgspec.Struct, frozen=True):
    total_results: int


class ResultPage(msgspec.Struct, frozen=True):
    """Page of results: what is used and stored of ChatNoir's reply."""

    meta: _SearchMeta
    results: list[_SearchHit]


@dataclass(frozen=True, slots=True)
class MissingDocument:
    """Document that ChatNoir finds without usable text."""

    reason: str


class ChatNoirDocuments:
    """SQLite cache of ChatNoir's replies, with the interface of a DocumentStore.

    Each entry is committed when it arrives, so a killed run resumes where it stopped.
    """

    def __init__(self, settings: ChatNoirSettings) -> None:
        """Open or create `settings.cache`; raises DataError if it is a file of another program."""
        self.path = settings.cache
        self._base_url, self._index = settings.base_url, settings.index_id
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as undo:
                self._database = undo.enter_context(closing(connect(self.path.absolute().as_uri())))
                self._database.path = self.path
                create_if_empty(self._database, _FORMAT, self.path)
                undo.pop_all()
        except (sqlite3.Error, OSError) as error:
            raise DataError(describe_opening_error(self.path, _FORMAT.noun, "chatnoir.cache", error)) from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def get(self, document_id: str) -> Document:
        """Return a document; raises DataError if the cache has no text of it."""
        text = self.get_text(document_id)
        if isinstance(text, str):
            return Document(document_id, text)
        why = text.reason if text else "retrieve with ChatNoir again"
        raise DataError(f"{self.path}: document {document_id!r} has no text in this cache: {why}")

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the ids without text in the cache, in the given order."""
        return [ident for ident in dict.fromkeys(document_ids) if not isinstance(self.get_text(ident), str)]

    def get_text(self, document_id: str) -> str | MissingDocument | None:
        """Return the text of a document or the reason why it is missing; None if it was never fetched."""
        rows = self._database.query(
            "SELECT text, reason FROM documents WHERE place = ? AND id = ?", (self._index, document_id)
        )
        if not rows:
            return None
        text, reason = rows[0]
        return str(text) if reason is None else MissingDocument(reason)

    def put_text(self, document_id: str, text: str | MissingDocument) -> None:
        """Store the text of a document, or that it is missing, and commit."""
        row = (None, text.reason) if isinstance(text, MissingDocument) else (text, None)
        self._database.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", (self._index, document_id, *row))

    def get_page(self, query: str, start: int, size: int) -> ResultPage | None:
        """Return a page of results, or None if it is not stored; raises DataError if the file is damaged."""
        rows = self._database.query(
            "SELECT page FROM searches WHERE base_url = ? AND place = ? AND query = ? AND start = ? AND size = ?",
            (self._base_url, self._index, query, start, size),
        )
        if not rows:
            return None
        try:
            return decode_json(str(rows[0][0]), ResultPage)
        except Malformed as error:
            raise DataError(
                f"{self.path}: damaged: the results of {query!r} from {start} on; delete the file"
            ) from error

    def put_page(self, query: str, start: int, size: int, page: ResultPage) -> None:
        """Store a page of results, and commit."""
        self._database.execute(
            "INSERT OR REPLACE INTO searches VALUES (?, ?, ?, ?, ?, ?)",
            (self._base_url, self._index, query, start, size, msgspec.json.encode(page).decode()),
        )


# Status 200 or 404, content (one byte longer than the limit if it is too long) and its encoding.
_RawReply = tuple[int, bytes, str]


class ChatNoir:
    """ChatNoir behind a cache, with one key and one rate limit. An asynchronous context manager."""

    # Index ids and base address are those of chatnoir-api. Its transport is not used: `request_page` sends `from` as
    # `start`, so that every page is the first one; it also blocks, and ignores Retry-After.

    def __init__(self, settings: ChatNoirSettings, warn: Warn) -> None:
        """Open the cache without sending a request; only searches that are not cached need a key.

        Raises:
            DataError: The cache is a file of another program.
        """
        self._settings, self._warn = settings, warn
        key = settings.api_key.get_secret_value() if settings.api_key else os.environ.get(API_KEY_VARIABLE, "")
        self._key = key.strip()
        self._documents = ChatNoirDocuments(settings)
        self._note = RetryNotice(warn, f"{settings.base_url} (chatnoir.base_url)", settings.retry_for)
        # When the next request may be sent.
        self._free_at = 0.0

    async def __aenter__(self) -> ChatNoir:
        import aiohttp  # slow to load, and every command reads the settings

        # ChatNoir is a public server, so proxies of the environment are used, as in chatnoir-api.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._settings.request_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        self._documents.close()

    async def search(self, query: str, depth: int) -> list[Hit]:
        """Return the best `depth` documents for a query, or fewer, in ChatNoir's order.

        A repeated document keeps its first position. Results without TREC id are skipped with a notice, since a run
        could not name them.

        Raises:
            UsageError: The key is missing or refused, the query is empty, or `depth` exceeds 10,000.
            EngineError: ChatNoir cannot be reached, or its reply does not match the request.
        """
        from chatnoir_api.model import decode_uuid

        query = " ".join(query.split())
        if not query or depth > MAX_DEPTH:
            raise UsageError(
                f"ChatNoir: a query must have words and a depth of at most {MAX_DEPTH}: {query!r}, {depth}"
            )
        hits: dict[str, Hit] = {}
        start = unnamed = 0
        before: set[str | None] = set()
        while len(hits) < depth and start < MAX_DEPTH:
            size = min(self._settings.page_size, MAX_DEPTH - start)
            stored = self._documents.get_page(query, start, size)
            page = await self._request_page(query, start, size) if stored is None else stored
            ids = {result.trec_id for result in page.results}
            if ids and ids == before:
                raise self._fail(f"{query!r}: the results from {start} on are those before; paging does not work")
            before = ids
            if stored is None:
                self._documents.put_page(query, start, size, page)
            for result in page.results:
                if result.trec_id is None:
                    unnamed += 1
                else:
                    hits.setdefault(result.trec_id, Hit(result.trec_id, decode_uuid(result.uuid), result.score))
            start += len(page.results)
            if not page.results or (len(page.results) < size and start >= page.meta.total_results):
                break
        if unnamed:
            self._warn(f"ChatNoir: {query!r}: {unnamed} results without a TREC id left out")
        return list(hits.values())[:depth]

    async def fetch(self, hit: Hit) -> str | MissingDocument:
        """Return the plain text of a document: the main content of the page, extracted by ChatNoir.

        A missing text (HTTP 404, empty, not in the declared encoding, over 4 MiB) is cached as well; delete the cache
        to fetch it again.

        Raises:
            EngineError: ChatNoir cannot be reached, or fails on this document until the retries end.
        """
        if hit.document_id in self._settings.leave_out:
            return MissingDocument("named in chatnoir.leave_out")
        known = self._documents.get_text(hit.document_id)
        if known is not None:
            return known
        # Without the key: documents are public.
        params = {"uuid": str(hit.uuid), "index": self._settings.index_id, "raw": "true", "plain": "true"}
        hint = "; name it in chatnoir.leave_out to continue without it"
        reply = await self._request(f"document {hit.document_id}", hint, "GET", "cache", params=params)
        found = _decode_text(reply)
        self._documents.put_text(hit.document_id, found)
        return found

    async def _request_page(self, query: str, start: int, size: int) -> ResultPage:
        if not self._key:
            raise UsageError(
                f"{self._settings.cache}: the search {query!r} is not in this cache, and ChatNoir needs a key; "
                + HOW_TO_GIVE_A_KEY
            )
        body = {"apikey": self._key, "query": query, "index": [self._settings.index_id], "from": start, "size": size}
        body |= {"explain": False, "minimal": False, "search_method": "default"}
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        data = orjson.dumps(body)
        reply = await self._request(f"search {query!r}", "", "POST", "api/v1/_search", headers=headers, data=data)
        return self._parse_page(query, reply)

    async def _request(self, what: str, hint: str, method: str, path: str, **options: Any) -> _RawReply:
        """Send a request, described by `what`; transient failures are retried, and `hint` ends the error of the last.

        Raises:
            UsageError: ChatNoir refuses the key.
            EngineError: ChatNoir cannot be reached, refuses the request, or fails until the retries end.
        """
        send = partial(self._send, method, path, **options)
        try:
            return await retry(send, self._settings.retry_for, TransientFailure, self._note)
        except TransientFailure as error:
            raise self._fail(
                f"{what}: {error.reason}; all replies so far are in {self._settings.cache}: resume with the same "
                f"command{hint}"
            ) from None

    async def _send(self, method: str, path: str, **options: Any) -> _RawReply:
        """Send a request once, within the rate limit."""
        import aiohttp

        now = time.monotonic()
        at = max(now, self._free_at)
        self._free_at = at + 1.0 / self._settings.requests_per_second
        await asyncio.sleep(at - now)
        url = self._settings.base_url + path
        try:
            # ChatNoir redirects documents to another host, which must not receive the key.
            async with self._session.request(method, url, allow_redirects=method == "GET", **options) as response:
                content = await read_body(response, _MAX_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            problem = describe_connection_error(error, self._settings.request_timeout, self._clean)
            raise TransientFailure(problem) from None
        status = response.status
        if status in (200, 404):
            return status, content, response.charset or "utf-8"
        problem = f"HTTP {status}: {self._clean(_extract_message(content))}"
        if status == 429 or status >= 500:
            raise TransientFailure(problem, parse_retry_after(response.headers.get("Retry-After")))
        if status in (401, 403):
            who = "the key" if status == 401 else "this address or this key"
            raise UsageError(f"{url}: ChatNoir refuses {who} ({problem}); {HOW_TO_GIVE_A_KEY}")
        raise self._fail(f"{path}: {problem}; is this ChatNoir? see chatnoir.base_url")

    def _parse_page(self, query: str, reply: _RawReply) -> ResultPage:
        from chatnoir_api.model import decode_uuid

        status, content, _ = reply
        if status == 404:
            raise self._fail("HTTP 404: no search here; see chatnoir.base_url")
        try:
            page = decode_json(content, ResultPage)
            for result in page.results:
                decode_uuid(result.uuid)
        except ValueError as error:
            raise self._fail(f"{query!r}: a reply of another form: {self._clean(str(error))}") from None
        for result in page.results:
            if result.trec_id is not None and not is_word(result.trec_id):
                raise self._fail(f"{query!r}: a TREC id must be {ID_FORM}, not {self._clean(result.trec_id)!r:.80}")
            if result.index != self._settings.index_id:
                raise self._fail(f"{query!r}: {result.trec_id} is of index {result.index!r:.80}")
        return page

    def _clean(self, text: str) -> str:
        """Return a text from a server on one line, without the key, shortened."""
        return to_line(text.replace(self._key, "[key]") if self._key else text)

    def _fail(self, problem: str) -> EngineError:
        return EngineError(f"{self._settings.base_url}: {problem}")


class ChatNoirCorpus(Corpus):
    """Web documents found by ChatNoir, kept in a cache."""

    def __init__(self, task: Task, settings: ChatNoirSettings, warn: Warn) -> None:
        """Open the cache; `warn` receives notices about documents without usable text, which are left out."""
        self._cached = ChatNoirDocuments(settings)
        self.task, self.candidates, self.documents = task, self._cached, self._cached
        self.description = {"search engine": settings.base_url, "index": settings.index}
        self.empty = f"{settings.base_url}: no page for any topic in {settings.index}; see `retriever.query`"
        self._settings, self._warn = settings, warn

    def close(self) -> None:
        """Close the cache."""
        super().close()
        self._cached.close()

    async def search(
        self, topics: list[Topic], fields: tuple[QueryField, ...], depth: int, done: Callable[[], None]
    ) -> list[list[Candidate]]:
        """Search each topic and fetch the documents found, unless they are cached; see the base class.

        ChatNoir requires all words of a query in a page, and reads `-word`, `"a phrase"`, `site:` and the like as
        operators. Candidates are in descending order of scores, ties in that of document ids.

        Raises:
            UsageError: As `ChatNoir.search`, or all fields of a topic are empty.
            EngineError: As `ChatNoir.search` and `ChatNoir.fetch`.
        """
        rankings = []
        async with ChatNoir(self._settings, self._warn) as engine:
            for topic in topics:
                query = build_query(topic, fields)
                if not query.strip():
                    raise UsageError(
                        f"topic {topic.id}: nothing to search for, its fields {', '.join(fields)} are empty"
                    )
                hits = sorted(await engine.search(query, depth), key=lambda hit: (-hit.score, hit.document_id))
                texts = await map_in_order(engine.fetch, hits, _CONCURRENCY)
                kept: list[Candidate] = []
                left_out: list[str] = []
                for hit, text in zip(hits, texts, strict=True):
                    if isinstance(text, MissingDocument):
                        left_out.append(f"{hit.document_id} ({text.reason})")
                    else:
                        kept.append(Candidate(topic.id, hit.document_id, len(kept) + 1, hit.score))
                if left_out:
                    count = f"{len(left_out)} of {len(hits)} documents"
                    self._warn(f"topic {topic.id}: {count} left out: {', '.join(left_out)}")
                rankings.append(kept)
                done()
        return rankings


def _extract_message(content: bytes) -> str:
    """Return the message of an error reply: ChatNoir sends `{"code": …, "error": …, "message": …}`, a proxy a page."""
    try:
        return str(orjson.loads(content)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return content.decode("utf-8", errors="replace")


def _decode_text(reply: _RawReply) -> str | MissingDocument:
    """Return the decoded text of a document, with replacement characters for invalid bytes."""
    status, content, charset = reply
    if status == 404:
        return MissingDocument("HTTP 404")
    if len(content) > MAX_DOCUMENT_BYTES:
        return MissingDocument(f"longer than {MAX_DOCUMENT_BYTES:,} bytes")
    try:
        text = content.decode(charset, errors="replace")
    except (LookupError, ValueError):
        return MissingDocument(f"in the unknown encoding {charset!r:.40}")
    if "\0" in text:
        return MissingDocument("not text")
    # ChatNoir sends "None" if its archive lacks the page.
    return MissingDocument("no text") if text.strip() in ("", "None") else text
