"""Who may talk to the lab: pages of this machine that know its token.

And what their pages may load.
"""

from __future__ import annotations

import hmac
import logging
import sqlite3
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from touche_llm.data.sqlite import describe_database_error
from touche_llm.errors import ToucheError, describe_os_error, to_printable
from touche_llm.report.page import replace_directions

_LOG = logging.getLogger(__name__)
# Of the lab's own pages; a page about runs brings its own, for the style and script within it.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "connect")),
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
    """Return a JSON response, without characters that control the direction of text unless `is_exact`."""
    text = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    text = text if is_exact else replace_directions(text)
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
    """Return the middleware that admits requests with the token's cookie from this machine's pages alone.

    A page elsewhere has another origin; a name that an attacker lets point to this machine is
    another host.
    """
    hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
    cookie = f"touche-llm-lab-{port}"

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        is_own = origin == f"http://{request.host}"
        if request.host not in hosts or (origin is not None and not is_own):
            raise web.HTTPForbidden(text="This address is for pages of this machine.")
        if request.method != "GET" and not (
            is_own or request.headers.get("Sec-Fetch-Site") == "same-origin"
        ):
            raise web.HTTPForbidden(text="Only the lab's own page may change something.")
        if request.path == "/" and _is_token(request.query.get("token", ""), token):
            response = web.HTTPSeeOther("/")
            response.set_cookie(cookie, token, httponly=True, samesite="Strict", path="/")
            raise response
        if not _is_token(request.cookies.get(cookie, ""), token):
            raise web.HTTPUnauthorized(
                text="Open the address that `touche-llm lab` printed; it ends in a token."
            )
        try:
            return await handler(request)
        except web.HTTPException:
            raise
        except Exception as error:
            is_known = isinstance(error, ToucheError | OSError | sqlite3.Error)
            return reply({"error": describe_failure(error)}, 400 if is_known else 500)

    return guard


def _is_token(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())
