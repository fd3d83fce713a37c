"""What a report shows, gathered from a run's folder and from what the run was made of."""

from __future__ import annotations

from pathlib import Path

from touche_llm.evaluation.coverage import describe_fitted, describe_limits
from touche_llm.evaluation.qrels import Qrels
from touche_llm.report.folder import open_folder
from touche_llm.report.measured import measure
from touche_llm.report.overview import (
    cost_of,
    facts_of,
    imputed_of,
    label_sets,
    left,
    moved,
    people_labels,
    shares_of,
)
from touche_llm.report.records import Report, StageCost, TopicView
from touche_llm.report.sources import prompts_at_hand, rendered

# Of each topic so many lines are listed at most, those with texts included.
_LISTED = 100


def gather(folder: Path, qrels: Qrels | None, top: int, *, run_topics: bool = False) -> Report:
    """What the report of a run shows.

    Args:
        folder: the run's.
        qrels: judgments of people; None: the report has no figures that need them.
        top: so many documents of each topic are shown with their texts.
        run_topics: the figures are over the judged topics that the run has, as they always are where its configuration
            limited its topics; else one that it lacks counts 0.

    Raises:
        DataError: a file of the run is not there or not as the program wrote it, or the corpus lacks its documents.
        UsageError: its configuration cannot be read.
    """
    with open_folder(folder) as opened:
        run, task, notes = opened.run, opened.task, list[str]()
        measured = None
        if qrels is not None and (run_topics or opened.config.has_chosen_topics):
            qrels = qrels.restrict_to(run.rankings)
        if qrels is None:
            notes.append("No judgments of people were given, so no figure says how good the run is.")
        else:
            measured = measure(run, opened.first, qrels, task.before_judging)
            notes += measured.notes
            notes += describe_limits(["The run"] if opened.config.has_chosen_topics else [])
            notes += describe_fitted("The run", run, opened.config.fitted_on, qrels)
        missing = [topic for topic in opened.topics if topic not in run.rankings]
        if missing:
            notes.append(f"Topics without a line in the run: {', '.join(missing)}.")
        if imputed := imputed_of(opened.stages):
            notes.append(f"Stances that no model gave, since no answer could be used: {imputed:,}. They count below.")
        prompts = prompts_at_hand(opened.config, task, opened.stages, opened.notes)
        opened.check_documents(ranking[:top] for ranking in run.rankings.values())
        rows = {topic_id: opened.rows(topic_id, qrels) for topic_id in run.rankings}
        shown = [
            TopicView(
                opened.topics[topic_id],
                [opened.document(topic_id, row) for row in lines[:top]],
                lines[top:_LISTED],
                max(len(lines) - max(top, _LISTED), 0),
                left(opened.first.rankings[topic_id], lines, top, qrels),
                rendered(prompts, task, opened.topics[topic_id]),
            )
            for topic_id, lines in rows.items()
        ]
        return Report(
            name=folder.resolve().name,
            facts=facts_of(opened.config, task, opened.stages, run),
            grades=task.question.grades,
            labels=task.stances,
            topics=shown,
            before=task.before_judging,
            moved=moved(rows, opened.first.rankings),
            stances=shares_of(label_sets(run) | {"judged by people": people_labels(qrels)}, task.stances),
            measured=measured,
            costs=[StageCost(name, cost_of(stage)) for name, stage in opened.stages.items()],
            failures=opened.failures,
            notes=notes + opened.told(),
        )
