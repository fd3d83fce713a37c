"""The lab as an application: a route for each view, on a port of this machine."""

from __future__ import annotations

import inspect
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from touche_llm import report
from touche_llm.errors import EngineError, UsageError
from touche_llm.lab import confirm, documents, runs, templates
from touche_llm.lab import draft_views as trying
from touche_llm.lab import sample_views as sampling
from touche_llm.lab.bench import Benches
from touche_llm.lab.runs import RunList, watch_runs
from touche_llm.lab.runs_of_lab import Workplace
from touche_llm.lab.security import add_headers, describe_failure, make_guard, reply
from touche_llm.report.page import replace_directions

_STATIC = Path(__file__).parent / "static"
_STYLE = Path(report.__file__).parent / "style.css"
# Bytes of a request: a template has at most a mebibyte.
_MAX_BODY = 4 * 2**20
# A view takes the workplace, or the benches, and its arguments by name. A plain function is called
# in the thread that reads folders, an asynchronous one here; the lines of a generator are sent as
# they come, and it is closed if the page goes away.
View = Callable[..., Any]
_VIEWS: Mapping[tuple[str, str], View] = {
    ("GET", "/api/state"): Workplace.describe,
    ("GET", "/compare"): runs.compare,
    ("GET", "/api/topics"): documents.list_topics,
    ("GET", "/api/documents"): documents.list_documents,
    ("GET", "/api/document"): documents.read_document,
    ("PUT", "/api/labels"): documents.write_labels,
    ("GET", "/api/qrels"): documents.export_qrels,
    ("POST", "/api/reveal"): documents.reveal,
}
_BENCH_VIEWS: Mapping[tuple[str, str], View] = {
    ("GET", "/comparison"): sampling.show_comparison,
    ("GET", "/api/bench"): trying.describe_bench,
    ("GET", "/api/template"): templates.read_template,
    ("GET", "/api/candidates"): trying.list_candidates,
    ("PUT", "/api/draft"): templates.write_draft,
    ("POST", "/api/check"): trying.check_draft,
    ("POST", "/api/render"): trying.render_draft,
    ("POST", "/api/answers"): trying.answer,
    ("POST", "/api/estimate"): sampling.estimate_sample,
    ("POST", "/api/sample"): sampling.judge_sample,
    ("POST", "/api/save"): templates.save_template,
    ("GET", "/api/confirm"): confirm.describe_confirmation,
    ("GET", "/api/command"): confirm.write_command,
}
# Their texts are edited and written back, so that no character of them is replaced.
_EXACT = (templates.read_template, templates.save_template)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a lab is served; the URL has the token."""

    url: str
    port: int
    token: str


def make_application(lab: Workplace, token: str, port: int) -> web.Application:
    """Make the application."""
    rows = RunList(lab)
    app = web.Application(middlewares=[make_guard(token, port)], client_max_size=_MAX_BODY)
    app.on_response_prepare.append(add_headers)
    app.router.add_get("/", partial(_send_file, _STATIC / "index.html"))
    app.router.add_get("/static/report.css", partial(_send_file, _STYLE))
    app.router.add_static("/static", _STATIC)
    app.router.add_get("/api/events", partial(_send_events, lab))

    benches = Benches(lab)
    bound = {route: partial(view, lab) for route, view in _VIEWS.items()}
    bound |= {("GET", "/api/runs"): partial(rows.list), ("GET", "/api/run"): partial(rows.read)}
    bound |= {route: partial(view, benches) for route, view in _BENCH_VIEWS.items()}
    for (method, path), view in bound.items():
        app.router.add_route(method, path, make_handler(lab, view))

    async def close(_: web.Application) -> None:
        await benches.close()

    app.on_cleanup.append(close)
    return app


async def _send_file(path: Path, _: web.Request) -> web.StreamResponse:
    return web.FileResponse(path)


def make_handler(lab: Workplace, view: partial[Any]) -> Handler:
    """Return the handler of a view: arguments from the query or the JSON body, checked by the view's types."""
    hints, is_exact = get_type_hints(view.func), view.func in _EXACT
    names = [
        each
        for each in inspect.signature(view).parameters.values()
        if each.kind is each.KEYWORD_ONLY
    ]
    fields: list[Any] = [
        (each.name, hints[each.name], *([] if each.default is each.empty else [each.default]))
        for each in names
    ]
    form, many = (
        msgspec.defstruct("Arguments", fields),
        {name for name, kind, *_ in fields if kind == list[str]},
    )

    async def handle(request: web.Request) -> web.StreamResponse:
        query = request.query
        given: Any = {name: query.getall(name) if name in many else query[name] for name in query}
        try:
            if request.method != "GET":
                given = msgspec.json.decode(await request.read())
            arguments = msgspec.structs.asdict(
                msgspec.convert(given, form, strict=request.method != "GET")
            )
        except msgspec.MsgspecError as error:
            raise UsageError(f"{request.path}: {error!s:.200}") from error
        if inspect.isasyncgenfunction(view):
            return await _stream(request, view(**arguments))
        if inspect.iscoroutinefunction(view):
            result = await view(**arguments)
        else:
            result = await lab.apart(view, **arguments)
        return (
            result if isinstance(result, web.StreamResponse) else reply(result, is_exact=is_exact)
        )

    return handle


async def _stream(request: web.Request, lines: Any) -> web.StreamResponse:
    """Send the lines of a generator as JSON, one a line, the last with an error if there is one."""
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)

    async def write(line: Any) -> None:
        text = orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY).decode()
        await response.write(f"{replace_directions(text)}\n".encode())

    try:
        async with aclosing(lines):
            async for line in lines:
                await write(line)
    except Exception as error:
        await write(
            {
                "error": describe_failure(error),
                "state": "gone" if isinstance(error, EngineError) else "invalid",
            }
        )
    await response.write_eof()
    return response


async def _send_events(lab: Workplace, request: web.Request) -> web.StreamResponse:
    """Send the name of each run that changes, as server-sent events."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"retry: 1000\n\n")
    async with aclosing(watch_runs(lab)) as changed:  # type: ignore[type-var]
        async for run in changed:
            await response.write(b"event: run\ndata: %b\n\n" % orjson.dumps(run))
    return response


@asynccontextmanager
async def serve_lab(lab: Workplace, port: int = 0) -> AsyncIterator[Address]:
    """Serve a lab on a port of this machine while the block runs; 0 chooses a free one.

    Raises:
        OSError: The port is in use.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        port, token = listener.getsockname()[1], secrets.token_urlsafe(24)
        app = make_application(lab, token, port)
        # A page that goes away cancels what it waits for.
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.5
        )
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            yield Address(f"http://127.0.0.1:{port}/?token={token}", port, token)
        finally:
            await runner.cleanup()
            lab.close()
