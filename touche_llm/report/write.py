"""A report as one file that needs nothing else and lets nothing in it run but its own script."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from touche_llm.data.files import open_atomic
from touche_llm.pipeline.run_folder import GENERATOR
from touche_llm.report.figures import movement, stance_bars, topic_bars
from touche_llm.report.overview import BANDS
from touche_llm.report.records import Report

# Bytes of a page for 50 topics of 20 documents each, so that it can be sent by mail and opened on a phone.
MOST_BYTES = 5_000_000
# Characters of each text that are on every page, however large that becomes, and the most that are.
LEAST_CHARS, _MOST_CHARS = 400, 20_000
_FAILURES = 50
# The characters with Unicode's property Bidi_Control.
_BIDIRECTIONAL = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_HERE = Path(__file__).parent
COSTS = {
    "seconds": "seconds",
    "asked": "requests",
    "cache_hits": "answers from the cache",
    "prompt_tokens": "prompt tokens",
    "prefix_cached_tokens": "of them from the prefix cache",
    "completion_tokens": "answer tokens",
    "cached_prompt_tokens": "prompt tokens not sent thanks to the cache",
    "documents cut": "documents cut",
    "judgments per second": "judgments per second",
    "peak memory MiB": "peak memory, MiB",
}


def write_report(report: Report, path: Path) -> int:
    """Write a report as one HTML file, whole or not at all; returns its bytes.

    Texts of documents are cut to one length, so that the page has at most `MOST_BYTES`, but not to less than 400
    characters.
    """
    return write_page(render(report), path)


def write_page(text: str, path: Path) -> int:
    """Write a page, whole or not at all; returns its bytes."""
    # They would let a text from outside show itself, and what stands beside it, in another order than it has.
    page = _BIDIRECTIONAL.sub("\N{REPLACEMENT CHARACTER}", text).encode()
    with open_atomic(path) as stream:
        stream.write(page)
    return len(page)


def environment() -> Environment:
    """Where the templates of pages are; what they insert is escaped.

    The frame of each page has a content security policy that allows its own style and its own script, by their hashes,
    and nothing else: what is in a document cannot run, and nothing is fetched.
    """
    found = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    found.globals |= {
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; "
        "form-action 'none'",
        # The project's own markup, as it was written.
        "generator": Markup(GENERATOR),
        "style": Markup(style),
        "script": Markup(script),
    }
    return found


def render(report: Report) -> str:
    """The page of a report."""
    measured = report.measured
    anchors = {view.topic.id: (f"t{n}", view.topic.title) for n, view in enumerate(report.topics, start=1)}
    by_topic = [each for each in measured.headline if each.by_topic] if measured is not None else []
    failures = [(name, failure) for name, of_file in report.failures.items() for failure in of_file]
    values = {
        "report": report,
        "measured": measured,
        "labels": report.labels,
        "before": report.before,
        "figures": {
            "topics": {each.name: topic_bars(each, anchors) for each in by_topic},
            "moved": {way: movement(groups, way) for way, groups in report.moved.items()},
            "stances": stance_bars(report.stances, report.labels),
        },
        "bands": _bands(),
        "scores": {
            topic: [(each.name, *each.by_topic[topic]) for each in by_topic if each.by_topic and topic in each.by_topic]
            for topic in anchors
        },
        "kinds": Counter((failure.kind, name) for name, failure in failures),
        "failures": [failure for _, failure in failures[:_FAILURES]],
        "costs": COSTS,
    }
    template = environment().get_template("page.html.jinja")
    texts = [document.text for view in report.topics for document in view.shown if document.text]
    bare = template.render(values, limit=0)
    return template.render(values, limit=text_limit(texts, MOST_BYTES - len(bare.encode())))


def text_limit(texts: Sequence[str], room: int) -> int:
    """The most characters of each text with which all of them take at most so many bytes, but no less than 400."""
    low, high = LEAST_CHARS, _MOST_CHARS
    while low < high:
        middle = (low + high + 1) // 2
        if size_of(texts, middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def size_of(texts: Iterable[str], limit: int) -> int:
    """The bytes of so many characters of each text on a page."""
    return sum(len(escape(text[:limit]).encode()) for text in texts)


def _bands() -> list[str]:
    least = [1, *(band + 1 for band in BANDS)]
    return [*(f"{a}\N{EN DASH}{b}" for a, b in zip(least, BANDS, strict=False)), f"after {BANDS[-1]}, or nowhere"]


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
