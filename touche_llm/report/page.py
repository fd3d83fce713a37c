"""The frame of all HTML pages: their environment, and how they are written."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from touche_llm.data.io import open_atomic
from touche_llm.pipeline.run_directory import GENERATOR
from touche_llm.pipeline.run_overview import format_seconds

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
        # Characters of each document text: 1,000 documents stay below 10 MB.
        "limit": 10_000,
        # Trusted: files of this package.
        "generator": Markup(GENERATOR),
        "style": Markup(style),
        "script": Markup(script),
    }
    return environment


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
