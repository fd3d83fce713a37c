"""The page that compares several runs: their measures, and the rank of each top document in each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from pandas import DataFrame

from touche_llm.data.records import Candidate, Topic
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import DataError, UsageError
from touche_llm.evaluation.measures import Evaluation
from touche_llm.evaluation.qrels import Qrels
from touche_llm.pipeline.config_file import CONFIG
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.regression.snapshot import run_settings
from touche_llm.report.folder import RunFolder, get_assessments, open_folder
from touche_llm.report.page import (
    COSTS,
    LETTERS,
    collect_assessor_labels,
    collect_labels,
    collect_notes,
    compare_measures,
    compute_confusion,
    compute_label_shares,
    create_environment,
    describe_all_coverage,
    describe_run,
    extract_costs,
    note_missing_intervals,
    plot_topics,
)
from touche_llm.tasks.task import Task

# Runs disagree about a document that is above this rank in some of them only; the cutoff of the headline measures.
_CUTOFF = 5


@dataclass(frozen=True, slots=True)
class NamedRun:
    """A run to compare: its name, its rankings, and its folder; the folder of a plain run file is None."""

    name: str
    run: ParsedRun
    folder: Path | None


def check_runs(runs: Sequence[NamedRun], task: Task) -> None:
    """Raise an error where runs cannot be compared on one page.

    Raises:
        UsageError: The number of runs is not between 2 and 8, or a run belongs to another task.
        DataError: A folder lacks its configuration, or a run has a stance that the task does not have.
    """
    if not 2 <= len(runs) <= len(LETTERS):
        raise UsageError(f"{len(runs)} runs do not fit on one page; give 2 to {len(LETTERS)}")
    for run in runs:
        for (topic, document), stance in run.run.stances.items():
            if stance not in task.stances:
                raise DataError(
                    f"{run.name}: topic {topic}, document {document}: stance {stance!r:.40} is none of {task.name} "
                    f"({', '.join(task.stances) or 'it has no stances'}); give the task of this run, or leave it out"
                )
        if run.folder is None:
            continue
        if not (run.folder / CONFIG).is_file():
            raise DataError(
                f"{run.folder}: no {CONFIG} in this folder, so nothing is known of the run but its ranking; name "
                "its run file"
            )
        if (own := RunDirectory(run.folder).read_task().name) != task.name:
            raise UsageError(f"{run.folder}: a run of the task {own}, not of {task.name}; leave it out")


def gather_comparison(
    runs: Sequence[NamedRun],
    task: Task,
    judged_by: Mapping[str, Path],
    evaluations: Sequence[Evaluation],
    differences: DataFrame,
    remarks: Sequence[str],
    top: int,
) -> SimpleNamespace:
    """Return what the page of several runs shows, for `render_comparison`.

    Args:
        runs: Runs in the order of their letters, checked by `check_runs`.
        task: Task of all runs.
        judged_by: Files of the qrels, by aspect.
        evaluations: Evaluations of the runs, all by the same qrels.
        differences: Differences from the baseline, as returned by `measures.compare_runs`.
        remarks: Notes of `measures.compare_runs`.
        top: Number of documents per topic and run.

    Raises:
        DataError: A run folder is malformed, or its corpus lacks its documents.
    """
    qrels = evaluations[0].qrels
    with ExitStack() as stack:
        folders = [None if run.folder is None else stack.enter_context(open_folder(run.folder)) for run in runs]
        for folder in folders:
            if folder is not None:
                folder.check_documents(ranking[:top] for ranking in folder.run.rankings.values())
        sides = [
            _describe_side(letter, run, folder, task, qrels)
            for letter, run, folder in zip(LETTERS, runs, folders, strict=False)
        ]
        _add_differing_settings(sides, folders)
        ids = list(dict.fromkeys(topic for run in runs for topic in run.run.rankings))
        topics = [_build_topic(topic, runs, folders, qrels, top) for topic in ids]
        baseline = differences["baseline"].iloc[0]
        measures = compare_measures(evaluations, differences)
        return SimpleNamespace(
            task=task,
            judged_by=judged_by,
            sides=sides,
            baseline=next(side.letter for side in sides if side.name == baseline),
            measures=measures,
            assessor_labels=collect_assessor_labels(qrels),
            topics=topics,
            top=top,
            coverage=describe_all_coverage(evaluations),
            notes=[
                *collect_notes(evaluations),
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


def _describe_side(letter: str, given: NamedRun, folder: RunFolder | None, task: Task, qrels: Qrels) -> SimpleNamespace:
    if folder is None:
        lines = sum(map(len, given.run.rankings.values()))
        facts = {"given as": "a run file", "topics": f"{len(given.run.rankings):,}", "lines": f"{lines:,}"}
        failures, costs = None, None
    else:
        facts = describe_run(folder.config, task, folder.stages, given.run)
        del facts["task"]
        failures = Counter((failure.kind, name) for name, of_file in folder.failures.items() for failure in of_file)
        costs = {name: extract_costs(stage) for name, stage in folder.stages.items()}
    confusion, by_label = compute_confusion(given.run, qrels)
    return SimpleNamespace(
        letter=letter,
        name=given.name,
        facts=facts,
        stances=collect_labels(given.run),
        confusion=confusion,
        by_label=by_label,
        # None for a run file.
        failures=failures,
        costs=costs,
    )


def _build_topic(
    topic_id: str, runs: Sequence[NamedRun], folders: Sequence[RunFolder | None], qrels: Qrels, top: int
) -> SimpleNamespace:
    rankings = [run.run.rankings.get(topic_id, []) for run in runs]
    shown = {candidate.document_id for ranking in rankings for candidate in ranking[:top]}
    places = [
        _place_documents(
            topic_id, given, folder, [candidate for candidate in ranking if candidate.document_id in shown], top
        )
        for given, folder, ranking in zip(runs, folders, rankings, strict=True)
    ]
    ranks = {document: [of_run[document].rank for of_run in places if document in of_run] for document in shown}
    ordered = sorted(shown, key=lambda document: (min(ranks[document]), sum(ranks[document]), document))
    texts: dict[str, str] = {}
    for folder in folders:
        if folder is not None:
            texts |= folder.texts(topic_id, [document_id for document_id in ordered if document_id not in texts])
    documents = []
    for document in ordered:
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


def _place_documents(
    topic_id: str, given: NamedRun, folder: RunFolder | None, shown: Sequence[Candidate], top: int
) -> dict[str, SimpleNamespace]:
    """Return rank and stance of the shown documents in one run, with rows and answers for a folder."""
    rows = {} if folder is None else {row.document_id: row for row in folder.rows(topic_id, None)}
    places = {}
    for candidate in shown:
        row = rows.get(candidate.document_id)
        details = None
        if folder is not None and row is not None and candidate.rank <= top:
            details = folder.document(topic_id, row)
        stance = given.run.stances.get((topic_id, candidate.document_id), "")
        places[candidate.document_id] = SimpleNamespace(rank=candidate.rank, stance=stance, row=row, details=details)
    return places


def _notes(
    sides: Sequence[SimpleNamespace], folders: Sequence[RunFolder | None], topics: Sequence[SimpleNamespace]
) -> Iterator[str]:
    """Yield the limitations of what the page shows about the runs."""
    bare = [side.letter for side, folder in zip(sides, folders, strict=True) if folder is None]
    if bare:
        yield (f"{', '.join(bare)}: only a run file, which has ranks and stances, but no answers, failures and costs.")
    letters_by_note: dict[str, list[str]] = {}
    for side, folder in zip(sides, folders, strict=True):
        for note in [] if folder is None else folder.list_notes():
            letters_by_note.setdefault(note, []).append(side.letter)
    for note, letters in letters_by_note.items():
        yield f"{', '.join(letters)}: {note}"
    for side, of in zip(sides, folders, strict=True):
        missing = [] if of is None else [topic for topic in of.topics if topic not in of.run.rankings]
        if missing:
            yield f"{side.letter}: topics without a line in the run: {', '.join(missing)}."
    documents = [document for topic in topics for document in topic.documents]
    if without := sum(document.text is None for document in documents):
        yield f"Documents without text, missing in every available corpus: {without:,} of {len(documents):,}."


def render_comparison(found: SimpleNamespace) -> str:
    """Render the page that compares several runs."""
    sides = found.sides
    known_costs = [side.costs for side in sides if side.costs is not None]
    anchors = {view.topic.id: (f"t{n}", view.topic.title) for n, view in enumerate(found.topics, start=1)}
    headline = [measure for measure in found.measures if measure.headline]
    by_topic = {each.name: [{} if run is None else run.by_topic for run in each.runs] for each in headline}
    letters = [(side.letter, side.letter, f"side{n}") for n, side in enumerate(sides)]
    baseline = LETTERS.index(found.baseline)
    plots = {name: plot_topics(letters, values, baseline) for name, values in by_topic.items()}
    folders = [(n, side) for n, side in enumerate(sides) if side.failures is not None]
    sets = {name: {side.letter: side.stances[name] for side in sides} for name in sides[0].stances}
    values = {
        "found": found,
        "labels": found.task.stances,
        "letters": [side.letter for side in sides],
        "before": found.task.before_judging,
        "grades": found.task.question.grades,
        "headline": headline,
        "by_topic": by_topic,
        "anchors": anchors,
        "plots": {name: topics for name, topics in plots.items() if topics},
        "stances": {
            name: compute_label_shares(of_runs | {"assessors": found.assessor_labels}, found.task.stances)
            for name, of_runs in sets.items()
            if found.task.stances and any(of_runs.values())
        },
        "shared": {
            name: value
            for name, value in sides[0].facts.items()
            if all(side.facts.get(name) == value for side in sides)
        },
        "folders": folders,
        "kinds": sorted({kind for _, side in folders for kind in side.failures or ()}),
        "titles": COSTS,
        "costs": {
            stage: {key: amounts for key in COSTS if any(amounts := [of.get(stage, {}).get(key) for of in known_costs])}
            for stage in dict.fromkeys(stage for of_run in known_costs for stage in of_run)
        },
    }
    return create_environment().get_template("comparison.html.jinja").render(values)
