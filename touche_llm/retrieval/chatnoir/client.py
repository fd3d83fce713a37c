"""Client of ChatNoir, which requests each search result and document once and caches it on disk."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable
from functools import partial

from chatnoir_api.v1.model import Request, SearchResponse
from pydantic import ValidationError

from touche_llm.data.lines import is_word
from touche_llm.data.records import Candidate, Topic
from touche_llm.data.topics import build_query
from touche_llm.data.transport import BROKEN_TRIES, TransientFailure
from touche_llm.errors import UsageError, Warn
from touche_llm.llm.concurrency import map_in_order
from touche_llm.retrieval.chatnoir.cache import ChatNoirDocuments, Hit, MissingDocument, Page
from touche_llm.retrieval.chatnoir.settings import ChatNoirSettings
from touche_llm.retrieval.chatnoir.transport import HOW_TO_GIVE_A_KEY, HttpReply, Transport

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
