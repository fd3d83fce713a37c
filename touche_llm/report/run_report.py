"""Building the report of a run from its folder, its corpus and its answer cache."""

from __future__ import annotations

from pathlib import Path

from touche_llm.evaluation.coverage import describe_fitted, describe_limits
from touche_llm.evaluation.qrels import Qrels
from touche_llm.report.folder import open_folder
from touche_llm.report.overview import (
    collect_assessor_labels,
    collect_labels,
    compute_label_shares,
    count_movements,
    describe_run,
    extract_costs,
    find_dropped,
)
from touche_llm.report.records import RunReport, TopicView
from touche_llm.report.run_measures import measure_run
from touche_llm.report.sources import load_run_prompts, render_prompts

# Maximum number of rows per topic, including those with text.
_MAX_ROWS = 100


def gather_report(folder: Path, qrels: Qrels | None, top: int, *, run_topics: bool = False) -> RunReport:
    """Build the report of a run.

    Args:
        folder: Run folder.
        qrels: Judgments by assessors; if None, the report has no evaluation.
        top: Number of documents per topic that are shown with text.
        run_topics: Evaluate only judged topics of the run; otherwise a topic that the run lacks counts 0. Always on for
            a run whose configuration selects topics.

    Raises:
        DataError: A file of the run is missing or malformed, or the corpus lacks its documents.
        UsageError: The configuration of the run cannot be read.
    """
    with open_folder(folder) as opened:
        run, task, notes = opened.run, opened.task, list[str]()
        measured = None
        if qrels is not None and (run_topics or opened.config.has_chosen_topics):
            qrels = qrels.restrict_to(run.rankings)
        if qrels is None:
            notes.append("No qrels were given, so the run is not evaluated.")
        else:
            measured = measure_run(run, opened.first, qrels, task.before_judging)
            notes += measured.notes
            notes += describe_limits(["The run"] if opened.config.has_chosen_topics else [])
            notes += describe_fitted("The run", run, opened.config.fitted_on, qrels)
        missing = [topic for topic in opened.topics if topic not in run.rankings]
        if missing:
            notes.append(f"Topics without a line in the run: {', '.join(missing)}.")
        if isinstance(imputed := opened.stages.get("rank", {}).get("imputed stances"), int) and imputed:
            notes.append(f"Imputed stances, for lack of a usable answer: {imputed:,}. They are counted below.")
        prompts = load_run_prompts(opened.context, opened.stages, opened.notes)
        opened.check_documents(ranking[:top] for ranking in run.rankings.values())
        rows = {topic_id: opened.rows(topic_id, qrels) for topic_id in run.rankings}
        shown = [
            TopicView(
                opened.topics[topic_id],
                [opened.document(topic_id, row) for row in lines[:top]],
                lines[top:_MAX_ROWS],
                max(len(lines) - max(top, _MAX_ROWS), 0),
                find_dropped(opened.first.rankings[topic_id], lines, top, qrels),
                render_prompts(prompts, task, opened.topics[topic_id]),
            )
            for topic_id, lines in rows.items()
        ]
        return RunReport(
            name=folder.resolve().name,
            task=task,
            facts=describe_run(opened.config, task, opened.stages, run),
            topics=shown,
            movements=count_movements(rows, opened.first.rankings),
            stances=compute_label_shares(
                collect_labels(run) | {"assessors": collect_assessor_labels(qrels)}, task.stances
            ),
            measured=measured,
            costs={name: extract_costs(stage) for name, stage in opened.stages.items()},
            failures=opened.failures,
            notes=notes + opened.list_notes(),
        )
