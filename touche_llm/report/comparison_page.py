"""The HTML page that compares several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup

from touche_llm.report.comparison_records import ComparedRun, RunComparison
from touche_llm.report.overview import COSTS, compute_label_shares
from touche_llm.report.page import MAX_BYTES, MIN_CHARS, count_bytes, create_environment, find_text_limit
from touche_llm.report.plots import LETTERS, MIN_TOPICS, plot_stances, plot_topics_of_runs

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
