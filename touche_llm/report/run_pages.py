"""The page of a run, and the page that compares several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pandas import DataFrame

from touche_llm.config.configuration import Config, flatten, is_one_of
from touche_llm.data.measure import CUTOFF
from touche_llm.data.records import Topic
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import UsageError
from touche_llm.evaluation.agreement import count_confusion
from touche_llm.evaluation.measures import Evaluation, describe_judging, evaluate_run, list_headline
from touche_llm.evaluation.qrels import Qrels, describe_fitted, format_notes, select_topics
from touche_llm.evaluation.significance import compare
from touche_llm.kinds.known import get_kind
from touche_llm.regression.snapshot import DECISIVE
from touche_llm.report.agreement import describe_agreement
from touche_llm.report.page import (
    LETTERS,
    CostRow,
    compute_label_shares,
    describe_run,
    tabulate_costs,
    tabulate_measures,
)
from touche_llm.runs.inputs import INCIDENTAL
from touche_llm.runs.open_folder import DocumentRow, RunFolder, get_assessments, open_folder
from touche_llm.runs.record import STAGES, StageName, StageRecords
from touche_llm.tasks.task import Task

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
        agreement = None
        if qrels is None:
            notes.append("No qrels were given, so the run is not evaluated.")
        else:
            qrels = select_topics(qrels, [run])
            measured = measure_run(run, opened.first, qrels, get_kind(task).before_judging)
            agreement = describe_agreement(opened.records.judgments, qrels, task)
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
            before=get_kind(task).before_judging,
            marks=[(_RUN, "●", "run"), (get_kind(task).before_judging, "○", "first")],
            facts=describe_run(opened.config, task, opened.stages, run),
            topics=_describe_topics(opened, rows, top),
            anchors={
                topic_id: (f"t{n}", opened.topics[topic_id].title)
                for n, topic_id in enumerate(rows, start=1)
            },
            has_judge_ranks=any(row.judge is not None for row in shown),
            stances=compute_label_shares({_RUN: run}, qrels, task.stances),
            measured=measured,
            agreement=agreement,
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


def check_number(runs: int) -> None:
    """Raise UsageError if so many runs do not fit on one page."""
    if not 2 <= runs <= len(LETTERS):
        raise UsageError(f"{runs} runs do not fit on one page; give 2 to {len(LETTERS)}")


def gather_comparison(
    evaluations: Sequence[Evaluation],
    paths: Sequence[Path | None],
    task: Task,
    judged_by: Mapping[str, Path],
    differences: DataFrame,
    remarks: Sequence[str],
    top: int,
) -> SimpleNamespace:
    """Return the page of 2 to 8 runs, for `page.render`, with the first `top` documents of each run and topic.

    The runs have the same qrels, and a folder, or None for a plain run file; `judged_by` has the
    files of the qrels by aspect, and `differences` and `remarks` are what `measures.compare_runs`
    returns.
    """
    qrels = evaluations[0].qrels
    with ExitStack() as stack:
        folders = [
            None if path is None else stack.enter_context(open_folder(path)) for path in paths
        ]
        for folder in filter(None, folders):
            folder.check_documents(ranking[:top] for ranking in folder.run.rankings.values())
        sides = [
            _describe_side(*side, task) for side in zip(LETTERS, evaluations, folders, strict=False)
        ]
        _add_differing_settings(sides, folders)
        runs = [evaluation.run for evaluation in evaluations]
        ids = dict.fromkeys(topic for run in runs for topic in run.rankings)
        topics = [_build_topic(topic, evaluations, folders, qrels, top) for topic in ids]
        measured = tabulate_measures(evaluations, differences)
        notes = format_notes({evaluation.name: evaluation.notes for evaluation in evaluations})
        return SimpleNamespace(
            template="comparison",
            task=task,
            labels=task.stances,
            before=get_kind(task).before_judging,
            grades=task.question.grades,
            judged_by=judged_by,
            sides=sides,
            letters=[side.letter for side in sides],
            marks=[(side.letter, side.letter, f"side{n}") for n, side in enumerate(sides)],
            shared=_find_shared_facts(sides),
            baseline=sides[0].letter,
            measured=measured,
            stances=compute_label_shares(
                dict(zip(LETTERS, runs, strict=False)), qrels, task.stances
            ),
            topics=topics,
            anchors={
                view.topic.id: (f"t{n}", view.topic.title) for n, view in enumerate(topics, start=1)
            },
            top=top,
            folders=[n for n, folder in enumerate(folders) if folder is not None],
            costs=_compare_costs([side.stages for side in sides if side.stages is not None]),
            notes=[*notes, *remarks, *measured.notes, *_note_limits(sides, folders, topics)],
        )


def _find_shared_facts(sides: Sequence[SimpleNamespace]) -> dict[str, str]:
    facts = sides[0].facts.items()
    return {
        name: value for name, value in facts if all(side.facts.get(name) == value for side in sides)
    }


def _compare_costs(runs: Sequence[StageRecords]) -> dict[StageName, list[CostRow]]:
    """Return a table of costs for each stage that a run has, with a column for each run."""
    compared: dict[StageName, list[CostRow]] = {}
    for stage in STAGES:
        records = [run.finished.get(stage) for run in runs]
        rows = tabulate_costs(records)
        if rows:
            compared[stage] = rows
    return compared


def _add_differing_settings(
    sides: Sequence[SimpleNamespace], folders: Sequence[RunFolder | None]
) -> None:
    """Add the settings in which the runs differ to the facts of those that have a folder."""
    settings = [
        (side, _list_settings(folder.config))
        for side, folder in zip(sides, folders, strict=True)
        if folder is not None
    ]
    for name in dict.fromkeys(name for _, of_run in settings for name in of_run):
        if len({str(of_run.get(name)) for _, of_run in settings}) > 1:
            for side, of_run in settings:
                side.facts[name] = str(of_run.get(name))


def _list_settings(config: Config) -> dict[str, Any]:
    """Return every setting that determines a run after the first stage, by dotted name."""
    dumped = config.model_dump(mode="json")
    values = {name: dumped[name] for name in DECISIVE if dumped[name] is not None}
    values["engine"]["model"] = config.engine.model_name
    return {
        name: value for name, value in flatten(values).items() if not is_one_of(name, INCIDENTAL)
    }


def _describe_side(
    letter: str, evaluation: Evaluation, folder: RunFolder | None, task: Task
) -> SimpleNamespace:
    """Return what is known of one run; `stages` is None for a run file."""
    run = evaluation.run
    stages: StageRecords | None = None
    if folder is None:
        lines = sum(map(len, run.rankings.values()))
        facts = {
            "given as": "a run file",
            "topics": f"{len(run.rankings):,}",
            "lines": f"{lines:,}",
        }
    else:
        facts = describe_run(folder.config, task, folder.stages, run)
        del facts["task"]
        facts["failures"] = f"{sum(map(len, folder.failures.values())):,}"
        stages = folder.stages
    confusion = count_confusion(run, evaluation.qrels).tolist() if evaluation.qrels.stances else []
    return SimpleNamespace(
        letter=letter, name=evaluation.name, facts=facts, confusion=confusion, stages=stages
    )


def _build_topic(
    topic_id: str,
    evaluations: Sequence[Evaluation],
    folders: Sequence[RunFolder | None],
    qrels: Qrels,
    top: int,
) -> SimpleNamespace:
    rankings = [evaluation.run.rankings.get(topic_id, []) for evaluation in evaluations]
    shown = {candidate.document_id for ranking in rankings for candidate in ranking[:top]}
    places: list[dict[str, SimpleNamespace]] = []
    texts: dict[str, str] = {}
    for evaluation, folder, ranking in zip(evaluations, folders, rankings, strict=True):
        grades = (
            {}
            if folder is None
            else {row.document_id: row.grades for row in folder.rows(topic_id, None)}
        )
        places.append(
            {
                candidate.document_id: SimpleNamespace(
                    rank=candidate.rank,
                    stance=evaluation.run.stances.get((topic_id, candidate.document_id), ""),
                    grades=grades.get(candidate.document_id, {}),
                )
                for candidate in ranking
                if candidate.document_id in shown
            }
        )
        if folder is not None:
            texts |= folder.texts(topic_id, shown - texts.keys())
    ranks = {
        document: [of_run[document].rank for of_run in places if document in of_run]
        for document in shown
    }
    documents = []
    for document in sorted(
        shown, key=lambda document: (min(ranks[document]), sum(ranks[document]), document)
    ):
        found = [of_run.get(document) for of_run in places]
        labels = {place.stance for place in found if place is not None and place.stance}
        at_top = [
            place is not None and place.rank <= CUTOFF
            for place, of in zip(found, rankings, strict=True)
            if of
        ]
        documents.append(
            SimpleNamespace(
                document_id=document,
                text=texts.get(document),
                people=get_assessments(qrels, topic_id, document),
                # One for each run; None where the run lacks the document.
                places=found,
                stances_differ=len(labels) > 1,
                # Within the cutoff of the headline measures in some run, but not in every run with
                # the topic.
                top_differs=any(at_top) and not all(at_top),
            )
        )
    # With the objects that the first of the models found.
    known = (
        folder.topics[topic_id]
        for folder in folders
        if folder is not None and topic_id in folder.topics
    )
    return SimpleNamespace(topic=next(known, Topic(topic_id, "")), documents=documents)


def _note_limits(
    sides: Sequence[SimpleNamespace],
    folders: Sequence[RunFolder | None],
    topics: Sequence[SimpleNamespace],
) -> Iterator[str]:
    """Yield the limitations of what the page shows about the runs."""
    for side, folder in zip(sides, folders, strict=True):
        bare = ["Only a run file, which has ranks and stances, but no grades, failures and costs."]
        yield from (f"{side.letter}: {note}" for note in (bare if folder is None else folder.notes))
    documents = [document for topic in topics for document in topic.documents]
    if without := sum(document.text is None for document in documents):
        yield f"Documents without text, missing in every available corpus: {without:,} of {len(documents):,}."
