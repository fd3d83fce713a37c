"""Building the report of a run from its folder, its corpus and its answer cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from touche_llm.data.records import Document, Topic
from touche_llm.errors import PromptError, UsageError
from touche_llm.evaluation.notes import describe_fitted
from touche_llm.evaluation.qrels import Qrels, check_judged, select_topics
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.run_overview import read_label_counts
from touche_llm.prompts.prompt import Prompt
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
from touche_llm.report.records import RenderedPrompt, RunReport, TopicView, measure_run
from touche_llm.tasks.base import Question, Task

# Takes the place of the document in a rendered prompt; sanitizing leaves it unchanged.
PLACEHOLDER = "\N{HORIZONTAL ELLIPSIS} here stands the text of the document \N{HORIZONTAL ELLIPSIS}"
# Maximum number of rows per topic, including those with text.
_MAX_ROWS = 100


def gather_report(folder: Path, qrels: Qrels | None, top: int, *, run_topics: bool = False) -> RunReport:
    """Build the report of a run.

    Args:
        folder: Run folder.
        qrels: Judgments by assessors; if None, the report has no evaluation.
        top: Number of documents per topic that are shown with text.
        run_topics: Evaluate only judged topics that the run has; otherwise one that it lacks counts 0, unless the
            configuration of the run left it out.

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
            check_judged(qrels, run, opened.first)
            qrels = select_topics(qrels, [run], shared=run_topics)
            measured = measure_run(run, opened.first, qrels, task.before_judging)
            notes += measured.notes
            notes += describe_fitted("The run", run, opened.config.fitted_on, qrels)
        missing = [topic for topic in opened.topics if topic not in run.rankings]
        if missing:
            notes.append(f"Topics without a line in the run: {', '.join(missing)}.")
        if isinstance(imputed := opened.stages.get("rank", {}).get("imputed stances"), int) and imputed:
            notes.append(f"Imputed stances, for lack of a usable answer: {imputed:,}. They are counted below.")
        for facts in opened.stages.values():
            for name, counts in read_label_counts(facts).items():
                notes += [f"Prompt {name}: {note}." for note in (*counts.list_problems(), *counts.describe_overruled())]
        prompts = _load_prompts(opened.context, opened.stages, opened.notes)
        opened.check_documents(ranking[:top] for ranking in run.rankings.values())
        rows = {topic_id: opened.rows(topic_id, qrels) for topic_id in run.rankings}
        shown = [
            TopicView(
                opened.topics[topic_id],
                [opened.document(topic_id, row) for row in lines[:top]],
                lines[top:_MAX_ROWS],
                len(lines[max(top, _MAX_ROWS) :]),
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


def render_prompts(prompts: Mapping[str, Prompt], task: Task, topic: Topic) -> list[RenderedPrompt]:
    """Render the prompts for one topic; none if the task needs the compared objects and the topic has none."""
    if task.objects_answer is not None and topic.objects is None:
        return []
    questions = {"judge": task.question, "sentence": task.sentence_question, "stance": task.stance_question}
    shown = []
    for name, prompt in prompts.items():
        question = questions[name]
        assert question is not None
        shown.append(RenderedPrompt(name, prompt.label, _render_messages(prompt, question, topic)))
    return shown


def _render_messages(prompt: Prompt, question: Question, topic: Topic) -> list[tuple[str, list[str]]]:
    # Title and side are those of a sentence's argument.
    document = Document("", PLACEHOLDER, title="(the conclusion of its argument)", side="(PRO or CON)")
    variables = question.render(topic, document).variables
    messages = prompt.render(topic=topic, document=PLACEHOLDER, **variables)
    return [(message.role, message.content.split(PLACEHOLDER)) for message in messages]
