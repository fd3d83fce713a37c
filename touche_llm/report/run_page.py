"""The HTML page of a run."""

from __future__ import annotations

from collections import Counter

from touche_llm.report.overview import BANDS, COSTS
from touche_llm.report.page import MAX_BYTES, create_environment, find_text_limit
from touche_llm.report.plots import MIN_TOPICS, plot_movements, plot_stances, plot_topics
from touche_llm.report.records import RunReport

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
