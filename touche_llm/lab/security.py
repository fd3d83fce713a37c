"""Who may talk to the lab: its own page, which knows the token.

And what its pages may load.
"""

from __future__ import annotations

import hmac
import logging
import sqlite3
from collections.abc import Collection
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from touche_llm.data.sqlite import describe_database_error
from touche_llm.errors import ToucheError, describe_os_error, to_printable
from touche_llm.report.page import hash_sources, replace_directions

_LOG = logging.getLogger(__name__)
# Header of each request with the token. It is no cookie: a browser sends those to every port of a
# host.
TOKEN_HEADER = "X-Touche-Token"
# The shell of the page, which holds nothing of the user: the page gets its token by its script.
_SHELL = "/"
_SHELL_FILES = "/static/"
# The page shows those about runs in a tab of their own, which has the policy of the lab beside its
# own.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self' {source}" for kind, source in hash_sources().items()),
        "connect-src 'self'",
        "img-src 'self' data:",
        *(f"{kind} 'none'" for kind in ("base-uri", "form-action", "frame-ancestors")),
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def reply(content: Any, status: int = 200, *, is_exact: bool = False) -> web.Response:
    """Return a JSON response.

    Args:
        content: Content of the response.
        status: HTTP status.
        is_exact: Whether to keep characters that control the direction of text, which are else
            replaced.
    """
    text = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    if not is_exact:
        text = replace_directions(text)
    return web.Response(text=text, status=status, content_type="application/json")


def describe_failure(error: Exception) -> str:
    """Return the message of an error for the page; a bug is logged, and its message stays here."""
    match error:
        case ToucheError():
            return str(error)
        case OSError():
            return to_printable(describe_os_error(error))
        case sqlite3.Error():
            return to_printable(describe_database_error(error))
    _LOG.error("a fault of the lab", exc_info=error)
    return f"a fault of the lab ({type(error).__name__}); its terminal has the details"


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Add the headers that every response has."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)


def make_guard(token: str, port: int) -> Middleware:
    """Return the middleware that admits requests of the lab's own page alone.

    Anybody on this machine gets the shell of the page. Everything else needs the token in a header,
    and comes from the page's origin. A page elsewhere has another origin; a name that an attacker
    lets point to this machine is another host.
    """
    hosts = (f"127.0.0.1:{port}", f"localhost:{port}")

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        _check_origin(request, hosts)
        if not _is_shell(request):
            _check_page(request, token)
        return await _handle(request, handler)

    return guard


async def _handle(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Handle a request; return errors of the lab as JSON."""
    try:
        return await handler(request)
    except web.HTTPException:
        raise
    except (ToucheError, OSError, sqlite3.Error) as error:
        return reply({"error": describe_failure(error)}, status=400)
    except Exception as error:
        return reply({"error": describe_failure(error)}, status=500)


def _check_origin(request: web.Request, hosts: Collection[str]) -> None:
    """Raise HTTPForbidden if a request is to another host, or from another origin."""
    is_from_elsewhere = "Origin" in request.headers and not _has_own_origin(request)
    if request.host not in hosts or is_from_elsewhere:
        raise web.HTTPForbidden(text="This address is for pages of this machine.")


def _check_page(request: web.Request, token: str) -> None:
    """Raise an HTTP error unless a request is that of the lab's page with the token.

    Raises:
        HTTPUnauthorized: The token is missing or wrong.
        HTTPForbidden: Neither an origin nor the browser says that the page is the lab's own.
    """
    if not _is_token(request.headers.get(TOKEN_HEADER, ""), token):
        raise web.HTTPUnauthorized(
            text="Open the address that `touche-llm lab` printed; it ends in a token."
        )
    is_same_origin = request.headers.get("Sec-Fetch-Site") == "same-origin"
    if not (is_same_origin or _has_own_origin(request)):
        raise web.HTTPForbidden(text="This address is for the lab's own page.")


def _is_shell(request: web.Request) -> bool:
    """Return whether a request is for the shell of the page, or for its style and script."""
    is_file = request.path.startswith(_SHELL_FILES)
    return request.method == "GET" and (request.path == _SHELL or is_file)


def _has_own_origin(request: web.Request) -> bool:
    """Return whether a request names the origin of the lab's page."""
    return request.headers.get("Origin") == f"http://{request.host}"


def _is_token(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())
