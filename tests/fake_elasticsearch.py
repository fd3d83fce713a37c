"""Elasticsearch in a few lines: the calls that are used, over real HTTP.

Searches with Lucene's BM25 over our analysis.

What it asks of a request is what the API documentation of Elasticsearch 8 and 9 says. It cannot
tell whether a real server takes the settings of the index: it takes those that it knows, and looks
at nothing else.
"""

from __future__ import annotations

import base64
import math
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

from touche_llm.retrieval.elasticsearch import ElasticsearchSettings
from touche_llm.text.analysis import STOP_WORDS, Analyzer


@dataclass
class ElasticRequest:
    """A request: the kind of call (`bulk`, `search`, …), the parameters of the address, and the body."""

    kind: str
    params: dict[str, str]
    body: Any


@dataclass
class Reply:
    """What is sent back; `cut` bytes of it only, where given, and then the connection breaks."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None


# Answers one request instead of the server's usual way, which it gets as a function.
Behaviour = Callable[[ElasticRequest, Callable[[], Reply]], Reply]


def problem(status: int, kind: str, reason: str = "for a reason") -> Reply:
    """An error as Elasticsearch sends it."""
    error = {"type": kind, "reason": reason, "root_cause": [{"type": kind, "reason": reason}]}
    return Reply(status, {"error": error, "status": status})


@dataclass
class Index:
    """An index: its settings and mappings, the documents, and those that searches see."""

    settings: dict[str, Any]
    mappings: dict[str, Any]
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class FakeElasticsearch:
    """Behaviours are used up by kind of call, one request after the other.

    None is the usual way.
    """

    version: str = "9.1.0"
    password: str = ""
    key: str = ""
    product: str = "Elasticsearch"
    indices: dict[str, Index] = field(default_factory=dict)
    behaviours: dict[str, list[Behaviour | None]] = field(default_factory=dict)
    requests: list[ElasticRequest] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    url: str = ""

    def kinds(self) -> list[str]:
        """The kinds of the requests so far."""
        return [each.kind for each in self.requests]

    def of(self, kind: str) -> list[ElasticRequest]:
        """The requests of a kind so far."""
        return [each for each in self.requests if each.kind == kind]

    @contextmanager
    def running(self) -> Iterator[FakeElasticsearch]:
        """Serve on a free port of this machine.

        At the end, complain about requests that made no sense.
        """
        server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
        assert not self.problems, self.problems

    def answer(self, method: str, target: str, headers: dict[str, str], content: bytes) -> Reply:
        """The reply to a request."""
        parts = urlsplit(target)
        place = [unquote(each) for each in parts.path.split("/") if each]
        params = {name: values[0] for name, values in parse_qs(parts.query).items()}
        kind = (
            place[1].lstrip("_")
            if len(place) > 1
            else {"GET": "get", "PUT": "create"}[method]
            if place
            else "info"
        )
        request = ElasticRequest(kind, params, _parsed(headers.get("content-type", ""), content))
        self.requests.append(request)

        def usual() -> Reply:
            found = re.search(r"compatible-with=(\d+)", headers.get("accept", ""))
            if found and int(found[1]) not in (
                int(self.version.split(".")[0]) + each for each in (-1, 0)
            ):
                return problem(
                    400,
                    "media_type_header_exception",
                    "Invalid media-type value on headers [Accept]",
                )
            if self._wanted_login() not in ("", headers.get("authorization")):
                return problem(401, "security_exception", "unable to authenticate")
            return getattr(self, f"_{kind}")(place[0] if place else "", request)  # type: ignore[no-any-return]

        waiting = self.behaviours.get(kind, [])
        behaviour = waiting.pop(0) if waiting else None
        try:
            return usual() if behaviour is None else behaviour(request, usual)
        except Exception as error:  # a test that fails should say why
            self.problems.append(f"{method} {target}: {error!r}")
            return problem(500, "fake_exception", repr(error))

    def _wanted_login(self) -> str:
        if self.key:
            return f"ApiKey {self.key}"
        user = f"elastic:{self.password}".encode()
        return f"Basic {base64.b64encode(user).decode()}" if self.password else ""

    def _info(self, _: str, __: ElasticRequest) -> Reply:
        version = {"number": self.version, "build_flavor": "default", "lucene_version": "10.2.2"}
        return Reply(
            200,
            {
                "name": "n",
                "cluster_name": "c",
                "version": version,
                "tagline": "You Know, for Search",
            },
        )

    def _get(self, name: str, _: ElasticRequest) -> Reply:
        index = self.indices.get(name)
        if index is None:
            return problem(404, "index_not_found_exception", f"no such index [{name}]")
        return Reply(
            200, {name: {"aliases": {}, "mappings": index.mappings, "settings": index.settings}}
        )

    def _create(self, name: str, request: ElasticRequest) -> Reply:
        if name in self.indices:
            return problem(
                400, "resource_already_exists_exception", f"index [{name}] already exists"
            )
        index, mappings = request.body["settings"]["index"], request.body["mappings"]
        fields = mappings["properties"]
        assert set(request.body) == {"settings", "mappings"} and mappings["dynamic"] == "strict"
        analyzer = index["analysis"]["analyzer"][fields["text"]["analyzer"]]
        assert analyzer["type"] == "custom"
        tokenizer = index["analysis"]["tokenizer"][analyzer["tokenizer"]]
        assert tokenizer == {"type": "pattern", "pattern": r"(?U)\b\w\w+\b", "group": 0}
        lower, *others = analyzer["filter"]
        stop, stem, cut = (index["analysis"]["filter"][each] for each in others)
        assert (lower, stop["type"], cut) == (
            "lowercase",
            "stop",
            {"type": "truncate", "length": 255},
        )
        assert set(stop["stopwords"]) == STOP_WORDS and stem == {
            "type": "snowball",
            "language": "English",
        }
        assert index["similarity"][fields["text"]["similarity"]]["type"] == "BM25"
        assert set(fields) == {"id", "text"} and fields["id"]["type"] == "keyword"
        self.indices[name] = Index(request.body["settings"], mappings)
        return Reply(200, {"acknowledged": True, "shards_acknowledged": True, "index": name})

    def _mapping(self, name: str, request: ElasticRequest) -> Reply:
        assert set(request.body) == {"_meta"}
        self.indices[name].mappings = {**self.indices[name].mappings, **request.body}
        return Reply(200, {"acknowledged": True})

    def _bulk(self, name: str, request: ElasticRequest) -> Reply:
        # As action.auto_create_index says by default.
        index = self.indices.setdefault(name, Index({}, {"properties": {"id": {}, "text": {}}}))
        lines, items = request.body, []
        assert lines and len(lines) % 2 == 0
        for action, source in zip(lines[::2], lines[1::2], strict=True):
            ident = action["create"]["_id"]
            assert set(source) <= set(index.mappings["properties"]) and len(ident.encode()) <= 512
            item: dict[str, Any] = {
                "_index": name,
                "_id": ident,
                "status": 201,
                "result": "created",
            }
            if ident in index.documents:
                reason = (
                    f"[{ident}]: version conflict, document already exists (current version [1])"
                )
                item = refused_item(name, ident, 409, "version_conflict_engine_exception", reason)
            else:
                index.documents[ident] = source
            items.append({"create": item})
        body = {
            "took": 3,
            "errors": any("error" in each["create"] for each in items),
            "items": items,
        }
        return Reply(200, _only(body, request.params.get("filter_path", "").split(",")))

    def _refresh(self, name: str, _: ElasticRequest) -> Reply:
        self.indices[name].seen = dict(self.indices[name].documents)
        return Reply(200, {"_shards": {"total": 2, "successful": 1, "failed": 0}})

    def _mget(self, name: str, request: ElasticRequest) -> Reply:
        documents, fields = self.indices[name].documents, request.params["_source"].split(",")
        docs = []
        for ident in request.body["ids"]:
            found = documents.get(ident)
            item: dict[str, Any] = {"_index": name, "_id": ident, "found": found is not None}
            if found is not None:
                item |= {"_version": 1, "_source": {each: found[each] for each in fields}}
            docs.append(item)
        return Reply(200, {"docs": docs})

    def _search(self, name: str, request: ElasticRequest) -> Reply:
        assert request.params == {
            "search_type": "dfs_query_then_fetch",
            "allow_partial_search_results": "false",
        }
        body, index = request.body, self.indices[name]
        assert body["size"] <= 10_000  # index.max_result_window
        (by_score, by_id), (query,) = body["sort"], body["query"].values()
        assert (by_score, by_id, body["track_scores"]) == ({"_score": "desc"}, {"id": "asc"}, True)
        scores = bm25(query["text"]["query"], index)
        ordered = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[: body["size"]]
        hits = [
            {"_index": name, "_id": ident, "_score": score, "sort": [score, ident]}
            for ident, score in ordered
        ]
        return Reply(200, found(hits))


def found(hits: list[dict[str, Any]]) -> dict[str, Any]:
    """The body of a reply to a search."""
    shards = {"total": 3, "successful": 3, "skipped": 0, "failed": 0}
    return {
        "took": 2,
        "timed_out": False,
        "_shards": shards,
        "hits": {"max_score": None, "hits": hits},
    }


def refused_item(
    name: str, ident: str, status: int, kind: str, reason: str = "for a reason"
) -> dict[str, Any]:
    """What a reply to a bulk request says of a document that was not taken."""
    return {
        "_index": name,
        "_id": ident,
        "status": status,
        "error": {"type": kind, "reason": reason},
    }


def bm25(query: str, index: Index) -> dict[str, float]:
    """Lucene's BM25 of the documents that have a word of the query."""
    similarity = index.settings["index"]["similarity"][
        index.mappings["properties"]["text"]["similarity"]
    ]
    k1, b, analyzer = similarity["k1"], similarity["b"], Analyzer()
    counts = {ident: Counter(analyzer.analyze(each["text"])) for ident, each in index.seen.items()}
    mean = sum(each.total() for each in counts.values()) / max(len(counts), 1)
    scores: Counter[str] = Counter()
    for term in analyzer.analyze(query):
        having = [ident for ident, each in counts.items() if term in each]
        idf = math.log(1 + (len(counts) - len(having) + 0.5) / (len(having) + 0.5))
        for ident in having:
            times, length = counts[ident][term], counts[ident].total()
            scores[ident] += idf * times / (times + k1 * (1 - b + b * length / mean))
    return dict(scores)


def refuses(status: int, kind: str = "some_exception", reason: str = "for a reason") -> Behaviour:
    """Answer with an error."""
    return lambda request, usual: problem(status, kind, reason)


def says(body: Any, **headers: str) -> Behaviour:
    """Answer with this body: bytes as they are, else as JSON."""
    return lambda request, usual: Reply(200, body, headers)


def breaks(*, after: bool) -> Behaviour:
    """Break the connection, before or after the request was carried out."""

    def behave(_: ElasticRequest, usual: Callable[[], Reply]) -> Reply:
        reply = usual() if after else Reply(200, {})
        reply.cut = 0
        return reply

    return behave


def takes_only(
    count: int, status: int = 429, kind: str = "es_rejected_execution_exception"
) -> Behaviour:
    """Of a bulk request take so many documents, and have no room for the others."""

    def behave(request: ElasticRequest, usual: Callable[[], Reply]) -> Reply:
        lines = request.body
        request.body = lines[: 2 * count]
        items = usual().body["items"] if count else []
        request.body = lines
        left = [action["create"]["_id"] for action in lines[2 * count :: 2]]
        items += [{"create": refused_item("", ident, status, kind)} for ident in left]
        return Reply(200, {"items": items})

    return behave


def settings_for(server: FakeElasticsearch, **changes: Any) -> ElasticsearchSettings:
    return ElasticsearchSettings(
        **{"url": server.url, "request_timeout": 5.0, "retry_for": 5.0, **changes}
    )


def _only(body: dict[str, Any], paths: list[str]) -> dict[str, Any]:
    """The body as `filter_path` leaves it, for the paths of a bulk request."""
    if paths == [""]:
        return body
    kept = {path.removeprefix("items.*.") for path in paths if path.startswith("items.*.")}
    items = [
        {op: {k: v for k, v in item.items() if k in kept} for op, item in each.items()}
        for each in body["items"]
    ]
    return {"items": items}


def _parsed(content_type: str, content: bytes) -> Any:
    if not content:
        return None
    if "x-ndjson" in content_type:
        assert content.endswith(b"\n")
        return [orjson.loads(line) for line in content.splitlines()]
    assert "json" in content_type
    return orjson.loads(content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may go before all was said."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _handler(server: FakeElasticsearch) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Or the second part of a reply waits for the first to be acknowledged.
        disable_nagle_algorithm = True

        def handle_any(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = server.answer(self.command, self.path, headers, content)
            body = reply.body if isinstance(reply.body, bytes) else orjson.dumps(reply.body)
            if reply.cut is not None:
                self.close_connection = True
                if not reply.cut:
                    return
            self.send_response(reply.status)
            usual = {"X-Elastic-Product": server.product, "Content-Type": "application/json"}
            for name, value in {**usual, **reply.headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body[: reply.cut])

        do_GET = do_PUT = do_POST = handle_any

        def log_message(self, format: str, *arguments: Any) -> None:
            """Keep quiet."""

    return Handler
