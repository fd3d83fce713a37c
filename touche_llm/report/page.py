"""Writing pages: self-contained HTML files that run no script but their own."""

from __future__ import annotations

import base64
import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from touche_llm.data.files import open_atomic
from touche_llm.pipeline.run_directory import GENERATOR
from touche_llm.pipeline.run_overview import format_seconds

# The size of a page: small enough for an email and for the browser of a phone.
MAX_BYTES = 5_000_000
# Document texts keep at least MIN_CHARS characters, however large the page becomes.
MIN_CHARS, _MAX_CHARS = 400, 20_000
# The characters with Unicode's property Bidi_Control.
_BIDIRECTIONAL = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_HERE = Path(__file__).parent


def write_page(text: str, path: Path) -> int:
    """Write a page atomically, and return its size in bytes.

    Characters that control the direction of text are replaced, since a document could use them to reorder what a reader
    sees around it.
    """
    page = _BIDIRECTIONAL.sub("\N{REPLACEMENT CHARACTER}", text).encode()
    with open_atomic(path) as stream:
        stream.write(page)
    return len(page)


def create_environment() -> Environment:
    """Create the Jinja environment of the page templates, which escapes every value.

    The layout sets a content security policy that allows only its own style and script, by their hashes. Nothing in a
    document can run, and nothing is fetched.
    """
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    environment.globals |= {
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; "
        "form-action 'none'",
        "seconds": format_seconds,
        # Trusted: files of this package.
        "generator": Markup(GENERATOR),
        "style": Markup(style),
        "script": Markup(script),
    }
    return environment


def find_text_limit(texts: Sequence[str], room: int) -> int:
    """Return how many characters of each text fit into the available space.

    Args:
        texts: Document texts of the page.
        room: Available space in bytes.

    Returns:
        The largest limit between `MIN_CHARS` and 20,000 characters with which all texts fit; `MIN_CHARS` if none does.
    """
    limits = range(MIN_CHARS, _MAX_CHARS + 1)
    fitting = bisect_right(limits, room, key=lambda limit: count_bytes(texts, limit))
    return limits[max(fitting - 1, 0)]


def count_bytes(texts: Iterable[str], limit: int) -> int:
    """Return the total size in bytes of the texts on a page, each truncated to `limit` characters."""
    return sum(len(escape(text[:limit]).encode()) for text in texts)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
