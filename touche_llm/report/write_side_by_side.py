"""The page of several runs side by side: one file, as that of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from touche_llm.report.figures import LETTERS, stance_bars, topic_letters
from touche_llm.report.overview import shares_of
from touche_llm.report.sides import Side, SideBySide
from touche_llm.report.write import COSTS, LEAST_CHARS, MOST_BYTES, environment, size_of, text_limit, write_page

# Documents that are on every page, however large that becomes: those with such a rank in some run.
_LEAST_SHOWN = 5
# What a model said of a document, for each of the runs: the run's number, the document's rank in it, and the markup.
_Panels = Mapping[tuple[str, str], list[tuple[int, int, Markup]]]


def write_side_by_side(found: SideBySide, path: Path) -> int:
    """Write the page as one HTML file, whole or not at all; returns its bytes.

    Where it would have more than `MOST_BYTES`, what the models said is left out of the lower ranks, then texts are cut,
    but not to less than 400 characters, and at last the documents of lower ranks are left out, but those among the
    first 5 of a run.
    """
    return write_page(render(found), path)


def render(found: SideBySide) -> str:
    """The page."""
    jinja = environment()
    template = jinja.get_template("side_by_side.html.jinja")
    module: Any = jinja.get_template("macros.html.jinja").make_module({"labels": found.labels, "before": found.before})
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
        room = MOST_BYTES - len(template.render(values, limit=0, said=0, shown=shown).encode())
        if room >= size_of(texts, LEAST_CHARS) or shown <= _LEAST_SHOWN:
            break
        shown = max(shown * 4 // 5, _LEAST_SHOWN)
    said, size = _said(panels, shown, room - size_of(texts, LEAST_CHARS))
    return template.render(values, limit=text_limit(texts, room - size), said=said, shown=shown)


def _said(panels: _Panels, top: int, room: int) -> tuple[int, int]:
    """Up to which rank what the models said has room, and how many bytes it takes."""
    sizes: Counter[int] = Counter()
    for _, rank, markup in (panel for of_document in panels.values() for panel in of_document):
        sizes[rank] += len(markup.encode())
    said, size = 0, 0
    while said < top and size + sizes[said + 1] <= room:
        said += 1
        size += sizes[said]
    return said, size


def _values(found: SideBySide) -> dict[str, Any]:
    """What the template inserts, but for what depends on the size of the page."""
    sides = found.sides
    anchors = {each.topic.id: (f"t{n}", each.topic.title) for n, each in enumerate(found.topics, start=1)}
    headline = [each for each in found.measures if each.headline]
    own = [(n, side) for n, side in enumerate(sides) if side.failures is not None]
    sets = {name: {side.letter: side.stances[name] for side in sides} for name in sides[0].stances}
    return {
        "found": found,
        "labels": found.labels,
        "before": found.before,
        "grades": found.grades,
        "headline": headline,
        "figures": {
            each.name: topic_letters(each.name, each.by_topic, LETTERS.index(found.baseline), anchors)
            for each in headline
        },
        "stances": {
            name: stance_bars(shares_of(of_runs | {"people": found.people}, found.labels), found.labels)
            for name, of_runs in sets.items()
            if any(of_runs.values())
        },
        "shared": _shared([side.facts for side in sides]),
        "own": own,
        "kinds": sorted({kind for _, side in own for kind in side.failures or ()}),
        "costs": {
            stage: {title: figures for key, title in COSTS.items() if any(figures := _figures(sides, stage, key))}
            for stage in dict.fromkeys(stage for side in sides for stage in side.costs or ())
        },
    }


def _shared(facts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """What is the same of all runs."""
    first, *others = facts
    return {name: value for name, value in first.items() if all(each.get(name) == value for each in others)}


def _figures(sides: Iterable[Side], stage: str, key: str) -> list[float | None]:
    """What a stage of each run took, of those that tell what they cost."""
    return [side.costs.get(stage, {}).get(key) for side in sides if side.costs is not None]
