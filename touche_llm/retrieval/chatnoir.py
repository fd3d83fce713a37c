"""The search engine ChatNoir, with a cache of its replies, so that each of them is requested once."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args

import msgspec
from pydantic import AfterValidator, Field

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.files import ID_FORM, check_database_file, is_word
from touche_llm.data.records import Candidate, Document, Malformed, Topic, decode_json
from touche_llm.data.sqlite import DatabaseFormat, connect, create_if_empty, describe_opening_error
from touche_llm.data.topics.reading import build_query
from touche_llm.engines.connections import (
    describe_connection_error,
    parse_retry_after,
    read_body,
    to_line,
)
from touche_llm.errors import (
    DataError,
    EngineError,
    TransientFailure,
    UsageError,
    Warn,
    needs_extra,
)
from touche_llm.llm.retries import RetryNotice, retry
from touche_llm.retrieval.corpus import Corpus, CorpusRecord
from touche_llm.retrieval.registry import EngineInputs, Retriever, find_engine_problem, register
from touche_llm.retrieval.settings import QueryField
from touche_llm.settings.section import NamedSection, Scope, Section, check_address
from touche_llm.tasks.task import Task
from touche_llm.text.quoting import CHATNOIR_KEY_VARIABLE

if TYPE_CHECKING:  # slow to load, and every command reads the settings
    import aiohttp

HOW_TO_GIVE_A_KEY = (
    f"give it in the environment variable {CHATNOIR_KEY_VARIABLE}; ChatNoir hands keys out at "
    "https://www.chatnoir.eu/apikey/"
)
# Max bytes of a reply; a longer document is left out.
MAX_BYTES = 4 * 2**20
# ChatNoir lowers `from` to keep `from + size` within so many results, so pages beyond them would
# repeat forever.
MAX_RESULTS = 10_000
PAGE_SIZE = 100
_CONCURRENCY = 8

ValueT = TypeVar("ValueT", bound=msgspec.Struct)


class ChatNoirSettings(Section):
    """Settings of ChatNoir; times are in seconds.

    `leave_out` lists documents that are not fetched because ChatNoir cannot deliver them.
    """

    base_url: Annotated[
        str,
        AfterValidator(lambda url: check_address(url, CHATNOIR_KEY_VARIABLE) + "/"),
        Scope.DELIVERY,
    ] = "https://chatnoir.eu/"
    index: str = "clueweb22/b"
    cache: Annotated[Path, Scope.DELIVERY] = Path(".touche-llm/chatnoir.sqlite")
    requests_per_second: Annotated[float, Scope.DELIVERY] = Field(2.0, gt=0.0, le=1000.0)
    request_timeout: Annotated[float, Scope.DELIVERY] = Field(60.0, gt=0.0)
    retry_for: Annotated[float, Scope.DELIVERY] = Field(300.0, ge=0.0)
    leave_out: tuple[str, ...] = ()

    @property
    def index_id(self) -> str:
        """Id of the index in requests.

        Raises UsageError if the client is not installed or does not know the index.
        """
        with needs_extra("chatnoir", "`retriever.name: chatnoir`"):
            from chatnoir_api.model import Index, index_id

        if self.index not in get_args(Index):
            raise UsageError(
                f"chatnoir.index: must be one of {', '.join(get_args(Index))}, not {self.index!r:.80}"
            )
        return index_id(cast(Index, self.index))


_FORMAT = DatabaseFormat(
    noun="a ChatNoir cache",
    application=0x746C636E,  # "tlcn"
    version=3,
    statements=("CREATE TABLE replies (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",),
)


class Fetched(msgspec.Struct, frozen=True):
    """Text of a document, or None with the reason why ChatNoir delivers no usable one."""

    text: str | None
    reason: str | None = None


class Hit(msgspec.Struct, frozen=True):
    """Search result."""

    uuid: str
    trec_id: str | None
    score: float


class _SearchMeta(msgspec.Struct, frozen=True):
    total_results: int


class ResultPage(msgspec.Struct, frozen=True):
    """Page of results: what is used and stored of ChatNoir's reply."""

    meta: _SearchMeta
    results: list[Hit]


class ChatNoirDocuments:
    """SQLite cache of ChatNoir's replies, with the interface of a DocumentStore.

    Each entry is committed when it arrives, so a killed run resumes where it stopped.
    """

    def __init__(self, settings: ChatNoirSettings) -> None:
        """Open or create the cache; raise DataError if it is a file of another program."""
        self.path = settings.cache
        self._index = settings.index_id
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            check_database_file(self.path)
            self._database = connect(self.path.absolute().as_uri())
            self._database.path = self.path
            create_if_empty(self._database, _FORMAT, self.path)
        except (sqlite3.Error, OSError) as error:
            problem = describe_opening_error(self.path, _FORMAT.noun, "chatnoir.cache", error)
            raise DataError(problem) from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def get(self, document_id: str) -> Document:
        """Return a document; raises DataError if the cache has no text of it."""
        fetched = self.read(Fetched, document_id)
        if fetched is None:
            fetched = Fetched(None, "retrieve with ChatNoir again")

        if fetched.text is None:
            raise DataError(
                f"{self.path}: document {document_id!r} has no text in this cache: {fetched.reason}"
            )
        return Document(document_id, fetched.text)

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the ids without text in the cache, in the given order."""
        unknown: list[str] = []
        for document_id in dict.fromkeys(document_ids):
            fetched = self.read(Fetched, document_id)
            if fetched is None or fetched.text is None:
                unknown.append(document_id)
        return unknown

    def read(self, form: type[ValueT], *key: str | int) -> ValueT | None:
        """Return a stored page of results or document; None if it is not stored.

        Args:
            form: Type of the value.
            key: Address, query, start and size of a page; id of a document.
        """
        rows = self._database.query("SELECT value FROM replies WHERE key = ?", (self._encode(key),))
        if not rows:
            return None

        stored = str(rows[0][0])
        try:
            return decode_json(stored, form)
        except Malformed as error:
            raise DataError(f"{self.path}: damaged: the entry of {key}; delete the file") from error

    def store(self, value: msgspec.Struct, *key: str | int) -> None:
        """Store a page or a document, and commit."""
        row = (self._encode(key), msgspec.json.encode(value).decode())
        self._database.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", row)

    def _encode(self, key: tuple[str | int, ...]) -> str:
        return msgspec.json.encode((self._index, *key)).decode()


# Status 200 or 404, content (one byte longer than the limit if it is too long) and its encoding.
_RawReply = tuple[int, bytes, str]


class ChatNoirCorpus(Corpus):
    """Web documents found by ChatNoir, kept in a cache, with one key and one rate limit."""

    # Index ids and base address are those of chatnoir-api. Its transport is not used:
    # `request_page` sends `from` as `start`, so that every page is the first one; it also blocks,
    # and ignores Retry-After.

    def __init__(self, task: Task, settings: ChatNoirSettings, warn: Warn) -> None:
        """Open the cache; only searches that are not cached need a key.

        Args:
            task: Task of the run.
            settings: Settings of ChatNoir.
            warn: Receives notices about documents without usable text, which are left out.
        """
        self._cached = ChatNoirDocuments(settings)
        self.task = task
        self.candidates = self._cached
        self.documents = self._cached
        self.description = CorpusRecord(source=settings.base_url, index=settings.index)
        self.empty = (
            f"{settings.base_url}: no page for any topic in {settings.index}; see `retriever.query`"
        )
        self._settings = settings
        self._warn = warn
        self._key = os.environ.get(CHATNOIR_KEY_VARIABLE, "").strip()
        place = f"{settings.base_url} (chatnoir.base_url)"
        self._note = RetryNotice(warn, place, settings.retry_for)
        # When the next request may be sent.
        self._free_at = 0.0

    def close(self) -> None:
        """Close the cache."""
        super().close()
        self._cached.close()

    async def search(
        self,
        topics: list[Topic],
        fields: tuple[QueryField, ...],
        depth: int,
        done: Callable[[], None],
    ) -> list[list[Candidate]]:
        """Search each topic and fetch the documents found, unless they are cached.

        See the base class.

        ChatNoir requires all words of a query in a page, and reads `-word`, `"a phrase"`, `site:`
        and the like as operators. Candidates are in descending order of scores, ties in that of
        document ids.

        Raises:
            UsageError: The key is missing or refused, or a query is empty.
            EngineError: ChatNoir cannot be reached, its reply does not match the request, or it
                fails on a document until the retries end.
        """
        import aiohttp

        rankings: list[list[Candidate]] = []
        # ChatNoir is a public server, so proxies of the environment are used, as in chatnoir-api.
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._settings.request_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=True,
        ) as session:
            for topic in topics:
                query = _build_query(topic, fields)
                ranking = await self._rank(session, topic, query, depth)
                rankings.append(ranking)
                done()
        return rankings

    async def _rank(
        self, session: aiohttp.ClientSession, topic: Topic, query: str, depth: int
    ) -> list[Candidate]:
        """Return the best documents of a topic that have text, and warn about the others."""
        hits = await self._search(session, query, depth)
        ids = sorted(hits, key=lambda document_id: (-hits[document_id].score, document_id))
        texts = await map_in_order(
            lambda document_id: self._fetch(session, document_id, hits[document_id]),
            ids,
            _CONCURRENCY,
        )

        candidates: list[Candidate] = []
        left_out: list[str] = []
        for document_id, fetched in zip(ids, texts, strict=True):
            if fetched.text is None:
                left_out.append(f"{document_id} ({fetched.reason})")
                continue

            candidate = Candidate(
                topic_id=topic.id,
                document_id=document_id,
                rank=len(candidates) + 1,
                score=hits[document_id].score,
            )
            candidates.append(candidate)

        if left_out:
            count = f"{len(left_out)} of {len(ids)} documents"
            self._warn(f"topic {topic.id}: {count} left out: {', '.join(left_out)}")
        return candidates

    async def _search(
        self, session: aiohttp.ClientSession, query: str, depth: int
    ) -> dict[str, Hit]:
        """Return the best `depth` documents by TREC id, or fewer, in ChatNoir's order.

        A repeated document keeps its first position. Results without TREC id, which no run could
        name, are left out with a notice.
        """
        hits: dict[str, Hit] = {}
        start = 0
        unnamed = 0
        is_exhausted = False
        while len(hits) < depth and start < MAX_RESULTS and not is_exhausted:
            page = await self._read_page(session, query, start)
            for hit in page.results:
                if hit.trec_id is None:
                    unnamed += 1
                else:
                    hits.setdefault(hit.trec_id, hit)

            start += len(page.results)
            is_exhausted = _is_last_page(page, start)

        if unnamed:
            self._warn(f"ChatNoir: {query!r}: {unnamed} results without a TREC id left out")
        return dict(islice(hits.items(), depth))

    async def _read_page(
        self, session: aiohttp.ClientSession, query: str, start: int
    ) -> ResultPage:
        """Return the page of results from an offset, from the cache or from ChatNoir."""
        place = (self._settings.base_url, query, start, PAGE_SIZE)
        cached = self._cached.read(ResultPage, *place)
        if cached is not None:
            return cached

        page = await self._request_page(session, query, start)
        self._cached.store(page, *place)
        return page

    async def _request_page(
        self, session: aiohttp.ClientSession, query: str, start: int
    ) -> ResultPage:
        """Request a page of results, and check the ids in it."""
        if not self._key:
            raise UsageError(
                f"{self._settings.cache}: the search {query!r} is not in this cache, and ChatNoir needs a key; "
                + HOW_TO_GIVE_A_KEY
            )

        body: dict[str, Any] = {
            "apikey": self._key,
            "query": query,
            "index": [self._settings.index_id],
            "from": start,
            "size": PAGE_SIZE,
            "explain": False,
            "minimal": False,
            "search_method": "default",
        }
        _, content, _ = await self._request(
            session,
            f"search {query!r}",
            "POST",
            "api/v1/_search",
            json=body,
        )
        try:
            page = decode_json(content, ResultPage)
            _check_ids(page)
        except ValueError as error:
            raise self._fail(f"{query!r}: a reply of another form: {to_line(str(error))}") from None
        return page

    async def _fetch(self, session: aiohttp.ClientSession, document_id: str, hit: Hit) -> Fetched:
        """Return the plain text of a document: the main content of the page, extracted by ChatNoir.

        A missing text (HTTP 404, empty, not in the declared encoding, over 4 MiB) is cached as
        well; delete the cache to fetch it again.
        """
        from chatnoir_api.model import decode_uuid

        if document_id in self._settings.leave_out:
            return Fetched(None, "named in chatnoir.leave_out")

        cached = self._cached.read(Fetched, document_id)
        if cached is not None:
            return cached

        # Without the key: documents are public.
        params = {
            "uuid": str(decode_uuid(hit.uuid)),
            "index": self._settings.index_id,
            "raw": "true",
            "plain": "true",
        }
        what = f"document {document_id} (to continue without it, name it in chatnoir.leave_out)"
        reply = await self._request(session, what, "GET", "cache", params=params)
        fetched = _decode_text(reply)
        self._cached.store(fetched, document_id)
        return fetched

    async def _request(
        self, session: aiohttp.ClientSession, what: str, method: str, path: str, **options: Any
    ) -> _RawReply:
        """Send a request, described by `what`; transient failures are retried.

        Raises:
            UsageError: ChatNoir refuses the key.
            EngineError: ChatNoir cannot be reached, refuses the request, or fails until the retries
                end.
        """
        send = partial(self._send, session, method, path, **options)
        try:
            return await retry(send, self._settings.retry_for, self._note)
        except TransientFailure as error:
            raise self._fail(
                f"{what}: {error.reason}; all replies so far are in {self._settings.cache}: resume with the same "
                "command"
            ) from None

    async def _send(
        self, session: aiohttp.ClientSession, method: str, path: str, **options: Any
    ) -> _RawReply:
        """Send a request once, within the rate limit.

        Raises:
            TransientFailure: Another try may succeed.
            UsageError: ChatNoir refuses the key.
            EngineError: ChatNoir refuses the request.
        """
        import aiohttp

        await self._wait_for_turn()
        url = self._settings.base_url + path
        # ChatNoir redirects documents to another host, which must not receive the key.
        follows_redirects = method == "GET"
        try:
            async with session.request(
                method, url, allow_redirects=follows_redirects, **options
            ) as response:
                content = await read_body(response, MAX_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            problem = describe_connection_error(error, self._settings.request_timeout)
            raise TransientFailure(problem) from None

        status = response.status
        is_missing_document = status == 404 and method == "GET"
        if status == 200 or is_missing_document:
            return status, content, response.charset or "utf-8"

        problem = f"HTTP {status}: {to_line(content.decode(errors='replace'))}"
        if status == 429 or status >= 500:
            raise TransientFailure(problem, parse_retry_after(response.headers.get("Retry-After")))
        if status in (401, 403):
            raise UsageError(
                f"{url}: ChatNoir refuses the key, or this address ({problem}); {HOW_TO_GIVE_A_KEY}"
            )
        raise self._fail(f"{path}: {problem}; is this ChatNoir? see chatnoir.base_url")

    async def _wait_for_turn(self) -> None:
        """Reserve the next time at which the rate limit allows a request, and wait for it."""
        now = time.monotonic()
        send_at = max(now, self._free_at)
        self._free_at = send_at + 1.0 / self._settings.requests_per_second
        await asyncio.sleep(send_at - now)

    def _fail(self, problem: str) -> EngineError:
        return EngineError(f"{self._settings.base_url}: {problem}")


def _build_query(topic: Topic, fields: tuple[QueryField, ...]) -> str:
    """Return the query of a topic; raise UsageError if it is empty."""
    query = " ".join(build_query(topic, fields).split())
    if not query:
        raise UsageError(f"topic {topic.id}: nothing to search for, {', '.join(fields)} are empty")
    return query


def _is_last_page(page: ResultPage, end: int) -> bool:
    """Return whether ChatNoir has no results after a page, whose last one is number `end`."""
    if not page.results:
        return True
    return len(page.results) < PAGE_SIZE and end >= page.meta.total_results


def _check_ids(page: ResultPage) -> None:
    """Raise ValueError if a UUID or a TREC id of a page is malformed."""
    from chatnoir_api.model import decode_uuid

    for hit in page.results:
        decode_uuid(hit.uuid)
        if hit.trec_id is not None and not is_word(hit.trec_id):
            raise ValueError(f"a TREC id must be {ID_FORM}, not {hit.trec_id!r:.80}")


def _decode_text(reply: _RawReply) -> Fetched:
    """Return the decoded text of a document, with replacement characters for invalid bytes."""
    status, content, charset = reply
    if status == 404:
        return Fetched(None, "HTTP 404")
    if len(content) > MAX_BYTES:
        return Fetched(None, f"longer than {MAX_BYTES:,} bytes")
    try:
        text = content.decode(charset, errors="replace")
    except (LookupError, ValueError):
        return Fetched(None, f"in the unknown encoding {charset!r:.40}")
    if "\0" in text:
        return Fetched(None, "not text")
    # ChatNoir sends "None" if its archive lacks the page.
    if text.strip() in ("", "None"):
        return Fetched(None, "no text")
    return Fetched(text)


def _open(inputs: EngineInputs) -> ChatNoirCorpus:
    return ChatNoirCorpus(inputs.task, inputs.settings, inputs.warn)


def _get_index(settings: ChatNoirSettings) -> str:
    return settings.index


def _get_cache(settings: ChatNoirSettings) -> Path:
    return settings.cache


register(
    Retriever(
        name="chatnoir",
        help="web search",
        method="ChatNoir",
        section=NamedSection(name="chatnoir", settings=ChatNoirSettings),
        open_engine=_open,
        find_problem=find_engine_problem,
        describe=_get_index,
        # Opening the corpus would make an empty cache of documents.
        find_needed_file=_get_cache,
        order=50,
    )
)
