"""Client of ChatNoir, which requests each search result and document once and caches it on disk."""

from __future__ import annotations

import asyncio
import html
import math
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import orjson
from chatnoir_api.v1.model import Request, SearchResponse
from pydantic import SecretStr, ValidationError

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.io import is_word
from touche_llm.data.records import Candidate, Topic
from touche_llm.data.topics import build_query
from touche_llm.data.transport import (
    BROKEN_TRIES,
    TransientFailure,
    describe_connection_error,
    parse_retry_after,
    read_body,
    retry,
    to_line,
)
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
MAX_DOCUMENT_BYTES = 4 * 2**20
# ChatNoir lowers `from` to keep `from + size` within this window, so pages beyond it would repeat.
MAX_DEPTH = 10_000
_MAX_PAGE_BYTES = 16 * 2**20
_MAX_ID = 256
_CONCURRENCY = 8

ResultT = TypeVar("ResultT")
# Reads a reply: its status, 200 or 404, its content, one byte longer than the limit if too long, and its encoding.
Read = Callable[[int, bytes, str], ResultT]


class ChatNoir:
    """ChatNoir behind a cache, with one key and one rate limit. An asynchronous context manager."""

    # Models, index ids and base address are those of chatnoir-api. Its transport is not used: `request_page` serialises
    # without aliases, so `from` is sent as `start` and every page is the first one; it also blocks and supports neither
    # Retry-After nor typed errors.

    def __init__(self, settings: ChatNoirSettings, warn: Warn) -> None:
        """Open the cache without sending a request; only searches that are not cached need a key.

        Raises:
            UsageError: The key has an invalid form.
            DataError: The cache is a file of another program.
        """
        self._settings, self._warn = settings, warn
        self._key = _read_key(settings)
        self._documents = ChatNoirDocuments(settings)
        self._has_reported = False
        # When the next request may be sent.
        self._free_at = 0.0

    async def __aenter__(self) -> ChatNoir:
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
                raise self._fail(f"{query!r}: the results from {start} on are those before; paging does not work")
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
        # Without the key: documents are public.
        params = {"uuid": str(hit.uuid), "index": self._settings.index_id, "raw": "true", "plain": "true"}
        what, hint = f"document {hit.document_id}", "; name it in chatnoir.leave_out to continue without it"
        send = partial(self._send, "GET", "cache", _decode_text, MAX_DOCUMENT_BYTES, params=params)
        found = await self._request(what, send, hint)
        self._documents.put_text(hit.document_id, found)
        return found

    async def _request_page(self, query: str, start: int, size: int) -> Page:
        key = self._key
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
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        body = request.model_dump_json(by_alias=True).encode()
        read = partial(self._parse_page, query, size)
        send = partial(self._send, "POST", "api/v1/_search", read, _MAX_PAGE_BYTES, headers=headers, data=body)
        return await self._request(f"search {query!r}", send)

    async def _request(self, what: str, send: Callable[[], Awaitable[ResultT]], hint: str = "") -> ResultT:
        """Return the result of a request; transient failures are retried.

        Args:
            what: Description of the request for errors.
            send: Sends it once.
            hint: End of the error message if all retries fail.

        Raises:
            UsageError: ChatNoir refuses the key.
            EngineError: ChatNoir cannot be reached, refuses the request, or fails until the retries end.
        """
        try:
            return await retry(send, self._settings.retry_for, TransientFailure, self._report_once)
        except TransientFailure as error:
            raise self._fail(
                f"{what}: {error.reason}; all replies so far are in {self._settings.cache}: resume with the same "
                f"command{hint}"
            ) from None

    def _report_once(self, failed: TransientFailure) -> None:
        """Report the first failure that is retried, to explain the wait."""
        if not self._has_reported:
            self._has_reported = True
            place, seconds = self._settings.base_url, self._settings.retry_for
            self._warn(f"{place}: {failed}; tried again for up to {seconds:g} s (chatnoir.base_url)")

    async def _send(self, method: str, path: str, read: Read[ResultT], limit: int, **options: Any) -> ResultT:
        """Send a request once, within the rate limit, and read its reply."""
        now = time.monotonic()
        at = max(now, self._free_at)
        self._free_at = at + 1.0 / self._settings.requests_per_second
        await asyncio.sleep(at - now)
        url, problem = self._settings.base_url + path, ""
        try:
            # ChatNoir redirects documents to another host, which must not receive the key.
            async with self._session.request(method, url, allow_redirects=method == "GET", **options) as response:
                status, charset, content = (
                    response.status,
                    response.charset or "utf-8",
                    await read_body(response, limit),
                )
                retry_after = parse_retry_after(response.headers.get("Retry-After"))
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            problem = describe_connection_error(error, self._settings.request_timeout, self._clean)
        # Raised outside the handler: a chained error would print the reply, which may contain the key.
        if problem:
            raise TransientFailure(problem)
        if status in (200, 404):
            return read(status, content, charset)
        problem = f"HTTP {status}: {self._clean(_extract_message(content))}"
        if status == 429 or status >= 500:
            raise TransientFailure(problem, retry_after)
        if status == 401:
            raise UsageError(f"{url}: ChatNoir refuses the key ({problem}); {HOW_TO_GIVE_A_KEY}")
        if status == 403:
            raise self._fail(
                f"ChatNoir refuses this address or this key ({problem}); ask its maintainers, or give another key: "
                + HOW_TO_GIVE_A_KEY
            )
        raise self._fail(f"{path}: {problem}; is this ChatNoir? see chatnoir.base_url")

    def _parse_page(self, query: str, size: int, status: int, content: bytes, _: str) -> Page:
        if status == 404:
            raise self._fail("HTTP 404: no search here; see chatnoir.base_url")
        response, problem = None, ""
        try:
            response = SearchResponse.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        except TypeError as error:  # validators of chatnoir-api do not check types
            problem = str(error)
        if response is None:
            raise TransientFailure(f"a reply of another form: {self._clean(problem)}", max_tries=BROKEN_TRIES)
        if len(response.results) > size:
            raise self._fail(f"{query!r}: {len(response.results)} results in a page of {size}")
        hits = []
        for result in response.results:
            ident = result.trec_id
            if ident is None:
                continue
            if not is_word(ident) or len(ident) > _MAX_ID:
                raise self._fail(
                    f"{query!r}: a TREC id must be one short printable word, not {self._clean(ident)!r:.80}"
                )
            if result.index != self._settings.index or not math.isfinite(result.score):
                raise self._fail(f"{query!r}: {ident} is of index {result.index} and has the score {result.score}")
            hits.append(Hit(document_id=ident, uuid=result.uuid, score=result.score))
        return Page(hits=hits, unnamed=len(response.results) - len(hits), total=response.meta.total_results)

    def _clean(self, text: str) -> str:
        """Return a text from a server on one line, without the key, shortened."""
        if self._key is not None:
            key = self._key.get_secret_value()
            for form in {key, quote(key, safe=""), html.escape(key), orjson.dumps(key).decode()[1:-1]}:
                text = text.replace(form, "[key]")
        return to_line(text)

    def _fail(self, problem: str) -> EngineError:
        return EngineError(f"{self._settings.base_url}: {problem}")


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


def _decode_text(status: int, content: bytes, charset: str) -> str | MissingDocument:
    """Return the decoded text of a document, with replacement characters for invalid bytes."""
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
