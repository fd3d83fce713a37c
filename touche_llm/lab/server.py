"""The lab as an application: a route for each view, on a port of this machine."""

from __future__ import annotations

import inspect
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import get_type_hints

import msgspec
import orjson
from aiohttp import web

from touche_llm import report
from touche_llm.errors import EngineError, UsageError
from touche_llm.lab import (
    confirm,
    documents,
    draft_views,
    folder_settings,
    runs,
    sample_views,
    templates,
)
from touche_llm.lab.bench import Benches
from touche_llm.lab.runs import RunList
from touche_llm.lab.runs_of_lab import Workplace
from touche_llm.lab.security import add_headers, describe_failure, make_guard, reply
from touche_llm.report.page import replace_directions

_STATIC = Path(__file__).parent / "static"
_STYLE = Path(report.__file__).parent / "style.css"
# Bytes of a request: a template has at most a mebibyte.
_MAX_BODY = 4 * 2**20
# A view takes the workplace, the list of runs or the benches, and its arguments by name. It returns
# a record, which is sent as JSON, None or a response. A plain function is called in the thread that
# reads folders, an asynchronous one here; the records of a generator are sent as they come, and it
# is closed if the page goes away. Each view has arguments of its own, which `_Arguments` checks.
View = Callable[..., object]  # type: ignore[explicit-any]
_WORKPLACE_VIEWS: Mapping[tuple[str, str], View] = {
    ("GET", "/api/state"): Workplace.describe,
    ("GET", "/api/events"): runs.watch_runs,
    ("GET", "/api/folder"): folder_settings.describe_folder,
    ("POST", "/api/folder"): folder_settings.use_folder_settings,
    ("POST", "/api/compare"): runs.compare,
    ("GET", "/api/topics"): documents.list_topics,
    ("GET", "/api/documents"): documents.list_documents,
    ("GET", "/api/document"): documents.read_document,
    ("PUT", "/api/labels"): documents.write_labels,
    ("GET", "/api/qrels"): documents.export_qrels,
    ("POST", "/api/reveal"): documents.reveal,
}
_RUN_VIEWS: Mapping[tuple[str, str], View] = {
    ("GET", "/api/runs"): RunList.list,
    ("POST", "/api/run"): RunList.read,
}
_BENCH_VIEWS: Mapping[tuple[str, str], View] = {
    ("GET", "/api/comparison"): sample_views.show_comparison,
    ("GET", "/api/bench"): draft_views.describe_bench,
    ("GET", "/api/template"): templates.read_template,
    ("GET", "/api/candidates"): draft_views.list_candidates,
    ("PUT", "/api/draft"): templates.write_draft,
    ("POST", "/api/check"): draft_views.check_draft,
    ("POST", "/api/render"): draft_views.render_draft,
    ("POST", "/api/answers"): draft_views.answer_documents,
    ("POST", "/api/estimate"): sample_views.estimate_sample,
    ("POST", "/api/sample"): sample_views.judge_sample,
    ("POST", "/api/save"): templates.save_template,
    ("GET", "/api/confirm"): confirm.describe_confirmation,
    ("GET", "/api/command"): confirm.write_command,
}
# Views whose texts are edited and written back, so that no character of them is replaced.
_VIEWS_OF_EXACT_TEXT = (templates.read_template, templates.save_template)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a lab is served.

    The URL has the token in its fragment, which no browser sends.
    """

    url: str
    port: int
    token: str


@dataclass(frozen=True, slots=True)
class StreamError:
    """Last line of a stream that failed.

    Attributes:
        error: Message of the error.
        state: Whether the server cannot be used, or the request is invalid.
    """

    error: str
    state: str


@dataclass(frozen=True, slots=True)
class _Route:
    """A view with its method and path, and the object that it works on.

    The view gets the object as its first argument.
    """

    method: str
    path: str
    view: View
    subject: Workplace | RunList | Benches


def make_application(lab: Workplace, token: str, port: int) -> web.Application:
    """Make the application of a lab: the page with its files, and the views that it requests.

    Args:
        lab: Workplace of the lab.
        token: Token in the header of requests.
        port: Port on which it is served.
    """
    app = web.Application(middlewares=[make_guard(token, port)], client_max_size=_MAX_BODY)
    app.on_response_prepare.append(add_headers)
    app.router.add_get("/", partial(_send_file, _STATIC / "index.html"))
    app.router.add_get("/static/report.css", partial(_send_file, _STYLE))
    app.router.add_static("/static", _STATIC)

    benches = Benches(lab)
    for route in _list_routes(lab, benches):
        handler = _ViewHandler(lab, route, _Arguments.from_view(route.view))
        app.router.add_route(route.method, route.path, handler.handle)

    async def close(_: web.Application) -> None:
        await benches.close()

    app.on_cleanup.append(close)
    return app


def _list_routes(lab: Workplace, benches: Benches) -> Iterator[_Route]:
    """Yield the routes of all views, each with the object that its view works on."""
    run_list = RunList(lab)
    for (method, path), view in _WORKPLACE_VIEWS.items():
        yield _Route(method, path, view, lab)
    for (method, path), view in _RUN_VIEWS.items():
        yield _Route(method, path, view, run_list)
    for (method, path), view in _BENCH_VIEWS.items():
        yield _Route(method, path, view, benches)


async def _send_file(path: Path, _: web.Request) -> web.StreamResponse:
    """Send a file of the lab."""
    return web.FileResponse(path)


@dataclass(frozen=True, slots=True)
class _Arguments:
    """Arguments that a view takes from requests.

    Attributes:
        form: Record with the arguments and their types.
        lists: Names of arguments that a query may repeat.
    """

    form: type[msgspec.Struct]
    lists: frozenset[str]

    @classmethod
    def from_view(cls, view: View) -> _Arguments:
        """Return the arguments that a view takes: its keyword-only parameters, with their types."""
        types = get_type_hints(view)
        parameters = inspect.signature(view).parameters.values()
        keywords = [
            parameter for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY
        ]

        fields = [_make_field(parameter, types[parameter.name]) for parameter in keywords]
        lists = {parameter.name for parameter in keywords if types[parameter.name] == list[str]}
        return cls(msgspec.defstruct("Arguments", fields), frozenset(lists))

    async def read(self, request: web.Request) -> dict[str, object]:
        """Return the arguments of a request, from its query or its JSON body.

        Raises:
            UsageError: They do not fit the view.
        """
        try:
            if request.method == "GET":
                # Numbers in a query are text.
                arguments = msgspec.convert(self._read_query(request), self.form, strict=False)
            else:
                body = await request.read()
                arguments = msgspec.json.decode(body, type=self.form)
        # UnicodeError is for text that is not UTF-8, RecursionError for deeply nested JSON.
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise UsageError(f"{request.path}: {error!s:.200}") from error
        return msgspec.structs.asdict(arguments)

    def _read_query(self, request: web.Request) -> dict[str, str | list[str]]:
        """Return the values of a query by name."""
        query = request.query
        values: dict[str, str | list[str]] = {}
        for name in query:
            values[name] = query.getall(name) if name in self.lists else query[name]
        return values


def _make_field(parameter: Parameter, kind: type) -> tuple[str, type] | tuple[str, type, object]:
    """Return a parameter as `msgspec.defstruct` takes a field: name, type, and default if any."""
    if parameter.default is Parameter.empty:
        return parameter.name, kind
    return parameter.name, kind, parameter.default


@dataclass(frozen=True, slots=True)
class _ViewHandler:
    """Handler of the requests to a view.

    Attributes:
        lab: Workplace of the lab.
        route: Route with the view.
        arguments: Arguments that the view takes.
    """

    lab: Workplace
    route: _Route
    arguments: _Arguments

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Call the view with the arguments of a request, and send what it returns.

        A view that is a generator yields records, which are sent one by one. Any other view returns
        a page, or a record to send as JSON.
        """
        values = await self.arguments.read(request)
        call: Callable[[], object] = partial(self.route.view, self.route.subject, **values)
        if inspect.isasyncgenfunction(call):
            records = call()
            return await _stream(request, records)

        result = await _call(self.lab, call)
        if isinstance(result, web.StreamResponse):
            return result
        content = {} if result is None else result
        return reply(content, is_exact=self.route.view in _VIEWS_OF_EXACT_TEXT)


async def _call(lab: Workplace, call: Callable[[], object]) -> object:
    """Call a view.

    An asynchronous one runs here, a plain one in the thread that reads folders.
    """
    if inspect.iscoroutinefunction(call):
        return await call()
    return await lab.call_in_thread(call)


async def _stream(request: web.Request, records: AsyncGenerator[object]) -> web.StreamResponse:
    """Send the records of a generator as JSON, one a line; an error is the last line."""
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    try:
        async with aclosing(records):
            async for record in records:
                await response.write(_encode_line(record))
    except Exception as error:
        state = "gone" if isinstance(error, EngineError) else "invalid"
        last_line = StreamError(describe_failure(error), state)
        await response.write(_encode_line(last_line))
    await response.write_eof()
    return response


def _encode_line(record: object) -> bytes:
    """Return a record as a line of JSON.

    Characters that control the direction of text are replaced.
    """
    text = orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return f"{replace_directions(text)}\n".encode()


@asynccontextmanager
async def serve_lab(lab: Workplace, port: int = 0) -> AsyncIterator[Address]:
    """Serve a lab on a port of this machine while the block runs.

    Args:
        lab: Workplace of the lab, which is closed at the end.
        port: Port to serve it on; 0 for a free one.

    Raises:
        OSError: The port is in use.
    """
    token = secrets.token_urlsafe(24)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        bound_port = listener.getsockname()[1]

        runner = web.AppRunner(
            make_application(lab, token, bound_port),
            # A page that goes away cancels what it waits for.
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=0.5,
        )
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            url = f"http://127.0.0.1:{bound_port}/#token={token}"
            yield Address(url=url, port=bound_port, token=token)
        finally:
            await runner.cleanup()
            lab.close()
