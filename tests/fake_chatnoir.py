"""ChatNoir in a few lines: real HTTP, checked with chatnoir-api's own models.

And how tests ask it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import orjson
from aiohttp import web
from chatnoir_api.model import index_id, index_prefix, parse_index
from chatnoir_api.v1.model import Request, SearchResponse

from touche_llm.data.records import Candidate, Topic
from touche_llm.retrieval.chatnoir import (
    ChatNoirCorpus,
    ChatNoirDocuments,
    ChatNoirSettings,
    Fetched,
)
from touche_llm.tasks import get_task

KEY = "LONG-and-secret-KEY-0123456789"
# Answers one request instead of the server's usual way; gets the request and its body.
Behaviour = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
TOPICS = [
    Topic("1", "Should bottled water be banned?"),
    Topic("2", "Ist Gr\u00fcn \U0001f600 besser?"),
]


def uuid_of(trec_id: str) -> str:
    """ChatNoir's own id of a ClueWeb22 document."""
    return str(uuid5(NAMESPACE_URL, f"{index_prefix('clueweb22/b')}:{trec_id}"))


def result(trec_id: str | None, score: float, **changes: Any) -> dict[str, Any]:
    """A search result as ChatNoir sends it."""
    return {
        "index": index_id("clueweb22/b"),
        "uuid": uuid_of(str(trec_id)),
        "trec_id": trec_id,
        "warc_id": None,
        "score": score,
        "target_uri": "https://example.org/page",
        "cache_uri": "https://example.org/cache",
        "target_hostname": "example.org",
        "crawl_date": "2022-08-01T10:00:00Z",
        "page_rank": None,
        "spam_rank": None,
        "title": "A <em>title</em>",
        "snippet": "A &quot;snippet&quot; with <em>words</em>",
        "content_type": "text/html",
        "lang": "en",
        **changes,
    }


ONE = result("d1", 1.0)


def ids(count: int, start: int = 0) -> list[str]:
    return [f"clueweb22-en{n:04d}-00-00000" for n in range(start, start + count)]


def results(count: int) -> list[dict[str, Any]]:
    return [result(ident, 1000.5 - n) for n, ident in enumerate(ids(count))]


def answer(results: list[dict[str, Any]], total: int | None = None) -> dict[str, Any]:
    """The body of a reply to a search."""
    meta = {
        "query_time": 12,
        "total_results": len(results) if total is None else total,
        "indices": ["cw22"],
        "search_method": "default",
    }
    return {"meta": meta, "results": results}


def problem(code: int, message: str, **headers: str) -> web.Response:
    """An error as ChatNoir sends it."""
    body = {"code": code, "error": "an_error", "message": message}
    return web.json_response(body, status=code, headers=headers)


def holds_key(text: str) -> bool:
    return KEY in text or KEY[:12] in text


@dataclass
class FakeChatNoir:
    """Gives every query the same results.

    Behaviours are used up one request after the other, then `rest` serves; None is the usual way.
    `texts` are documents by TREC id; those of results that are not in it are "Text of ID." unless
    they are in `gone`.
    """

    results: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, str | bytes] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    charset: str = "utf-8"
    behaviours: list[Behaviour | None] = field(default_factory=list)
    rest: Behaviour | None = None
    searches: list[dict[str, Any]] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    document_queries: list[Mapping[str, str]] = field(default_factory=list)
    url: str = ""

    @property
    def requests(self) -> int:
        """All requests so far, redirects not counted."""
        return len(self.searches) + len(self.fetched)

    async def search(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        # What the server knows: `from`, and indices by their short names. `start` it ignores.
        indices = {parse_index(each) for each in body["index"]}
        search = Request.model_validate({**body, "index": indices, "start": body.get("from", 0)})
        self.searches.append(body)
        if (behaviour := self._behaviour()) is not None:
            return await behaviour(request, body)
        if search.apikey != KEY:
            return problem(401, "Invalid API key.")
        assert search.start is not None and search.size is not None
        page = self.results[search.start : search.start + search.size]
        reply = orjson.dumps(answer(page, len(self.results)))
        SearchResponse.model_validate_json(reply)
        return web.Response(body=reply, content_type="application/json")

    async def cache(self, request: web.Request) -> web.StreamResponse:
        """As ChatNoir does: documents come from another place."""
        raise web.HTTPMovedPermanently("/content?" + request.query_string)

    async def content(self, request: web.Request) -> web.StreamResponse:
        assert (request.query["index"], request.query["raw"], request.query["plain"]) == (
            "cw22",
            "true",
            "true",
        )
        known = {uuid_of(str(each["trec_id"])): str(each["trec_id"]) for each in self.results}
        trec_id = known[request.query["uuid"]]
        self.fetched.append(trec_id)
        self.document_queries.append(dict(request.query))
        if (behaviour := self._behaviour()) is not None:
            return await behaviour(request, {})
        if trec_id in self.gone:
            return web.Response(status=404, text="<h1>Not Found</h1>", content_type="text/html")
        text = self.texts.get(trec_id, f"Text of {trec_id}.")
        body = text if isinstance(text, bytes) else text.encode(self.charset)
        return web.Response(
            body=body, headers={"Content-Type": f"text/html; charset={self.charset}"}
        )

    def _behaviour(self) -> Behaviour | None:
        return self.behaviours.pop(0) if self.behaviours else self.rest

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeChatNoir]:
        """Serve on a free port of this machine."""
        app = web.Application()
        app.router.add_post("/api/v1/_search", self.search)
        app.router.add_get("/cache", self.cache)
        app.router.add_get("/content", self.content)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert runner.addresses
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


def status(code: int, message: str = "", **headers: str) -> Behaviour:
    """Answer with an HTTP status."""

    async def behave(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return problem(code, message or f"status {code}", **headers)

    return behave


def echoes(code: int) -> Behaviour:
    """Answer with a status and the request itself, key and all: in the body, in a header and in the reason."""

    async def behave(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        key = str(body["apikey"])
        headers = {"Location": f"/{key}", "X-Key": key, "Content-Type": "application/json"}
        # It stands where the message is cut, too.
        message = f"bad key {key} ".ljust(279, "x") + key
        reply = orjson.dumps({"message": message, "request": body, "meta": key})
        return web.Response(status=code, reason=f"No {key}", body=reply, headers=headers)

    return behave


def says(body: Any) -> Behaviour:
    """Answer with this body: bytes as they are, else as JSON."""

    async def behave(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        sent = body if isinstance(body, bytes) else orjson.dumps(body)
        return web.Response(body=sent, content_type="application/json")

    return behave


def settings_for(server: FakeChatNoir, folder: Path, **changes: Any) -> ChatNoirSettings:
    values = {"requests_per_second": 1000.0, "request_timeout": 5.0, "retry_for": 5.0, **changes}
    return ChatNoirSettings(base_url=server.url, cache=folder / "chatnoir.sqlite", **values)


async def search(
    server: FakeChatNoir, folder: Path, depth: int = 10, **changes: Any
) -> list[Candidate]:
    async with server.running():
        return await search_again(settings_for(server, folder, **changes), depth)


async def search_again(
    settings: ChatNoirSettings, depth: int = 10, query: str = "bottled water"
) -> list[Candidate]:
    (ranking,) = await Retrieval(print)(settings, [Topic("1", query)], depth)
    return ranking


async def fetch(server: FakeChatNoir, folder: Path, **changes: Any) -> str | None:
    """Return the text of the first document that the server has, as it is cached after a search.

    None for none.
    """
    await search(server, folder, **changes)
    settings = settings_for(server, folder)
    with closing(ChatNoirDocuments(settings)) as documents:
        found = documents.read(Fetched, server.results[0]["trec_id"])
    assert found is not None
    return found.text


class Retrieval:
    """Retrieves, and keeps the warnings."""

    def __init__(self, warn: Callable[[str], None] | None = None) -> None:
        self.notices: list[str] = []
        self.warn = warn or self.notices.append
        self.steps = 0

    def advance(self) -> None:
        self.steps += 1

    async def __call__(
        self, settings: ChatNoirSettings, topics: list[Topic] = TOPICS, depth: int = 10
    ) -> list[list[Candidate]]:
        with ChatNoirCorpus(get_task("comparative"), settings, self.warn) as corpus:
            return await corpus.search(topics, ("title",), depth, self.advance)
