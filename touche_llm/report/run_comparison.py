"""The page that compares several runs: their measures, and the rank of each top document in each run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

from pandas import DataFrame

from touche_llm.data.records import Topic
from touche_llm.errors import UsageError
from touche_llm.evaluation.measures import Evaluation
from touche_llm.evaluation.qrels import Qrels, format_notes
from touche_llm.evaluation.stances import count_confusion
from touche_llm.regression.snapshot import run_settings
from touche_llm.report.folder import RunFolder, get_assessments, open_folder
from touche_llm.report.page import (
    COSTS,
    LETTERS,
    compare_measures,
    compute_label_shares,
    create_environment,
    describe_all_coverage,
    describe_run,
    extract_costs,
    list_assessor_labels,
    note_missing_intervals,
    plot_topics,
)
from touche_llm.tasks.task import Task

# Runs disagree about a document that is above this rank in some of them only; the cutoff of the headline measures.
_CUTOFF = 5


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
    """Return what the page of several runs shows, for `render_comparison`.

    Args:
        evaluations: Evaluations of 2 to 8 runs in the order of their letters, all by the same qrels.
        paths: Folder of each run; None for a plain run file.
        task: Task of all runs.
        judged_by: Files of the qrels, by aspect.
        differences: Differences from the baseline, as returned by `measures.compare_runs`.
        remarks: Notes of `measures.compare_runs`.
        top: Number of documents per topic and run.

    Raises:
        DataError: A run folder is malformed, or its corpus lacks its documents.
    """
    qrels = evaluations[0].qrels
    with ExitStack() as stack:
        folders = [None if path is None else stack.enter_context(open_folder(path)) for path in paths]
        for folder in folders:
            if folder is not None:
                folder.check_documents(ranking[:top] for ranking in folder.run.rankings.values())
        sides = [
            _describe_side(letter, evaluation, folder, task)
            for letter, evaluation, folder in zip(LETTERS, evaluations, folders, strict=False)
        ]
        _add_differing_settings(sides, folders)
        ids = list(dict.fromkeys(topic for evaluation in evaluations for topic in evaluation.run.rankings))
        topics = [_build_topic(topic, evaluations, folders, qrels, top) for topic in ids]
        labels = {side.letter: list(each.run.stances.values()) for side, each in zip(sides, evaluations, strict=True)}
        baseline = differences["baseline"].iloc[0]
        measures = compare_measures(evaluations, differences)
        return SimpleNamespace(
            task=task,
            judged_by=judged_by,
            sides=sides,
            baseline=next(side.letter for side in sides if side.name == baseline),
            measures=measures,
            stances=compute_label_shares(labels | {"assessors": list_assessor_labels(qrels)}, task.stances),
            topics=topics,
            top=top,
            coverage=describe_all_coverage(evaluations),
            notes=[
                *format_notes({evaluation.name: evaluation.notes for evaluation in evaluations}),
                *remarks,
                *note_missing_intervals(measures),
                *_notes(sides, folders, topics),
            ],
        )


def _add_differing_settings(sides: Sequence[SimpleNamespace], folders: Sequence[RunFolder | None]) -> None:
    """Add the settings in which the runs differ to the facts of those that have a folder."""
    settings = {
        side.letter: run_settings(folder.config)
        for side, folder in zip(sides, folders, strict=True)
        if folder is not None
    }
    for name in dict.fromkeys(name for of_run in settings.values() for name in of_run):
        if len({str(of_run.get(name)) for of_run in settings.values()}) > 1:
            for side in sides:
                if side.letter in settings:
                    side.facts[name] = str(settings[side.letter].get(name))


def _describe_side(letter: str, evaluation: Evaluation, folder: RunFolder | None, task: Task) -> SimpleNamespace:
    run = evaluation.run
    if folder is None:
        lines = sum(map(len, run.rankings.values()))
        facts, costs = {"given as": "a run file", "topics": f"{len(run.rankings):,}", "lines": f"{lines:,}"}, None
    else:
        facts = describe_run(folder.config, task, folder.stages, run)
        del facts["task"]
        facts["failures"] = f"{sum(map(len, folder.failures.values())):,}"
        costs = {name: extract_costs(stage) for name, stage in folder.stages.items()}
    return SimpleNamespace(
        letter=letter,
        name=evaluation.name,
        facts=facts,
        confusion=count_confusion(run, evaluation.qrels).tolist() if evaluation.qrels.stances else [],
        # None for a run file.
        costs=costs,
    )


def _build_topic(
    topic_id: str, evaluations: Sequence[Evaluation], folders: Sequence[RunFolder | None], qrels: Qrels, top: int
) -> SimpleNamespace:
    rankings = [evaluation.run.rankings.get(topic_id, []) for evaluation in evaluations]
    shown = {candidate.document_id for ranking in rankings for candidate in ranking[:top]}
    places: list[dict[str, SimpleNamespace]] = []
    texts: dict[str, str] = {}
    for evaluation, folder, ranking in zip(evaluations, folders, rankings, strict=True):
        grades = {} if folder is None else {row.document_id: row.grades for row in folder.rows(topic_id, None)}
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
    ranks = {document: [of_run[document].rank for of_run in places if document in of_run] for document in shown}
    documents = []
    for document in sorted(shown, key=lambda document: (min(ranks[document]), sum(ranks[document]), document)):
        found = [of_run.get(document) for of_run in places]
        labels = {place.stance for place in found if place is not None and place.stance}
        at_top = [place is not None and place.rank <= _CUTOFF for place, of in zip(found, rankings, strict=True) if of]
        documents.append(
            SimpleNamespace(
                document_id=document,
                text=texts.get(document),
                people=get_assessments(qrels, topic_id, document),
                # One for each run; None where the run lacks the document.
                places=found,
                stances_differ=len(labels) > 1,
                # In the top 5 of some run, but not of every run with the topic.
                top_differs=any(at_top) and not all(at_top),
            )
        )
    # With the objects that the first of the models found.
    known = (folder.topics[topic_id] for folder in folders if folder is not None and topic_id in folder.topics)
    return SimpleNamespace(topic=next(known, Topic(topic_id, "")), documents=documents)


def _notes(
    sides: Sequence[SimpleNamespace], folders: Sequence[RunFolder | None], topics: Sequence[SimpleNamespace]
) -> Iterator[str]:
    """Yield the limitations of what the page shows about the runs."""
    for side, folder in zip(sides, folders, strict=True):
        bare = ["Only a run file, which has ranks and stances, but no grades, failures and costs."]
        yield from (f"{side.letter}: {note}" for note in (bare if folder is None else folder.list_notes()))
    documents = [document for topic in topics for document in topic.documents]
    if without := sum(document.text is None for document in documents):
        yield f"Documents without text, missing in every available corpus: {without:,} of {len(documents):,}."


def render_comparison(found: SimpleNamespace) -> str:
    """Render the page that compares several runs."""
    sides = found.sides
    with_costs = [(n, side.costs) for n, side in enumerate(sides) if side.costs is not None]
    headline = [measure for measure in found.measures if measure.headline]
    by_topic = {each.name: [{} if run is None else run.by_topic for run in each.runs] for each in headline}
    letters = [(side.letter, side.letter, f"side{n}") for n, side in enumerate(sides)]
    baseline = LETTERS.index(found.baseline)
    plots = {name: plot_topics(letters, values, baseline) for name, values in by_topic.items()}
    values = {
        "found": found,
        "labels": found.task.stances,
        "letters": [side.letter for side in sides],
        "before": found.task.before_judging,
        "grades": found.task.question.grades,
        "headline": headline,
        "by_topic": by_topic,
        "anchors": {view.topic.id: (f"t{n}", view.topic.title) for n, view in enumerate(found.topics, start=1)},
        "plots": {name: topics for name, topics in plots.items() if topics},
        "shared": {
            name: value
            for name, value in sides[0].facts.items()
            if all(side.facts.get(name) == value for side in sides)
        },
        "folders": [n for n, _ in with_costs],
        "titles": COSTS,
        "costs": {
            stage: {
                key: amounts for key in COSTS if any(amounts := [of.get(stage, {}).get(key) for _, of in with_costs])
            }
            for stage in dict.fromkeys(stage for _, of in with_costs for stage in of)
        },
    }
    return create_environment().get_template("comparison.html.jinja").render(values)
