"""The page of a run, from its folder, its corpus and its answer cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from touche_llm.data.records import Document, Topic
from touche_llm.errors import PromptError, UsageError
from touche_llm.evaluation.qrels import Qrels, describe_fitted, select_topics
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.run_directory import read_counts
from touche_llm.prompts.prompt import Prompt
from touche_llm.report.folder import RunFolder, open_folder
from touche_llm.report.page import (
    COSTS,
    collect_assessor_labels,
    collect_labels,
    compute_label_shares,
    create_environment,
    describe_run,
    extract_costs,
    measure_run,
    plot_topics,
)
from touche_llm.tasks.features import Question
from touche_llm.tasks.task import Task

# Takes the place of the document in a rendered prompt; sanitizing leaves it unchanged.
PLACEHOLDER = "\N{HORIZONTAL ELLIPSIS} here stands the text of the document \N{HORIZONTAL ELLIPSIS}"
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
        prompts = _load_prompts(opened.context, opened.stages, opened.notes)
        opened.check_documents(ranking[:top] for ranking in run.rankings.values())
        rows = {topic_id: opened.rows(topic_id, qrels) for topic_id in run.rankings}
        shown = [
            SimpleNamespace(
                topic=opened.topics[topic_id],
                documents=[opened.document(topic_id, row) for row in lines[:top]],
                # The following rows, shown without text, and the number of those that are not shown.
                rows=lines[top:_MAX_ROWS],
                omitted=len(lines[max(top, _MAX_ROWS) :]),
                prompts=render_prompts(prompts, task, opened.topics[topic_id]),
            )
            for topic_id, lines in rows.items()
        ]
        return SimpleNamespace(
            name=folder.resolve().name,
            task=task,
            facts=describe_run(opened.config, task, opened.stages, run),
            topics=shown,
            has_judge_ranks=any(row.judge is not None for lines in rows.values() for row in lines),
            stances=compute_label_shares(
                collect_labels(run) | {"assessors": collect_assessor_labels(qrels)}, task.stances
            ),
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


def _load_prompts(context: RunContext, stages: Mapping[str, Any], notes: list[str]) -> dict[str, Prompt]:
    """Load the document prompts of the run by name; add those that changed since the run to `notes`."""
    used: Mapping[str, str] = stages.get("judge", {}).get("prompts", {})
    try:
        found = context.load_prompts("judge", "sentence", "stance")
    except (PromptError, UsageError) as error:
        notes.append(f"No prompts: {error}")
        return {}
    for name, prompt in found.items():
        if used.get(name) != prompt.label:
            notes.append(f"The prompt {name!r} is not shown: the run used {used.get(name)}, now it is {prompt.label}.")
    return {name: prompt for name, prompt in found.items() if used.get(name) == prompt.label}


def render_prompts(
    prompts: Mapping[str, Prompt], task: Task, topic: Topic
) -> list[tuple[str, str, list[tuple[str, list[str]]]]]:
    """Render the prompts for one topic; none if the task needs the compared objects and the topic has none.

    Returns:
        Purpose, label and messages of each prompt; a message is a role, and the pieces of its text before, between and
        after the documents.
    """
    if task.objects_answer is not None and topic.objects is None:
        return []
    questions = {"judge": task.question, "sentence": task.sentence_question, "stance": task.stance_question}
    shown = []
    for name, prompt in prompts.items():
        question = questions[name]
        assert question is not None
        shown += [(name, sent.label, _render_messages(sent, question, topic)) for sent in prompt.sent]
    return shown


def _render_messages(prompt: Prompt, question: Question, topic: Topic) -> list[tuple[str, list[str]]]:
    # Title and side are those of a sentence's argument.
    document = Document("", PLACEHOLDER, title="(the conclusion of its argument)", side="(PRO or CON)")
    variables = question.render(topic, document).variables
    messages = prompt.render(topic=topic, document=PLACEHOLDER, **variables)
    return [(message.role, message.content.split(PLACEHOLDER)) for message in messages]


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
