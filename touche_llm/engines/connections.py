"""Replies and errors of aiohttp."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from touche_llm.text.quoting import quote

if TYPE_CHECKING:  # takes a while to load
    import aiohttp

# Max characters of a server's text that an error quotes.
_MAX_QUOTED = 300


def parse_retry_after(header: str | None) -> float | None:
    """Return the seconds to wait by a Retry-After header.

    None if it is missing, a date or invalid.
    """
    return float(header) if header and header.isdecimal() else None


def to_line(text: str) -> str:
    """Return the beginning of an untrusted text on one line, with keys masked."""
    return " ".join(quote(text, _MAX_QUOTED).split())


def describe_connection_error(error: Exception, seconds: float) -> str:
    """Return why a request of aiohttp, with a limit in seconds, got no reply."""
    import aiohttp

    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect ({error.strerror or error})"
    return f"the connection broke: {type(error).__name__}: {to_line(str(error))}"


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body of a reply, cut after `limit + 1` bytes."""
    try:
        return await response.content.readexactly(limit + 1)
    except asyncio.IncompleteReadError as complete:
        return complete.partial
