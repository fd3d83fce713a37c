"""The page that compares several runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar

from touche_llm.config.configuration import Config, flatten, is_one_of
from touche_llm.data.measure import CUTOFF
from touche_llm.data.records import Topic
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import UsageError
from touche_llm.evaluation.comparisons import RunComparison
from touche_llm.evaluation.measures import Evaluation
from touche_llm.evaluation.qrels import format_notes
from touche_llm.regression.snapshot import DECISIVE
from touche_llm.report.measures import MeasureTable, tabulate_measures
from touche_llm.report.page import (
    LETTERS,
    Anchor,
    CostRow,
    LabelShares,
    Page,
    PlotMark,
    compute_label_shares,
    count_lines,
    describe_run,
    list_confusion,
    make_anchors,
    tabulate_costs,
)
from touche_llm.runs.inputs import INCIDENTAL
from touche_llm.runs.open_folder import RunFolder, get_assessments, open_folder
from touche_llm.runs.record import STAGES, StageName, StageRecords
from touche_llm.tasks.task import Task


@dataclass(frozen=True, slots=True)
class RunView:
    """A run of the page.

    Attributes:
        index: Index of the run on the page, which decides on its colour.
        letter: Letter that stands for the run.
        name: Name of the run.
        facts: Facts about the run, by name.
        confusion: Documents by true label (rows) and the run's label; empty without stance qrels.
        stages: Records of the finished stages; None for a run file.
    """

    index: int
    letter: str
    name: str
    facts: dict[str, str]
    confusion: list[list[int]]
    stages: StageRecords | None


@dataclass(frozen=True, slots=True)
class RankedPlace:
    """Place of a document in a run.

    Attributes:
        rank: Rank in the run.
        stance: Stance in the run; empty if it has none.
        grades: Grades by the model, by name; empty for a run file and without a judgment.
    """

    rank: int
    stance: str
    grades: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ComparedDocument:
    """A document of a topic.

    Attributes:
        document_id: Id of the document.
        text: Text; None if no available corpus has it.
        people: Judgments by assessors: grades by aspect, and the stance.
        places: Place in each run; None where the run lacks the document.
        stances_differ: Whether runs have different stances.
        top_differs: Whether it is within the cutoff of the headline measures in some run, but not
            in every run with the topic.
    """

    document_id: str
    text: str | None
    people: dict[str, str]
    places: list[RankedPlace | None]
    stances_differ: bool
    top_differs: bool


@dataclass(frozen=True, slots=True)
class ComparedTopic:
    """A topic with the first documents of each run, ordered by their best rank."""

    topic: Topic
    documents: list[ComparedDocument]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage(Page):
    """The page of several runs; the first one is the baseline.

    Attributes:
        runs: Compared runs.
        judged_by: Qrels files by aspect.
        topics: Topics of the runs.
        anchors: Anchors of the topics by id.
        marks: Mark of each run in plots.
        shared: Facts that all runs share.
        measured: Measures of the runs.
        stances: Stances of the runs and by assessors.
        top: Number of first documents of each run and topic.
        costs: Costs by stage, with a column for each run with a folder.
    """

    template: ClassVar[str] = "comparison"

    runs: list[RunView]
    judged_by: Mapping[str, Path]
    topics: list[ComparedTopic]
    anchors: dict[str, Anchor]
    marks: list[PlotMark]
    shared: dict[str, str]
    measured: MeasureTable
    stances: list[LabelShares]
    top: int
    costs: dict[StageName, list[CostRow]]

    @property
    def baseline(self) -> RunView:
        """Run that the others are compared with."""
        return self.runs[0]

    @property
    def has_folders(self) -> bool:
        """Whether a run has a folder, and thereby grades and costs."""
        return any(run.stages is not None for run in self.runs)


@dataclass(frozen=True, slots=True)
class _ComparedRun:
    """A run with its letter, its evaluation, and its open folder; None for a run file."""

    letter: str
    evaluation: Evaluation
    folder: RunFolder | None

    @property
    def parsed_run(self) -> ParsedRun:
        """The ranking."""
        return self.evaluation.run


def check_number(runs: int) -> None:
    """Raise UsageError if so many runs do not fit on one page."""
    if not 2 <= runs <= len(LETTERS):
        raise UsageError(f"{runs} runs do not fit on one page; give 2 to {len(LETTERS)}")


def gather_comparison(
    evaluations: Sequence[Evaluation],
    paths: Sequence[Path | None],
    task: Task,
    judged_by: Mapping[str, Path],
    comparison: RunComparison,
    top: int,
) -> ComparisonPage:
    """Return the page of 2 to 8 runs.

    Args:
        evaluations: Evaluations of the runs with the same qrels, the baseline first.
        paths: Folder of each run; None for a run file.
        task: Task of the runs.
        judged_by: Qrels files by aspect.
        comparison: Comparison of the other runs with the baseline.
        top: Number of first documents of each run and topic that are shown.
    """
    with ExitStack() as stack:
        runs = _open_runs(evaluations, paths, stack)
        return _make_page(runs, task, judged_by, comparison, top)


def _make_page(
    runs: Sequence[_ComparedRun],
    task: Task,
    judged_by: Mapping[str, Path],
    comparison: RunComparison,
    top: int,
) -> ComparisonPage:
    """Return the page of open runs.

    Args:
        runs: Open runs; the others are compared with the first one.
        task: Task of the runs.
        judged_by: Qrels files by aspect.
        comparison: Comparison of the runs by their measures.
        top: Number of first documents of each run and topic that are shown.
    """
    # Before the long work: raises an error if the corpus of a run lacks a document that is shown.
    for folder in _list_folders(runs):
        folder.check_documents(ranking[:top] for ranking in folder.run.rankings.values())

    views = _view_runs(runs, task)
    topics = _view_topics(runs, top)
    stages_of_folders = [view.stages for view in views if view.stages is not None]

    evaluations = [run.evaluation for run in runs]
    measured = tabulate_measures(evaluations, comparison.rows)
    notes_by_run = {evaluation.name: evaluation.notes for evaluation in evaluations}
    parsed_runs = {run.letter: run.parsed_run for run in runs}
    return ComparisonPage(
        task=task,
        notes=[
            *format_notes(notes_by_run),
            *comparison.notes,
            *measured.notes,
            *_list_run_limits(runs),
            *_note_missing_texts(topics),
        ],
        runs=views,
        judged_by=judged_by,
        topics=topics,
        anchors=make_anchors([topic.topic for topic in topics]),
        marks=_make_marks(views),
        shared=_find_shared_facts(views),
        measured=measured,
        stances=compute_label_shares(
            parsed_runs,
            evaluations[0].qrels,
            task.stances,
        ),
        top=top,
        costs=_compare_costs(stages_of_folders),
    )


def _open_runs(
    evaluations: Sequence[Evaluation], paths: Sequence[Path | None], stack: ExitStack
) -> list[_ComparedRun]:
    """Open the folders of runs, which the stack closes, and give each run its letter."""
    runs: list[_ComparedRun] = []
    for letter, evaluation, path in zip(LETTERS, evaluations, paths, strict=False):
        folder = None if path is None else stack.enter_context(open_folder(path))
        runs.append(_ComparedRun(letter, evaluation, folder))
    return runs


def _list_folders(runs: Iterable[_ComparedRun]) -> list[RunFolder]:
    """Return the folders of the runs that have one."""
    return [run.folder for run in runs if run.folder is not None]


def _view_runs(runs: Sequence[_ComparedRun], task: Task) -> list[RunView]:
    """Return the runs with their facts, among them the settings in which they differ."""
    differing = _find_differing_settings(_list_folders(runs))

    views: list[RunView] = []
    for index, run in enumerate(runs):
        if run.folder is None:
            facts = _describe_file(run.parsed_run)
            stages = None
        else:
            settings = _list_settings(run.folder.config)
            facts = _describe_folder(run.folder, task)
            facts |= {name: str(settings.get(name)) for name in differing}
            stages = run.folder.stages
        view = RunView(
            index=index,
            letter=run.letter,
            name=run.evaluation.name,
            facts=facts,
            confusion=list_confusion(run.parsed_run, run.evaluation.qrels),
            stages=stages,
        )
        views.append(view)
    return views


def _describe_file(run: ParsedRun) -> dict[str, str]:
    """Return the facts about a run file, by name."""
    return {
        "given as": "a run file",
        "topics": f"{len(run.rankings):,}",
        "lines": f"{count_lines(run):,}",
    }


def _describe_folder(folder: RunFolder, task: Task) -> dict[str, str]:
    """Return the facts about the run of a folder, by name, without the task, which all runs share."""
    facts = describe_run(folder.config, task, folder.stages, folder.run)
    del facts["task"]
    failures = sum(len(failures_in_file) for failures_in_file in folder.failures.values())
    facts["failures"] = f"{failures:,}"
    return facts


def _find_differing_settings(folders: Sequence[RunFolder]) -> list[str]:
    """Return the names of the settings in which the runs differ."""
    settings_of_runs = [_list_settings(folder.config) for folder in folders]
    names = dict.fromkeys(chain.from_iterable(settings_of_runs))

    differing: list[str] = []
    for name in names:
        values = {str(settings.get(name)) for settings in settings_of_runs}
        if len(values) > 1:
            differing.append(name)
    return differing


def _list_settings(config: Config) -> dict[str, object]:
    """Return the settings that determine a run after its first stage, by dotted name.

    Settings that do not change its outputs, such as the address of the server, are left out.
    """
    sections = config.model_dump(mode="json")
    # The name of the model, since a path to it differs from machine to machine.
    sections["engine"]["model"] = config.engine.model_name
    decisive = {name: sections[name] for name in DECISIVE if sections[name] is not None}

    settings: dict[str, object] = {}
    for name, value in flatten(decisive).items():
        if not is_one_of(name, INCIDENTAL):
            settings[name] = value
    return settings


def _find_shared_facts(runs: Sequence[RunView]) -> dict[str, str]:
    """Return the facts that all runs share, by name."""
    shared: dict[str, str] = {}
    for name, value in runs[0].facts.items():
        if all(run.facts.get(name) == value for run in runs):
            shared[name] = value
    return shared


def _make_marks(runs: Sequence[RunView]) -> list[PlotMark]:
    """Return the mark of each run in plots: its letter, in a colour of its own."""
    return [PlotMark(name=run.letter, sign=run.letter, style=f"side{run.index}") for run in runs]


def _compare_costs(runs: Sequence[StageRecords]) -> dict[StageName, list[CostRow]]:
    """Return a table of costs for each stage, with a column for each run."""
    compared: dict[StageName, list[CostRow]] = {}
    for stage in STAGES:
        records = [run.finished.get(stage) for run in runs]
        rows = tabulate_costs(records)
        if rows:
            compared[stage] = rows
    return compared


def _view_topics(runs: Sequence[_ComparedRun], top: int) -> list[ComparedTopic]:
    """Return the topics of all runs, in the order in which the runs first have them."""
    topic_ids = dict.fromkeys(topic_id for run in runs for topic_id in run.parsed_run.rankings)
    return [_view_topic(topic_id, runs, top) for topic_id in topic_ids]


def _view_topic(topic_id: str, runs: Sequence[_ComparedRun], top: int) -> ComparedTopic:
    """Return a topic with all documents that are among the first `top` of at least one run."""
    document_ids: set[str] = set()
    for run in runs:
        ranking = run.parsed_run.rankings.get(topic_id, [])
        document_ids.update(candidate.document_id for candidate in ranking[:top])

    texts = _find_texts(topic_id, runs, document_ids)
    # Lists have an item for each run, in the order of `runs`.
    places_by_run = [_find_places(topic_id, run, document_ids) for run in runs]
    has_topic = [topic_id in run.parsed_run.rankings for run in runs]
    # All runs have the same judgments.
    qrels = runs[0].evaluation.qrels

    documents: list[ComparedDocument] = []
    for document_id in document_ids:
        places = [places_of_run.get(document_id) for places_of_run in places_by_run]
        document = ComparedDocument(
            document_id=document_id,
            text=texts.get(document_id),
            people=get_assessments(qrels, topic_id, document_id),
            places=places,
            stances_differ=_have_different_stances(places),
            top_differs=_differs_in_top(places, has_topic),
        )
        documents.append(document)
    return ComparedTopic(
        topic=_find_topic(topic_id, runs),
        documents=sorted(documents, key=_rank_document),
    )


def _find_places(
    topic_id: str, compared: _ComparedRun, document_ids: set[str]
) -> dict[str, RankedPlace]:
    """Return the places of documents in the ranking of a topic by a run, by document id.

    Documents that the ranking lacks are left out.
    """
    grades: dict[str, Mapping[str, float]] = {}
    if compared.folder is not None:
        rows = compared.folder.rows(topic_id, None)
        grades = {row.document_id: row.grades for row in rows}

    places: dict[str, RankedPlace] = {}
    for candidate in compared.parsed_run.rankings.get(topic_id, []):
        document_id = candidate.document_id
        if document_id in document_ids:
            places[document_id] = RankedPlace(
                rank=candidate.rank,
                stance=compared.parsed_run.stances.get((topic_id, document_id), ""),
                grades=grades.get(document_id, {}),
            )
    return places


def _find_texts(
    topic_id: str, runs: Iterable[_ComparedRun], document_ids: set[str]
) -> dict[str, str]:
    """Return the texts of documents by id, each from the first run whose corpus has it."""
    texts: dict[str, str] = {}
    for folder in _list_folders(runs):
        missing_ids = document_ids - texts.keys()
        texts |= folder.texts(topic_id, missing_ids)
    return texts


def _find_topic(topic_id: str, runs: Iterable[_ComparedRun]) -> Topic:
    """Return a topic of the first folder that has it, with its objects.

    Run files have only its id.
    """
    for folder in _list_folders(runs):
        if topic_id in folder.topics:
            return folder.topics[topic_id]
    return Topic(topic_id, "")


def _have_different_stances(places: Sequence[RankedPlace | None]) -> bool:
    """Return whether runs give a document different stances.

    Args:
        places: Place of the document in each run; None where the run lacks it.
    """
    stances = {place.stance for place in places if place is not None and place.stance}
    return len(stances) > 1


def _differs_in_top(places: Sequence[RankedPlace | None], has_topic: Sequence[bool]) -> bool:
    """Return whether a document is among the first 5 of some runs, but not of all.

    For example, one run ranks it third, and another one tenth or not at all. Runs that lack the
    whole topic are not considered.

    Args:
        places: Place of the document in each run; None where the run lacks it.
        has_topic: Whether each run has the topic.
    """
    is_top: list[bool] = []
    for place, run_has_topic in zip(places, has_topic, strict=True):
        if run_has_topic:
            is_top.append(place is not None and place.rank <= CUTOFF)
    return any(is_top) and not all(is_top)


def _rank_document(document: ComparedDocument) -> tuple[int, int, str]:
    """Return the sort key of a document: best rank, sum of ranks, and id."""
    ranks = [place.rank for place in document.places if place is not None]
    return min(ranks), sum(ranks), document.document_id


def _list_run_limits(runs: Iterable[_ComparedRun]) -> Iterator[str]:
    """Yield what each run lacks."""
    for run in runs:
        if run.folder is None:
            lacks = (
                "Only a run file, which has ranks and stances, but no grades, failures and costs."
            )
            yield f"{run.letter}: {lacks}"
        else:
            yield from (f"{run.letter}: {note}" for note in run.folder.notes)


def _note_missing_texts(topics: Iterable[ComparedTopic]) -> Iterator[str]:
    """Yield a note if documents have no text."""
    documents = [document for topic in topics for document in topic.documents]
    missing = sum(document.text is None for document in documents)
    if missing:
        counts = f"{missing:,} of {len(documents):,}"
        yield f"Documents without text, missing in every available corpus: {counts}."
