"""The HTML page that compares several runs."""

from __future__ import annotations

import base64
import hashlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from touche_llm.data.io import open_atomic
from touche_llm.pipeline.run_directory import GENERATOR
from touche_llm.pipeline.run_overview import format_seconds
from touche_llm.report.overview import BANDS, COSTS, compute_label_shares
from touche_llm.report.plots import LETTERS, MIN_TOPICS, plot_movements, plot_stances, plot_topics, plot_topics_of_runs
from touche_llm.report.records import RunReport
from touche_llm.report.run_comparison import ComparedRun, RunComparison

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


# Failures are listed with their completions up to this number; all of them are counted.
_MAX_FAILURES = 50


def render_report(report: RunReport) -> str:
    """Render the page of a run.

    Document texts are truncated to one length, so that the page takes at most `MAX_BYTES`.
    """
    measured = report.measured
    anchors = {view.topic.id: (f"t{n}", view.topic.title) for n, view in enumerate(report.topics, start=1)}
    # Stances have no first stage, and are not measured by topic here.
    by_topic: dict[str, dict[str, tuple[float, float | None]]] = {}
    for measure in measured.headline if measured is not None else ():
        run, first = measure.runs
        if run is not None and first is not None:
            by_topic[measure.name] = {
                topic: (value, first.by_topic.get(topic)) for topic, value in run.by_topic.items()
            }
    failures = [(name, failure) for name, of_file in report.failures.items() for failure in of_file]
    values = {
        "report": report,
        "measured": measured,
        "labels": report.task.stances,
        "before": report.task.before_judging,
        "plots": {
            "topics": {
                name: plot_topics(name, values, anchors)
                for name, values in by_topic.items()
                if len(values) >= MIN_TOPICS
            },
            "movements": {way: plot_movements(groups, way) for way, groups in report.movements.items()},
            "stances": plot_stances(report.stances, report.task.stances) if report.task.stances else "",
        },
        "bands": _label_bands(),
        "scores": {
            topic: [(name, *values[topic]) for name, values in by_topic.items() if topic in values] for topic in anchors
        },
        # Aspects by which the model and the assessors can be compared.
        "aspects": list(
            dict.fromkeys(aspect for view in report.topics for each in view.documents for aspect in each.row.people)
        ),
        "kinds": Counter((failure.kind, name) for name, failure in failures),
        "failures": [failure for _, failure in failures[:_MAX_FAILURES]],
        "costs": COSTS,
    }
    template = create_environment().get_template("run.html.jinja")
    texts = [document.text for view in report.topics for document in view.documents if document.text]
    bare = template.render(values, limit=0)
    return template.render(values, limit=find_text_limit(texts, MAX_BYTES - len(bare.encode())))


def _label_bands() -> list[str]:
    """Return a label for each band of ranks."""
    starts = [1, *(band + 1 for band in BANDS)]
    closed = [f"{start}\N{EN DASH}{end}" for start, end in zip(starts, BANDS, strict=False)]
    return [*closed, f"after {BANDS[-1]}, or not ranked"]


# Documents up to this rank in some run are shown, however large the page becomes.
_MIN_TOP = 5
# By topic id and document id, a panel for each run with details: the run's index, the document's rank, and the markup.
_Panels = Mapping[tuple[str, str], list[tuple[int, int, Markup]]]


def render_comparison(found: RunComparison) -> str:
    """Render the page that compares several runs.

    Where the page would take more than `MAX_BYTES`, it first drops the model's answers at lower ranks, then truncates
    document texts to no less than `MIN_CHARS`, then drops documents below the first five ranks of every run.
    """
    environment = create_environment()
    template = environment.get_template("comparison.html.jinja")
    module: Any = environment.get_template("macros.html.jinja").make_module(
        {"labels": found.task.stances, "before": found.task.before_judging}
    )
    panels: _Panels = {
        (topic.topic.id, document.document_id): [
            (n, place.rank, module.panel(LETTERS[n], n, place.details))
            for n, place in enumerate(document.places)
            if place is not None and place.details is not None
        ]
        for topic in found.topics
        for document in topic.documents
    }
    letters = LETTERS[: len(found.sides)]
    heads = {
        (topic.topic.id, document.document_id): module.head(document, letters)
        for topic in found.topics
        for document in topic.documents
    }
    values = _values(found) | {"panels": panels, "heads": heads}
    shown = found.top
    while True:
        texts = [
            document.text
            for topic in found.topics
            for document in topic.documents
            if document.text and document.best <= shown
        ]
        room = MAX_BYTES - len(template.render(values, limit=0, said=0, shown=shown).encode())
        if room >= count_bytes(texts, MIN_CHARS) or shown <= _MIN_TOP:
            break
        shown = max(shown * 4 // 5, _MIN_TOP)
    said, size = fit_panels(panels, shown, room - count_bytes(texts, MIN_CHARS))
    return template.render(values, limit=find_text_limit(texts, room - size), said=said, shown=shown)


def fit_panels(panels: _Panels, top: int, room: int) -> tuple[int, int]:
    """Return the lowest rank whose panels still fit, and the size in bytes of the panels down to it."""
    sizes: Counter[int] = Counter()
    for _, rank, markup in (panel for of_document in panels.values() for panel in of_document):
        sizes[rank] += len(markup.encode())
    said, size = 0, 0
    while said < top and size + sizes[said + 1] <= room:
        said += 1
        size += sizes[said]
    return said, size


def _values(found: RunComparison) -> dict[str, Any]:
    """Return the variables of the template that do not depend on the size of the page."""
    sides = found.sides
    anchors = {view.topic.id: (f"t{n}", view.topic.title) for n, view in enumerate(found.topics, start=1)}
    headline = [measure for measure in found.measures if measure.headline]
    folders = [(n, side) for n, side in enumerate(sides) if side.failures is not None]
    sets = {name: {side.letter: side.stances[name] for side in sides} for name in sides[0].stances}
    return {
        "found": found,
        "labels": found.task.stances,
        "before": found.task.before_judging,
        "grades": found.task.question.grades,
        "headline": headline,
        "plots": {
            measure.name: plot_topics_of_runs(measure.name, measure.by_topic, LETTERS.index(found.baseline), anchors)
            for measure in headline
            if len(measure.topics) >= MIN_TOPICS
        },
        "stances": {
            name: plot_stances(
                compute_label_shares(of_runs | {"assessors": found.assessor_labels}, found.task.stances),
                found.task.stances,
            )
            for name, of_runs in sets.items()
            if found.task.stances and any(of_runs.values())
        },
        "shared": {
            name: value
            for name, value in sides[0].facts.items()
            if all(side.facts.get(name) == value for side in sides)
        },
        "folders": folders,
        "kinds": sorted({kind for _, side in folders for kind in side.failures or ()}),
        "titles": COSTS,
        "costs": {
            stage: {key: amounts for key in COSTS if any(amounts := _costs(sides, stage, key))}
            for stage in dict.fromkeys(stage for side in sides for stage in side.costs or ())
        },
    }


def _costs(sides: Iterable[ComparedRun], stage: str, key: str) -> list[float | None]:
    """Return one cost of a stage for each run whose costs are known."""
    return [side.costs.get(stage, {}).get(key) for side in sides if side.costs is not None]
