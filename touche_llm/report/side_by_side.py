"""Several runs gathered for one page: their figures, and each document at the top of any, with its place in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from touche_llm.data.records import Candidate, Topic
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import DataError, UsageError
from touche_llm.evaluation.qrels import Qrels
from touche_llm.pipeline.run_files import CONFIG
from touche_llm.regression.snapshot import run_settings
from touche_llm.report.compared import compared
from touche_llm.report.figures import LETTERS
from touche_llm.report.folder import RunFolder, config_of, open_folder
from touche_llm.report.measured import confusion_of, coverage_lines, notes_of
from touche_llm.report.overview import cost_of, facts_of, label_sets, people_labels, people_of
from touche_llm.report.sides import Place, SharedDocument, SharedTopic, Side, SideBySide
from touche_llm.tasks.base import Task

if TYPE_CHECKING:
    from pandas import DataFrame

    from touche_llm.evaluation.measures import Evaluation

# A document among the first so many of one run and not of another is one that the runs disagree about; the measures
# look at so many.
_FIRST = 5


@dataclass(frozen=True, slots=True)
class GivenRun:
    """A run to be shown: what to call it, its lines, and its folder; None for a run file by itself."""

    name: str
    run: ParsedRun
    folder: Path | None


def check_runs(runs: Sequence[GivenRun], task: Task) -> None:
    """Raise an error where runs cannot be shown side by side.

    Raises:
        UsageError: too many runs, or a folder of another task.
        DataError: a folder without a configuration, or a run with a stance that the task does not have.
    """
    if not 2 <= len(runs) <= len(LETTERS):
        raise UsageError(f"{len(runs)} runs do not fit side by side; name 2 to {len(LETTERS)}")
    for each in runs:
        for (topic, document), stance in each.run.stances.items():
            if stance not in task.stances:
                raise DataError(
                    f"{each.name}: topic {topic}, document {document}: stance {stance!r:.40} is none of "
                    f"{', '.join(task.stances)}; give the task of this run, or leave it out"
                )
        if each.folder is None:
            continue
        if not (each.folder / CONFIG).is_file():
            raise DataError(
                f"{each.folder}: no {CONFIG} in this folder, so nothing is known of the run but its ranking; name "
                "its run file"
            )
        if (own := config_of(each.folder).task) != task.name:
            raise UsageError(f"{each.folder}: a run of the task {own}, not of {task.name}; leave it out")


def gather_runs(
    runs: Sequence[GivenRun],
    task: Task,
    qrels: Qrels,
    judged_by: Mapping[str, Path],
    evaluations: Sequence[Evaluation],
    differences: DataFrame,
    remarks: Sequence[str],
    top: int,
) -> SideBySide:
    """What the page of several runs shows.

    Args:
        runs: in the order of their letters, as `check_runs` takes them.
        task: of all runs.
        qrels: judgments of people.
        judged_by: the files of these.
        evaluations: of each run.
        differences: of `measures.compare_runs`, to one of the runs.
        remarks: what that says of them.
        top: of each run so many documents of each topic are shown.

    Raises:
        DataError: a folder whose files are not as the program wrote them, or whose corpus lacks its documents.
    """
    with ExitStack() as stack:
        folders = [None if each.folder is None else stack.enter_context(open_folder(each.folder)) for each in runs]
        for folder in folders:
            if folder is not None:
                folder.check_documents(ranking[:top] for ranking in folder.run.rankings.values())
        settings = [None if folder is None else run_settings(folder.config) for folder in folders]
        sides = [
            _side(letter, each, folder, task, qrels, _own(values, settings))
            for letter, each, folder, values in zip(LETTERS, runs, folders, settings, strict=False)
        ]
        ids = list(dict.fromkeys(topic for each in runs for topic in each.run.rankings))
        topics = [_topic(each, runs, folders, qrels, top) for each in ids]
        baseline = differences["baseline"].iloc[0]
        return SideBySide(
            task=task.title,
            judged_by=judged_by,
            grades=task.question.grades,
            labels=task.stances,
            before=task.before_judging,
            sides=sides,
            baseline=next(side.letter for side in sides if side.name == baseline),
            measures=compared(evaluations, differences),
            people=people_labels(qrels),
            topics=topics,
            top=top,
            coverage=coverage_lines(evaluations),
            notes=[*notes_of(evaluations), *remarks, *_notes(sides, folders, topics)],
        )


def _own(values: Mapping[str, Any] | None, settings: Sequence[Mapping[str, Any] | None]) -> str:
    """The settings of a run that are not those of all runs, in words; empty for a run file, which has none."""
    if values is None:
        return ""
    known = [each for each in settings if each is not None]
    names = dict.fromkeys(name for each in known for name in each)
    differ = [name for name in names if any(each.get(name) != known[0].get(name) for each in known)]
    return ", ".join(f"{name} {values.get(name)}" for name in differ)


def _side(letter: str, given: GivenRun, folder: RunFolder | None, task: Task, qrels: Qrels, settings: str) -> Side:
    if folder is None:
        lines = sum(map(len, given.run.rankings.values()))
        facts = {"given as": "a run file", "topics": f"{len(given.run.rankings):,}", "lines": f"{lines:,}"}
        failures, costs = None, None
    else:
        facts = facts_of(folder.config, task, folder.stages, given.run)
        del facts["task"]
        if settings:
            facts["settings of its own"] = settings
        failures = Counter((each.kind, name) for name, of_file in folder.failures.items() for each in of_file)
        costs = {name: cost_of(stage) for name, stage in folder.stages.items()}
    return Side(letter, given.name, facts, label_sets(given.run), *confusion_of(given.run, qrels), failures, costs)


def _topic(
    topic_id: str, runs: Sequence[GivenRun], folders: Sequence[RunFolder | None], qrels: Qrels, top: int
) -> SharedTopic:
    rankings = [each.run.rankings.get(topic_id, []) for each in runs]
    shown = {each.document_id for ranking in rankings for each in ranking[:top]}
    places = [
        _places(topic_id, given, folder, [each for each in ranking if each.document_id in shown], top)
        for given, folder, ranking in zip(runs, folders, rankings, strict=True)
    ]
    ranks = {document: [of_run[document].rank for of_run in places if document in of_run] for document in shown}
    ordered = sorted(shown, key=lambda document: (min(ranks[document]), sum(ranks[document]), document))
    texts: dict[str, str] = {}
    for folder in folders:
        if folder is not None:
            texts |= folder.texts(topic_id, [each for each in ordered if each not in texts])
    documents = []
    for document in ordered:
        found = [of_run.get(document) for of_run in places]
        labels = {place.stance for place in found if place is not None and place.stance}
        at_top = [place is not None and place.rank <= _FIRST for place, of in zip(found, rankings, strict=True) if of]
        documents.append(
            SharedDocument(
                document,
                texts.get(document),
                people_of(qrels, topic_id, document),
                found,
                stances_differ=len(labels) > 1,
                top_differs=any(at_top) and not all(at_top),
            )
        )
    known = {
        letter: folder.topics[topic_id]
        for letter, folder in zip(LETTERS, folders, strict=False)
        if folder is not None and topic_id in folder.topics
    }
    objects: dict[tuple[str, str], list[str]] = {}
    for letter, topic in known.items():
        if topic.objects is not None:
            objects.setdefault(topic.objects, []).append(letter)
    topic = next(iter(known.values()), Topic(topic_id, ""))
    return SharedTopic(topic, {tuple(letters): pair for pair, letters in objects.items()}, documents)


def _places(
    topic_id: str, given: GivenRun, folder: RunFolder | None, shown: Sequence[Candidate], top: int
) -> dict[str, Place]:
    """The places in one run of those of its documents that are shown."""
    rows = {} if folder is None else {row.document_id: row for row in folder.rows(topic_id, None)}
    places = {}
    for each in shown:
        row = rows.get(each.document_id)
        details = None
        if folder is not None and row is not None and each.rank <= top:
            details = folder.document(topic_id, row)
        stance = given.run.stances.get((topic_id, each.document_id), "")
        places[each.document_id] = Place(each.rank, stance, row, details)
    return places


def _notes(sides: Sequence[Side], folders: Sequence[RunFolder | None], topics: Sequence[SharedTopic]) -> Iterator[str]:
    """What people should know of what is shown of the runs."""
    bare = [side.letter for side, folder in zip(sides, folders, strict=True) if folder is None]
    if bare:
        yield (
            f"{', '.join(bare)}: only a run file, which has ranks and stances, but not what a model said, what failed "
            "and what it cost."
        )
    told: dict[str, list[str]] = {}
    for side, folder in zip(sides, folders, strict=True):
        for note in [] if folder is None else folder.told():
            told.setdefault(note, []).append(side.letter)
    for note, letters in told.items():
        yield f"{', '.join(letters)}: {note}"
    for side, of in zip(sides, folders, strict=True):
        missing = [] if of is None else [topic for topic in of.topics if topic not in of.run.rankings]
        if missing:
            yield f"{side.letter}: topics without a line in the run: {', '.join(missing)}."
    documents = [document for topic in topics for document in topic.documents]
    if without := sum(document.text is None for document in documents):
        yield f"Documents without a text, since no corpus at hand holds them: {without:,} of {len(documents):,}."
    if untitled := [topic.topic.id for topic in topics if not topic.topic.title]:
        yield f"Topics without a title, since no folder has them: {', '.join(untitled)}."
