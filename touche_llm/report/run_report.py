"""The page of a run, from its folder, its corpus and its answer cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from touche_llm.evaluation.qrels import Qrels, describe_fitted, select_topics
from touche_llm.pipeline.run_directory import read_counts
from touche_llm.report.folder import RunFolder, open_folder
from touche_llm.report.page import (
    COSTS,
    compute_label_shares,
    create_environment,
    describe_run,
    extract_costs,
    list_assessor_labels,
    measure_run,
    plot_topics,
)

# Maximum number of rows per topic, including those with text.
_MAX_ROWS = 100
# Failures are listed with their completions up to this number; all of them are counted.
_MAX_FAILURES = 50


def gather_report(folder: Path, qrels: Qrels | None, top: int) -> SimpleNamespace:
    """Return what the page of a run shows, for `render_report`.

    Args:
        folder: Run folder.
        qrels: Judgments by assessors; if None, the report has no evaluation.
        top: Number of documents per topic that are shown with text.

    Raises:
        DataError: A file of the run is missing or malformed, the corpus lacks its documents, or the judgments are of
            another corpus.
        UsageError: The configuration of the run cannot be read.
    """
    with open_folder(folder) as opened:
        run, task, notes = opened.run, opened.task, list[str]()
        measured = None
        if qrels is None:
            notes.append("No qrels were given, so the run is not evaluated.")
        else:
            qrels = select_topics(qrels, [run])
            measured = measure_run(run, opened.first, qrels, task.before_judging)
            notes += measured.notes
            notes += describe_fitted("The run", run, opened.config.fitted_on, qrels)
        notes += _note_gaps(opened)
        opened.check_documents(ranking[:top] for ranking in run.rankings.values())
        rows = {topic_id: opened.rows(topic_id, qrels) for topic_id in run.rankings}
        shown = [
            SimpleNamespace(
                topic=opened.topics[topic_id],
                documents=[opened.document(topic_id, row) for row in lines[:top]],
                # The following rows, shown without text, and the number of those that are not shown.
                rows=lines[top:_MAX_ROWS],
                omitted=len(lines[max(top, _MAX_ROWS) :]),
            )
            for topic_id, lines in rows.items()
        ]
        labels = {"run": list(run.stances.values()), "assessors": list_assessor_labels(qrels)}
        return SimpleNamespace(
            name=folder.resolve().name,
            task=task,
            facts=describe_run(opened.config, task, opened.stages, run),
            topics=shown,
            has_judge_ranks=any(row.judge is not None for lines in rows.values() for row in lines),
            stances=compute_label_shares(labels, task.stances),
            measured=measured,
            costs={name: extract_costs(stage) for name, stage in opened.stages.items()},
            failures=opened.failures,
            notes=notes + opened.list_notes(),
        )


def _note_gaps(opened: RunFolder) -> Iterator[str]:
    """Yield notes on topics without a ranking, stances that are not the model's, and labels that say little."""
    if missing := [topic for topic in opened.topics if topic not in opened.run.rankings]:
        yield f"Topics without a line in the run: {', '.join(missing)}."
    if imputed := read_counts(opened.stages["rank"]).imputed:
        yield f"Imputed stances, for lack of a usable answer: {imputed:,}. They are counted below."
    for facts in opened.stages.values():
        for name, counts in read_counts(facts).labels.items():
            yield from (f"Prompt {name}: {note}." for note in (*counts.list_problems(), *counts.describe_overruled()))


def render_report(report: SimpleNamespace) -> str:
    """Render the page of a run."""
    measured = report.measured
    anchors = {view.topic.id: (f"t{n}", view.topic.title) for n, view in enumerate(report.topics, start=1)}
    headline = [] if measured is None else [measure for measure in measured.measures if measure.headline]
    # Stances have no first stage, and are not measured by topic here.
    by_topic = {
        measure.name: [run.by_topic for run in measure.runs] for measure in headline if None not in measure.runs
    }
    pair = (("run", "●", "run"), (report.task.before_judging, "○", "first"))
    plots = {name: plot_topics(pair, values) for name, values in by_topic.items()}
    failures = [(name, failure) for name, of_file in report.failures.items() for failure in of_file]
    values = {
        "report": report,
        "measured": measured,
        "headline": headline,
        "labels": report.task.stances,
        "before": report.task.before_judging,
        "anchors": anchors,
        "plots": {name: topics for name, topics in plots.items() if topics},
        "scores": {
            topic: [(name, run[topic], first.get(topic)) for name, (run, first) in by_topic.items() if topic in run]
            for topic in anchors
        },
        # Aspects by which the model and the assessors can be compared.
        "aspects": list(
            dict.fromkeys(aspect for view in report.topics for each in view.documents for aspect in each.row.people)
        ),
        "kinds": Counter((failure.kind, name) for name, failure in failures),
        "failures": [failure for _, failure in failures[:_MAX_FAILURES]],
        "costs": COSTS,
    }
    return create_environment().get_template("run.html.jinja").render(values)
