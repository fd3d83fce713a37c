"""Client of ChatNoir, which requests each search result and document once and caches it on disk."""

from __future__ import annotations

import asyncio
import codecs
import html
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import orjson
from chatnoir_api.v1.model import Request, SearchResponse
from pydantic import SecretStr, ValidationError

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.io import is_word
from touche_llm.data.records import Candidate, Topic
from touche_llm.data.topics import build_query
from touche_llm.data.transport import BROKEN_TRIES, TransientFailure, parse_retry_after, read_body, retry
from touche_llm.errors import EngineError, UsageError, Warn
from touche_llm.retrieval.chatnoir import (
    API_KEY_VARIABLE,
    ChatNoirDocuments,
    ChatNoirSettings,
    Hit,
    MissingDocument,
    Page,
)

HOW_TO_GIVE_A_KEY = (
    f"give it in the environment variable {API_KEY_VARIABLE}, or as chatnoir.api_key in the configuration; "
    "ChatNoir hands keys out at https://www.chatnoir.eu/apikey/"
)
_MIN_KEY_CHARS = 8

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class HttpReply:
    """Reply of status 200 or 404; the `content` of an overlong reply is one byte longer than the limit."""

    status: int
    content: bytes
    charset: str


class RateLimiter:
    """Rate limiter that keeps requests at least `1 / per_second` seconds apart."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1.0 / per_second
        self._free_at = 0.0

    async def wait(self) -> None:
        """Wait until the next request may be sent."""
        now = time.monotonic()
        at = max(now, self._free_at)
        self._free_at = at + self._interval
        await asyncio.sleep(at - now)

    def hold(self, seconds: float) -> None:
        """Block all requests for this long."""
        self._free_at = max(self._free_at, time.monotonic() + seconds)


class Transport:
    """Connection to one server with one key and one rate limit. An asynchronous context manager."""

    # Models, index ids and base address are those of chatnoir-api. Its transport is not used: `request_page` serialises
    # without aliases, so `from` is sent as `start` and every page is the first one; it also blocks and supports neither
    # Retry-After nor typed errors.

    def __init__(self, settings: ChatNoirSettings, warn: Warn) -> None:
        """Read the key without sending a request.

        Raises:
            UsageError: The key has an invalid form.
        """
        self.key = _read_key(settings)
        self._settings, self._warn = settings, warn
        self._has_reported = False
        self._limiter = RateLimiter(settings.requests_per_second)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Transport:
        # ChatNoir is a public server, so proxies of the environment are used, as in chatnoir-api.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._settings.request_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def request(
        self,
        what: str,
        path: str,
        read: Callable[[HttpReply], ResultT],
        *,
        limit: int,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        hint: str = "",
    ) -> ResultT:
        """Send a request and return its reply as parsed by `read`; retry transient failures.

        Args:
            what: Description of the request for errors.
            path: Path below the base address.
            read: Parser of the reply; if it raises TransientFailure, the request is sent again.
            limit: Max bytes of the reply; a longer one is cut after `limit + 1`.
            params: Query of the address, without the key, since other hosts may log it.
            body: JSON to send with POST; None sends a GET and follows redirects.
            hint: End of the error message if all retries fail.

        Raises:
            UsageError: ChatNoir refuses the key.
            EngineError: ChatNoir cannot be reached, refuses the request, or fails until the retries end.
        """

        async def once() -> ResultT:
            return read(await self._send(path, limit, params, body))

        try:
            return await retry(once, self._settings.retry_for, TransientFailure, self._report_once)
        except TransientFailure as error:
            raise self.error(
                f"{what}: {error}; all replies so far are in {self._settings.cache}: resume with the same command{hint}"
            ) from error

    def _report_once(self, failed: TransientFailure) -> None:
        """Report the first failure that is retried, to explain the wait."""
        if not self._has_reported:
            self._has_reported = True
            place, seconds = self._settings.base_url, self._settings.retry_for
            self._warn(f"{place}: {failed}; tried again for up to {seconds:g} s (chatnoir.base_url)")

    async def _send(self, path: str, limit: int, params: Mapping[str, str] | None, body: bytes | None) -> HttpReply:
        """Send a request once, within the rate limit; raise an error for a status other than 200 and 404."""
        assert self._session is not None, "use the transport as an asynchronous context manager"
        await self._limiter.wait()
        method, headers = "GET", {}
        if body is not None:
            method, headers = "POST", {"Accept": "application/json", "Content-Type": "application/json"}
        url = self._settings.base_url + path
        problem = ""
        try:
            # ChatNoir redirects documents to another host, which must not receive the key.
            async with self._session.request(
                method, url, params=params, data=body, headers=headers, allow_redirects=body is None
            ) as response:
                reply = HttpReply(response.status, await read_body(response, limit), response.charset or "utf-8")
                requested_wait = parse_retry_after(response.headers.get("Retry-After"))
        except TimeoutError:
            problem = f"no answer within {self._settings.request_timeout:g} s"
        except (aiohttp.ClientError, OSError) as error:
            problem = f"the connection broke: {type(error).__name__}: {error}"
        # Raised outside the handler: a chained error would print the reply, which may contain the key.
        if problem:
            raise TransientFailure(self.clean(problem))
        if reply.status in (200, 404):
            return reply
        problem = f"HTTP {reply.status}: {self.clean(_extract_message(reply.content))}"
        if reply.status == 429 or reply.status >= 500:
            self._wait_as_requested(requested_wait or 0.0, problem)
            raise TransientFailure(problem)
        if reply.status == 401:
            raise UsageError(f"{url}: ChatNoir refuses the key ({problem}); {HOW_TO_GIVE_A_KEY}")
        if reply.status == 403:
            raise self.error(
                f"ChatNoir refuses this address or this key ({problem}); ask its maintainers, or give another key: "
                + HOW_TO_GIVE_A_KEY
            )
        raise self.error(f"{path}: {problem}; is this ChatNoir? see chatnoir.base_url")

    def _wait_as_requested(self, seconds: float, problem: str) -> None:
        if seconds > self._settings.retry_for:
            raise self.error(
                f"{problem}; ChatNoir requests a wait of {seconds:,.0f} s, longer than chatnoir.retry_for; all "
                f"replies so far are in {self._settings.cache}: resume then with the same command"
            )
        if seconds > 0:
            self._warn(f"ChatNoir: {problem}; waiting for {seconds:,.0f} s as requested")
            self._limiter.hold(seconds)

    def clean(self, text: str) -> str:
        """Return a text from a server on one line, without the key, shortened."""
        if self.key is not None:
            key = self.key.get_secret_value()
            for form in {key, quote(key, safe=""), html.escape(key), orjson.dumps(key).decode()[1:-1]}:
                text = text.replace(form, "[key]")
        return " ".join(text.split())[:300]

    def error(self, problem: str) -> EngineError:
        """Return an error that names this server."""
        return EngineError(f"{self._settings.base_url}: {problem}")


def _read_key(settings: ChatNoirSettings) -> SecretStr | None:
    """Return the key from the configuration or else from the environment."""
    given = settings.api_key.get_secret_value() if settings.api_key else os.environ.get(API_KEY_VARIABLE, "")
    key = given.strip()
    if key and (len(key) < _MIN_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key):
        raise UsageError(f"chatnoir.api_key: the key for ChatNoir has an invalid form; {HOW_TO_GIVE_A_KEY}")
    return SecretStr(key) if key else None


def _extract_message(content: bytes) -> str:
    """Return the message of an error reply: ChatNoir sends `{"code": …, "error": …, "message": …}`, a proxy a page."""
    try:
        return str(orjson.loads(content)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return content.decode("utf-8", errors="replace")


MAX_DOCUMENT_BYTES = 4 * 2**20
# ChatNoir lowers `from` to keep `from + size` within this window, so pages beyond it would repeat.
MAX_DEPTH = 10_000
_MAX_PAGE_BYTES = 16 * 2**20
_MAX_ID = 256
# Python codecs that are slow on long texts, return lone surrogates or warn; no page uses them.
_NO_ENCODING_OF_TEXT = {"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"}
_CONCURRENCY = 8


class ChatNoir:
    """ChatNoir behind a cache. An asynchronous context manager."""

    def __init__(self, settings: ChatNoirSettings, warn: Warn) -> None:
        """Open the cache without sending a request; only searches that are not cached need a key.

        Raises:
            UsageError: The key has an invalid form.
            DataError: The cache is a file of another program.
        """
        self._settings, self._warn = settings, warn
        self._transport = Transport(settings, warn)
        self._documents = ChatNoirDocuments(settings)

    async def __aenter__(self) -> ChatNoir:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.__aexit__()
        self._documents.close()

    async def search(self, query: str, depth: int) -> list[Hit]:
        """Return the best `depth` documents for a query, or fewer, in ChatNoir's order.

        A repeated document keeps its first position. Results without TREC id are skipped with a notice, since a run
        could not name them.

        Raises:
            UsageError: The key is missing or refused, the query is empty, or `depth` exceeds 10,000.
            EngineError: ChatNoir cannot be reached, or its reply does not match the request.
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
            stored = self._documents.get_page(query, start, size)
            page = await self._request_page(query, start, size) if stored is None else stored
            ids = {hit.document_id for hit in page.hits}
            if ids and ids == before:
                raise self._transport.error(
                    f"{query!r}: the results from {start} on are those before; paging does not work"
                )
            before = ids
            if stored is None:
                self._documents.put_page(query, start, size, page)
            for hit in page.hits:
                hits.setdefault(hit.document_id, hit)
            unnamed += page.unnamed
            count = len(page.hits) + page.unnamed
            start += count
            if count == 0 or (count < size and start >= page.total):
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
        found = await self._transport.request(
            f"document {hit.document_id}",
            "cache",
            _decode_text,
            limit=MAX_DOCUMENT_BYTES,
            # Without the key: documents are public.
            params={"uuid": str(hit.uuid), "index": self._settings.index_id, "raw": "true", "plain": "true"},
            hint="; name it in chatnoir.leave_out to continue without it",
        )
        self._documents.put_text(hit.document_id, found)
        return found

    async def _request_page(self, query: str, start: int, size: int) -> Page:
        key = self._transport.key
        if key is None:
            raise UsageError(
                f"{self._settings.cache}: the search {query!r} is not in this cache, and ChatNoir needs a key; "
                + HOW_TO_GIVE_A_KEY
            )
        request = Request(
            apikey=key.get_secret_value(),
            query=query,
            index={self._settings.index},
            start=start,
            size=size,
            explain=False,
            minimal=False,
            search_method="default",
        )
        return await self._transport.request(
            f"search {query!r}",
            "api/v1/_search",
            partial(self._parse_page, query, size),
            limit=_MAX_PAGE_BYTES,
            body=request.model_dump_json(by_alias=True).encode(),
        )

    def _parse_page(self, query: str, size: int, reply: HttpReply) -> Page:
        if reply.status == 404:
            raise self._transport.error("HTTP 404: no search here; see chatnoir.base_url")
        try:
            response = SearchResponse.model_validate_json(reply.content)
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        except TypeError as error:  # validators of chatnoir-api do not check types
            problem = str(error)
        else:
            return self._check_page(response, query, size)
        # Raised outside the handler: a chained error would print the reply, which may contain the key.
        raise TransientFailure(f"a reply of another form: {self._transport.clean(problem)}", max_tries=BROKEN_TRIES)

    def _check_page(self, response: SearchResponse, query: str, size: int) -> Page:
        clean, error, results = self._transport.clean, self._transport.error, response.results
        if len(results) > size:
            raise error(f"{query!r}: {len(results)} results in a page of {size}")
        hits = []
        for result in results:
            ident = result.trec_id
            if ident is None:
                continue
            if not is_word(ident) or len(ident) > _MAX_ID or clean(ident) != ident:
                raise error(f"{query!r}: a TREC id must be one short printable word, not {clean(ident)!r:.80}")
            if result.index != self._settings.index or not math.isfinite(result.score):
                raise error(f"{query!r}: {ident} is of index {result.index} and has the score {result.score}")
            hits.append(Hit(document_id=ident, uuid=result.uuid, score=result.score))
        return Page(hits=hits, unnamed=len(results) - len(hits), total=response.meta.total_results)


async def retrieve_chatnoir(
    topics: list[Topic],
    settings: ChatNoirSettings,
    fields: tuple[str, ...],
    depth: int,
    warn: Warn,
    advance: Callable[[], None],
) -> list[list[Candidate]]:
    """Search each topic and fetch the documents found, unless they are cached.

    ChatNoir requires all words of a query in a page, and reads `-word`, `"a phrase"`, `site:` and the like as
    operators. `warn` is called with a notice about documents without usable text, which are left out, and `advance`
    after each topic.

    Returns:
        Candidates of each topic by descending score, ties by ascending document id; ranks start at 1.

    Raises:
        UsageError: As `ChatNoir.search`, or all fields of a topic are empty.
        EngineError: As `ChatNoir.search` and `ChatNoir.fetch`.
    """
    rankings = []
    async with ChatNoir(settings, warn) as engine:
        for topic in topics:
            query = build_query(topic, fields)
            if not query.strip():
                raise UsageError(f"topic {topic.id}: nothing to search for, its fields {', '.join(fields)} are empty")
            hits = sorted(await engine.search(query, depth), key=lambda hit: (-hit.score, hit.document_id))
            texts = await map_in_order(engine.fetch, hits, _CONCURRENCY)
            left_out = {
                hit.document_id: text.reason
                for hit, text in zip(hits, texts, strict=True)
                if isinstance(text, MissingDocument)
            }
            if left_out:
                named = ", ".join(f"{ident} ({reason})" for ident, reason in left_out.items())
                warn(f"topic {topic.id}: {len(left_out)} of {len(hits)} documents left out: {named}")
            kept = [hit for hit in hits if hit.document_id not in left_out]
            rankings.append(
                [Candidate(topic.id, hit.document_id, rank, hit.score) for rank, hit in enumerate(kept, start=1)]
            )
            advance()
    return rankings


def _decode_text(reply: HttpReply) -> str | MissingDocument:
    """Return the decoded text of a document, with replacement characters for invalid bytes."""
    if reply.status == 404:
        return MissingDocument("HTTP 404")
    if len(reply.content) > MAX_DOCUMENT_BYTES:
        return MissingDocument(f"longer than {MAX_DOCUMENT_BYTES:,} bytes")
    try:
        if codecs.lookup(reply.charset).name in _NO_ENCODING_OF_TEXT:
            raise LookupError
        text = reply.content.decode(reply.charset, errors="replace")
    except (LookupError, ValueError):
        return MissingDocument(f"in the unknown encoding {reply.charset!r:.40}")
    if "\0" in text:
        return MissingDocument("not text")
    # ChatNoir sends "None" if its archive lacks the page.
    return MissingDocument("no text") if text.strip() in ("", "None") else text
