"""The page of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from pandas import DataFrame

from touche_llm.data.runs.reading import ParsedRun
from touche_llm.evaluation.agreement import count_confusion
from touche_llm.evaluation.measures import describe_judging, evaluate_run, list_headline
from touche_llm.evaluation.qrels import Qrels, describe_fitted, select_topics
from touche_llm.evaluation.significance import compare
from touche_llm.report.measures import tabulate_measures
from touche_llm.report.page import (
    compute_label_shares,
    describe_run,
    tabulate_costs,
)
from touche_llm.runs.open_folder import DocumentRow, RunFolder, open_folder

# Maximum number of rows per topic, including those with text.
_MAX_ROWS = 100
# Failures are listed with their completions up to this number; all of them are counted.
_MAX_FAILURES = 50
_RUN = "run"


def gather_report(folder: Path, qrels: Qrels | None, top: int) -> SimpleNamespace:
    """Return the page of a run, for `page.render`.

    It shows the text of the first `top` documents of each topic.

    Without judgments by assessors, it has no evaluation.
    """
    with open_folder(folder) as opened:
        run, task, notes = opened.run, opened.task, list[str]()
        measured = None
        if qrels is None:
            notes.append("No qrels were given, so the run is not evaluated.")
        else:
            qrels = select_topics(qrels, [run])
            measured = measure_run(run, opened.first, qrels, task.before_judging)
            notes += [
                *measured.notes,
                *describe_fitted("The run", run, opened.config.fitted_on, qrels),
            ]
        notes += _note_gaps(opened)
        opened.check_documents(ranking[:top] for ranking in run.rankings.values())
        rows = {topic_id: opened.rows(topic_id, qrels) for topic_id in run.rankings}
        failures = [
            (name, failure) for name, of_file in opened.failures.items() for failure in of_file
        ]
        by_topic = {} if measured is None else measured.by_topic
        shown = [row for lines in rows.values() for row in lines[:top]]
        return SimpleNamespace(
            template="run",
            name=folder.resolve().name,
            task=task,
            labels=task.stances,
            before=task.before_judging,
            marks=[(_RUN, "●", "run"), (task.before_judging, "○", "first")],
            facts=describe_run(opened.config, task, opened.stages, run),
            topics=_describe_topics(opened, rows, top),
            anchors={
                topic_id: (f"t{n}", opened.topics[topic_id].title)
                for n, topic_id in enumerate(rows, start=1)
            },
            has_judge_ranks=any(row.judge is not None for row in shown),
            stances=compute_label_shares({_RUN: run}, qrels, task.stances),
            measured=measured,
            scores={
                topic: [
                    (name, run[topic], first.get(topic))
                    for name, (run, first) in by_topic.items()
                    if topic in run
                ]
                for topic in rows
            },
            # Aspects by which the model and the assessors can be compared.
            aspects=list(dict.fromkeys(aspect for row in shown for aspect in row.people)),
            stages=list(opened.stages.finished),
            costs=tabulate_costs(list(opened.stages.finished.values())),
            kinds=Counter((failure.kind, name) for name, failure in failures),
            failures=[failure for _, failure in failures[:_MAX_FAILURES]],
            notes=notes + opened.notes,
        )


def _describe_topics(
    opened: RunFolder, rows: Mapping[str, list[DocumentRow]], top: int
) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            topic=opened.topics[topic_id],
            documents=[opened.document(topic_id, row) for row in lines[:top]],
            # The following rows, shown without text, and the number of those that are not shown.
            rows=lines[top:_MAX_ROWS],
            omitted=len(lines[max(top, _MAX_ROWS) :]),
        )
        for topic_id, lines in rows.items()
    ]


def measure_run(
    run: ParsedRun, first_stage: ParsedRun, qrels: Qrels, before: str
) -> SimpleNamespace:
    """Evaluate a run and its first stage, named `before`, with recall at the depth of the first stage.

    The first stage has no stances and is compared by nDCG@5 only. See `tabulate_measures`; the
    confusion matrix of the stances is added.
    """
    depth, graded = max(map(len, first_stage.rankings.values())), replace(qrels, stances={})
    found, first = (
        evaluate_run(_RUN, run, qrels, depth),
        evaluate_run(before, first_stage, graded, depth),
    )
    compared = list_headline(graded)
    estimates = {
        each.name: {name: each.estimates[name] for name in compared} for each in (found, first)
    }
    measured = tabulate_measures(
        [found, first], compare(before, estimates) if compared else DataFrame()
    )
    measured.notes = [*found.notes, *describe_judging(found, first), *measured.notes]
    measured.confusion = count_confusion(run, qrels).tolist() if qrels.stances else []
    return measured


def _note_gaps(opened: RunFolder) -> Iterator[str]:
    """Yield notes on topics without a ranking, stances that are not the model's, and labels that say little."""
    if missing := [topic for topic in opened.topics if topic not in opened.run.rankings]:
        yield f"Topics without a line in the run: {', '.join(missing)}."
    rank = opened.stages.rank
    if rank is not None and rank.imputed_stances:
        imputed = f"{rank.imputed_stances:,}"
        yield f"Imputed stances, for lack of a usable answer: {imputed}. They are counted below."
    for record in opened.stages.finished.values():
        for name, counts in record.labels.items():
            for note in (*counts.list_problems(), *counts.describe_overruled()):
                yield f"Prompt {name}: {note}."
