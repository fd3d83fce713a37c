"""The page that compares several runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pandas import DataFrame

from touche_llm.config.configuration import Config, flatten, is_one_of
from touche_llm.data.measure import CUTOFF
from touche_llm.data.records import Topic
from touche_llm.errors import UsageError
from touche_llm.evaluation.agreement import count_confusion
from touche_llm.evaluation.measures import Evaluation
from touche_llm.evaluation.qrels import Qrels, format_notes
from touche_llm.regression.snapshot import DECISIVE
from touche_llm.report.measures import tabulate_measures
from touche_llm.report.page import (
    LETTERS,
    CostRow,
    compute_label_shares,
    describe_run,
    tabulate_costs,
)
from touche_llm.runs.inputs import INCIDENTAL
from touche_llm.runs.open_folder import RunFolder, get_assessments, open_folder
from touche_llm.runs.record import STAGES, StageName, StageRecords
from touche_llm.tasks.task import Task


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
            before=task.before_judging,
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
