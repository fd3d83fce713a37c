"""ChatNoir, the search engine over ClueWeb22-B: every search result and document is asked for once and kept on disk."""

from __future__ import annotations

import asyncio
import codecs
import html
import math
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote, urlsplit
from uuid import UUID

import aiohttp
import orjson
from chatnoir_api.constants import BASE_URL
from chatnoir_api.model import Index, index_id
from chatnoir_api.v1.model import Request, SearchResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_delay, wait_random_exponential

from touche_llm.errors import DataError, EngineError, UsageError
from touche_llm.llm.concurrency import in_order
from touche_llm.records import Candidate, Document, Topic
from touche_llm.retrieval.top import query_text

API_KEY_VARIABLE = "CHATNOIR_API_KEY"
MAX_DOCUMENT_BYTES = 4 * 2**20
# ChatNoir moves `from` back so that `from + size` stays within this window: beyond it, pages would repeat.
MAX_DEPTH = 10_000
FORMAT = 1  # `PRAGMA user_version` of the cache file
# `PRAGMA application_id`, the bytes "tlcn": tells our files from other SQLite files.
_APPLICATION = 0x746C636E
_MAX_PAGE_BYTES = 16 * 2**20
_MAX_ID = 256
_SHORTEST_KEY = 8
# Codecs of Python's that are slow on long texts, give lone surrogates or warn; no page is written in them.
_NO_ENCODING_OF_TEXT = {"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"}
_CONCURRENCY = 8
_LOCK_SECONDS = 60.0
# A reply that came whole and is broken may be a proxy's fault; the server's would come again and again.
_BROKEN_TRIES = 3
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds before a second try, and at most
_HOW_TO_GIVE_A_KEY = (
    f"give it in the environment variable {API_KEY_VARIABLE}, or as chatnoir.api_key in the configuration; "
    "ChatNoir hands keys out at https://www.chatnoir.eu/apikey/"
)

Notify = Callable[[str], None]
ResultT = TypeVar("ResultT")
_sleep = asyncio.sleep


def _address(url: str) -> str:
    parts = urlsplit(url)
    if "@" in url or parts.query:
        raise ValueError(f"must not hold a key, since it is written to files: give the key in {API_KEY_VARIABLE}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment or parts.port == 0:
        raise ValueError("must be an address like https://chatnoir.eu/")
    return url.rstrip("/") + "/"


class ChatNoirSettings(BaseModel):
    """How ChatNoir is asked; times are in seconds.

    `api_key` stands in for the environment variable CHATNOIR_API_KEY and is never written out again. `leave_out` names
    documents that are not fetched, for those that ChatNoir cannot deliver.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    base_url: Annotated[str, AfterValidator(_address)] = BASE_URL
    index: Index = "clueweb22/b"
    cache: Path = Path(".touche-llm/chatnoir.sqlite")
    requests_per_second: float = Field(2.0, gt=0.0, le=1000.0)
    page_size: int = Field(100, ge=1, le=1000)
    request_timeout: float = Field(60.0, gt=0.0)
    retry_for: float = Field(300.0, ge=0.0)
    leave_out: tuple[str, ...] = ()
    api_key: SecretStr | None = Field(None, exclude=True, repr=False)


class Hit(BaseModel):
    """A search result: the TREC id of the document, ChatNoir's own id, and ChatNoir's score."""

    model_config = ConfigDict(frozen=True)

    document_id: str
    uuid: UUID
    score: float = Field(allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Missing:
    """A document that ChatNoir finds but has no usable text of."""

    reason: str


class _Page(BaseModel):
    """One page of results. `unnamed` counts results without a TREC id, `total` all results that ChatNoir counted."""

    hits: list[Hit]
    unnamed: int
    total: int


class ChatNoirDocuments:
    """The SQLite file with all that ChatNoir said; reads like a DocumentStore. A context manager.

    Entries are committed one by one as they arrive, so that a run that was killed goes on where it stopped.
    """

    def __init__(self, settings: ChatNoirSettings, *, create: bool = False) -> None:
        """Open `settings.cache`; raises DataError when it is not there (unless `create`) or is another file."""
        self.path = settings.cache
        self._place = (settings.base_url, index_id(settings.index))
        if not create and not self.path.exists():
            raise DataError(f"{self.path}: no such ChatNoir cache; retrieve with ChatNoir first")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=_LOCK_SECONDS, isolation_level=None)
        except (sqlite3.Error, OSError) as error:
            raise DataError(f"{self.path}: cannot open the ChatNoir cache: {error}") from error
        try:
            if not self._is_ours():
                self._create()
        except sqlite3.Error as error:
            self.close()
            raise DataError(f"{self.path}: not a ChatNoir cache, or not writable: {error}") from error
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        (count,) = self._database.execute(
            "SELECT count(*) FROM documents WHERE place = ? AND text IS NOT NULL", self._place[1:]
        ).fetchone()
        return int(count)

    def __enter__(self) -> ChatNoirDocuments:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def get(self, document_id: str) -> Document:
        """The document with this id; raises DataError when the cache has no text of it."""
        text = self.text(document_id)
        if isinstance(text, str):
            return Document(document_id, text)
        why = text.reason if text else "retrieve with ChatNoir again"
        raise DataError(f"document {document_id!r} has no text in the ChatNoir cache {self.path}: {why}")

    def unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Those of the given ids that the cache holds no text of, in the order given."""
        return [each for each in dict.fromkeys(document_ids) if not isinstance(self.text(each), str)]

    def text(self, document_id: str) -> str | Missing | None:
        """What is known of a document; None when it was never asked for."""
        row = self._database.execute(
            "SELECT text, reason FROM documents WHERE place = ? AND id = ?", (self._place[1], document_id)
        ).fetchone()
        return None if row is None else row[0] if row[1] is None else Missing(row[1])

    def put_text(self, document_id: str, text: str | Missing) -> None:
        """Store a document at once, or that there is none."""
        row = (None, text.reason) if isinstance(text, Missing) else (text, None)
        self._database.execute(
            "INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", (self._place[1], document_id, *row)
        )

    def page(self, query: str, start: int, size: int) -> _Page | None:
        """A page of results, or None when it was never asked for."""
        row = self._database.execute(
            "SELECT page FROM searches WHERE base_url = ? AND place = ? AND query = ? AND start = ? AND size = ?",
            (*self._place, query, start, size),
        ).fetchone()
        if row is None:
            return None
        try:
            return _Page.model_validate_json(row[0])
        except ValidationError as error:
            raise DataError(
                f"{self.path}: damaged: the results of {query!r} from {start} on; delete the file"
            ) from error

    def put_page(self, query: str, start: int, size: int, page: _Page) -> None:
        """Store a page of results at once."""
        self._database.execute(
            "INSERT OR REPLACE INTO searches VALUES (?, ?, ?, ?, ?, ?)",
            (*self._place, query, start, size, page.model_dump_json()),
        )

    def _is_ours(self) -> bool:
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if application == _APPLICATION and version != FORMAT:
            raise DataError(f"{self.path}: ChatNoir cache of format {version}, this program reads {FORMAT}; delete it")
        return bool(application == _APPLICATION)

    def _create(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        if self._is_ours():  # another process was faster
            self._database.execute("COMMIT")
            return
        (tables,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables:
            raise DataError(
                f"{self.path}: a file of another program, not a ChatNoir cache; give another chatnoir.cache"
            )
        self._database.execute(
            "CREATE TABLE searches (base_url TEXT, place TEXT, query TEXT, start INTEGER, size INTEGER, "
            "page TEXT NOT NULL, PRIMARY KEY (base_url, place, query, start, size)) WITHOUT ROWID"
        )
        self._database.execute(
            "CREATE TABLE documents (place TEXT, id TEXT, text TEXT, reason TEXT, PRIMARY KEY (place, id))"
        )
        self._database.execute(f"PRAGMA application_id = {_APPLICATION}")
        self._database.execute(f"PRAGMA user_version = {FORMAT}")
        self._database.execute("COMMIT")


class _Transient(Exception):
    """A failure that may pass. `most_tries` bounds the tries where time alone should not."""

    def __init__(self, reason: str, most_tries: int | None = None) -> None:
        super().__init__(reason)
        self.most_tries = most_tries


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    content: bytes  # one byte more than allowed when it was longer
    charset: str


class _Pace:
    """Lets requests through one by one, at least `1 / per_second` seconds apart."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1.0 / per_second
        self._free_at = 0.0

    async def turn(self) -> None:
        """Wait until the next request may go."""
        now = time.monotonic()
        at = max(now, self._free_at)
        self._free_at = at + self._interval
        await _sleep(at - now)

    def hold(self, seconds: float) -> None:
        """Let nothing through for this long."""
        self._free_at = max(self._free_at, time.monotonic() + seconds)


class ChatNoir:
    """The search engine, behind its cache. Use as an asynchronous context manager.

    `requests` counts what was sent, `retries` how much of it was sent again.
    """

    # Ours are the models, index ids and base address of chatnoir-api, which are the contract. Its transport is not:
    # `request_page` serialises without aliases, so that `from` goes out as `start` and every page is the first one; it
    # also knows neither Retry-After nor typed errors, and blocks.

    def __init__(self, settings: ChatNoirSettings, notify: Notify) -> None:
        """Open the cache; nothing is sent yet, and no key is needed before a search that the cache lacks.

        Raises:
            UsageError: the key cannot be one.
            DataError: the cache file is something else.
        """
        self.requests = self.retries = 0
        self._settings, self._notify = settings, notify
        self._key = _key(settings)
        self._pace = _Pace(settings.requests_per_second)
        self._session: aiohttp.ClientSession | None = None
        self.documents = ChatNoirDocuments(settings, create=True)

    async def __aenter__(self) -> ChatNoir:
        # The environment's proxy settings count, as they do for chatnoir-api: ChatNoir is outside the house.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._settings.request_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()
        self.documents.close()

    async def search(self, query: str, depth: int) -> list[Hit]:
        """The best `depth` documents for a query, fewer when there are no more, in ChatNoir's order.

        A document that comes twice counts once, at its first place. Results without a TREC id are left out, with a
        notice: a run could not name them.

        Raises:
            UsageError: no key, or none that ChatNoir accepts; a query without words; more than 10,000 documents.
            EngineError: ChatNoir cannot be reached, or its answer is not what was asked for.
        """
        query = " ".join(query.split())
        if not query or depth > MAX_DEPTH:
            raise UsageError(
                f"ChatNoir: a query must have words and a depth of at most {MAX_DEPTH}: {query!r}, {depth}"
            )
        hits: dict[str, Hit] = {}
        start = unnamed = 0
        before: set[str] = set()
        while len(hits) < depth and start < MAX_DEPTH:
            size = min(self._settings.page_size, MAX_DEPTH - start)
            page = self.documents.page(query, start, size)
            if page is None:
                page = await self._ask(query, start, size)
                ids = {hit.document_id for hit in page.hits}
                if ids and ids == before:
                    raise self._error(f"{query!r}: the results from {start} on are those before; paging does not work")
                self.documents.put_page(query, start, size, page)
            before = {hit.document_id for hit in page.hits}
            for hit in page.hits:
                hits.setdefault(hit.document_id, hit)
            unnamed += page.unnamed
            count = len(page.hits) + page.unnamed
            start += count
            if count == 0 or (count < size and start >= page.total):
                break
        if unnamed:
            self._notify(f"ChatNoir: {query!r}: {unnamed} results without a TREC id left out")
        return list(hits.values())[:depth]

    async def fetch(self, hit: Hit) -> str | Missing:
        """The plain text of a document, which is what ChatNoir takes for the main content of the page.

        That there is none (HTTP 404, nothing but a frame, no text in the encoding named, over 4 MiB) is stored as
        well: to ask again, delete the cache.

        Raises:
            EngineError: ChatNoir cannot be reached, or fails on this document for as long as is retried.
        """
        if hit.document_id in self._settings.leave_out:
            return Missing("named in chatnoir.leave_out")
        known = self.documents.text(hit.document_id)
        if known is not None:
            return known
        # The key stays out: ChatNoir gives documents to everyone.
        query = {"uuid": str(hit.uuid), "index": index_id(self._settings.index), "raw": "true", "plain": "true"}

        async def get() -> str | Missing:
            return _text(await self._call("GET", "cache", MAX_DOCUMENT_BYTES, params=query))

        what = f"document {hit.document_id}"
        found = await self._retried(get, what, "; name it in chatnoir.leave_out to go on without it")
        self.documents.put_text(hit.document_id, found)
        return found

    async def _ask(self, query: str, start: int, size: int) -> _Page:
        if self._key is None:
            raise UsageError(
                f"{self._settings.cache} does not hold the search {query!r}, and there is no key to ask ChatNoir with: "
                + _HOW_TO_GIVE_A_KEY
            )
        request = Request(
            apikey=self._key.get_secret_value(),
            query=query,
            index={self._settings.index},
            start=start,
            size=size,
            explain=False,
            minimal=False,
            search_method="default",
        )
        body = request.model_dump_json(by_alias=True).encode()

        async def post() -> _Page:
            return self._page(await self._call("POST", "api/v1/_search", _MAX_PAGE_BYTES, body=body), query, size)

        return await self._retried(post, f"search {query!r}")

    async def _retried(self, call: Callable[[], Awaitable[ResultT]], what: str, hint: str = "") -> ResultT:
        given_up = stop_after_delay(self._settings.retry_for)
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_Transient),
            wait=wait_random_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT),
            stop=lambda state: given_up(state) or _tried_enough(state),
            before_sleep=self._count_retry,
            reraise=True,
        )
        try:
            return await retrying(call)
        except _Transient as error:
            reason = str(error)
        raise self._error(
            f"{what}: {reason}; all that came so far is in {self._settings.cache}: go on with the same command{hint}"
        )

    def _count_retry(self, _: RetryCallState) -> None:
        self.retries += 1

    async def _call(
        self, method: str, path: str, limit: int, *, params: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> _Reply:
        """Send once, in turn; of a longer reply `limit + 1` bytes. The status is 200 or 404, all others are raised."""
        assert self._session is not None, "use ChatNoir as an asynchronous context manager"
        await self._pace.turn()
        self.requests += 1
        headers = {"Accept": "application/json", "Content-Type": "application/json"} if body else {}
        url = self._settings.base_url + path
        try:
            # Documents are served from another host, to which ChatNoir redirects; the key must not go there.
            async with self._session.request(
                method, url, params=params, data=body, headers=headers, allow_redirects=body is None
            ) as response:
                content = await _bounded(response, limit)
                reply = _Reply(response.status, content, response.charset or "utf-8")
                problem, retry_after = "", response.headers.get("Retry-After")
        except TimeoutError:
            problem = f"no answer within {self._settings.request_timeout:g} s"
        except (aiohttp.ClientError, OSError) as error:
            problem = f"the connection broke: {type(error).__name__}: {error}"
        # Raised out here, since an error that is chained to what the server sent would print it, key and all.
        if problem:
            raise _Transient(self._clean(problem))
        if reply.status in (200, 404):
            return reply
        problem = f"HTTP {reply.status}: {self._clean(_message(content))}"
        if reply.status == 429 or reply.status >= 500:
            self._wait_as_asked(_seconds(retry_after), problem)
            raise _Transient(problem)
        if reply.status == 401:
            raise UsageError(f"{url}: ChatNoir does not take the key ({problem}); {_HOW_TO_GIVE_A_KEY}")
        if reply.status == 403:
            raise self._error(
                f"ChatNoir refuses this address or this key ({problem}); ask its maintainers, or give another key: "
                + _HOW_TO_GIVE_A_KEY
            )
        raise self._error(f"{path}: {problem}; is this ChatNoir? see chatnoir.base_url")

    def _wait_as_asked(self, seconds: float, problem: str) -> None:
        if seconds > self._settings.retry_for:
            raise self._error(
                f"{problem}; ChatNoir asks to wait for {seconds:,.0f} s, longer than chatnoir.retry_for; all that came "
                f"so far is in {self._settings.cache}: go on then with the same command"
            )
        if seconds > 0:
            self._notify(f"ChatNoir: {problem}; waiting for {seconds:,.0f} s as it asks")
            self._pace.hold(seconds)

    def _page(self, reply: _Reply, query: str, size: int) -> _Page:
        if reply.status == 404:
            raise self._error("HTTP 404: no search here; see chatnoir.base_url")
        response, problem = None, ""
        try:
            response = SearchResponse.model_validate_json(reply.content[:_MAX_PAGE_BYTES])
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        except TypeError as error:  # validators of chatnoir-api do not look at types first
            problem = str(error)
        if response is None:
            raise _Transient(f"a reply of another form: {self._clean(problem)}", most_tries=_BROKEN_TRIES)
        results = response.results
        if len(results) > size:
            raise self._error(f"{query!r}: {len(results)} results in a page of {size}")
        hits = []
        for result in results:
            ident = result.trec_id
            if ident is None:
                continue
            if (
                ident.split() != [ident]
                or not ident.isprintable()
                or len(ident) > _MAX_ID
                or self._clean(ident) != ident
            ):
                raise self._error(
                    f"{query!r}: a TREC id must be one short printable word, not {self._clean(ident)!r:.80}"
                )
            if result.index != self._settings.index or not math.isfinite(result.score):
                raise self._error(f"{query!r}: {ident} is of index {result.index} and has the score {result.score}")
            hits.append(Hit(document_id=ident, uuid=result.uuid, score=result.score))
        return _Page(hits=hits, unnamed=len(results) - len(hits), total=response.meta.total_results)

    def _clean(self, text: str) -> str:
        """What a server said, on one line, without the key, shortened."""
        if self._key is not None:
            key = self._key.get_secret_value()
            for form in {key, quote(key, safe=""), html.escape(key), orjson.dumps(key).decode()[1:-1]}:
                text = text.replace(form, "[key]")
        return " ".join(text.split())[:300]

    def _error(self, problem: str) -> EngineError:
        return EngineError(f"{self._settings.base_url}: {problem}")


async def retrieve_chatnoir(
    topics: list[Topic],
    settings: ChatNoirSettings,
    fields: tuple[str, ...],
    depth: int,
    notify: Notify,
    advance: Callable[[], None],
) -> list[list[Candidate]]:
    """Search every topic and fetch the documents found, into the cache; what is there already is not asked for.

    Args:
        topics: searched one after the other.
        settings: says where ChatNoir and the cache are.
        fields: of the topic, together the query. ChatNoir wants every word of it somewhere in the page, and reads
            `-word`, `"a phrase"`, `site:` and the like as operators.
        depth: documents a topic at most.
        notify: is told which documents were found but left out, since ChatNoir has no usable text of them.
        advance: called after each topic.

    Returns:
        for each topic its candidates by descending score, equal scores by ascending document id; ranks start at 1.

    Raises:
        UsageError, EngineError: see `ChatNoir.search` and `ChatNoir.fetch`; a topic whose fields are all empty.
    """
    rankings = []
    async with ChatNoir(settings, notify) as engine:
        for topic in topics:
            query = query_text(topic, fields)
            if not query.strip():
                raise UsageError(f"topic {topic.id}: nothing to search for, its fields {', '.join(fields)} are empty")
            hits = sorted(await engine.search(query, depth), key=lambda hit: (-hit.score, hit.document_id))
            texts = await in_order(engine.fetch, hits, _CONCURRENCY)
            left_out = {
                hit.document_id: text.reason for hit, text in zip(hits, texts, strict=True) if isinstance(text, Missing)
            }
            if left_out:
                named = ", ".join(f"{ident} ({reason})" for ident, reason in left_out.items())
                notify(f"topic {topic.id}: {len(left_out)} of {len(hits)} documents left out: {named}")
            kept = [hit for hit in hits if hit.document_id not in left_out]
            rankings.append(
                [Candidate(topic.id, hit.document_id, rank, hit.score) for rank, hit in enumerate(kept, start=1)]
            )
            advance()
    return rankings


def _key(settings: ChatNoirSettings) -> SecretStr | None:
    """The key as it is given in the configuration, or else in the environment."""
    given = settings.api_key.get_secret_value() if settings.api_key else os.environ.get(API_KEY_VARIABLE, "")
    key = given.strip()
    if key and (len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or key.split() != [key]):
        raise UsageError(f"the key for ChatNoir is no key: {_HOW_TO_GIVE_A_KEY}")
    return SecretStr(key) if key else None


def _tried_enough(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    return isinstance(error, _Transient) and error.most_tries is not None and state.attempt_number >= error.most_tries


async def _bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > limit:
            return bytes(content[: limit + 1])
    return bytes(content)


def _message(content: bytes) -> str:
    """What an error reply says: ChatNoir sends `{"code": …, "error": …, "message": …}`, a proxy a page."""
    try:
        return str(orjson.loads(content)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return content.decode("utf-8", errors="replace")


def _seconds(retry_after: str | None) -> float:
    """The Retry-After header in seconds from now; 0 where there is none."""
    if retry_after is None or retry_after.isdecimal():
        return float(retry_after or 0)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


def _text(reply: _Reply) -> str | Missing:
    """The text of a document as it came; bytes that the encoding does not know become the replacement character."""
    if reply.status == 404:
        return Missing("HTTP 404")
    if len(reply.content) > MAX_DOCUMENT_BYTES:
        return Missing(f"longer than {MAX_DOCUMENT_BYTES:,} bytes")
    try:
        if codecs.lookup(reply.charset).name in _NO_ENCODING_OF_TEXT:
            raise LookupError
        text = reply.content.decode(reply.charset, errors="replace")
    except (LookupError, ValueError):
        return Missing(f"in the unknown encoding {reply.charset!r:.40}")
    if "\0" in text:
        return Missing("not text")
    # ChatNoir says "None" where its archive lacks the page.
    return Missing("no text") if text.strip() in ("", "None") else text
