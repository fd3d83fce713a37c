"""Records of the page that compares runs: built in `run_comparison.py`, rendered by `comparison_page.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from touche_llm.data.records import Topic
from touche_llm.report.records import DocumentRow, DocumentView
from touche_llm.report.run_measures import MeasureComparison, Row
from touche_llm.tasks.base import Task


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the runs.

    Attributes:
        letter: Letter of the run on the page.
        name: Name of the run on the command line.
        facts: Description of the run, by name.
        stances: Labels of the run by set of documents, as returned by `overview.collect_labels`.
        confusion: As in `MeasuredRun`.
        by_label: As in `MeasuredRun`.
        failures: Number of failed requests, by kind and file; None for a run file.
        costs: Costs by stage; None for a run file.
    """

    letter: str
    name: str
    facts: Mapping[str, str]
    stances: Mapping[str, list[str]]
    confusion: list[list[int]]
    by_label: list[Row]
    failures: Mapping[tuple[str, str], int] | None
    costs: Mapping[str, Mapping[str, float | None]] | None


@dataclass(frozen=True, slots=True)
class Placement:
    """The rank and the label of a document in one run.

    Attributes:
        rank: Rank in the run, from 1.
        stance: Stance label; empty if there is none.
        row: Row of the ranking; None for a run file.
        details: Document with the answers of the model; None for a run file, and below the top of the run.
    """

    rank: int
    stance: str
    row: DocumentRow | None
    details: DocumentView | None


@dataclass(frozen=True, slots=True)
class ComparedDocument:
    """A document at the top of some run.

    Attributes:
        document_id: Id of the document.
        text: Text, or the parts that a model saw; None if unavailable.
        people: Judgments by assessors, as returned by `overview.get_assessments`.
        places: Placements, one per run; None where the run lacks the document.
        stances_differ: Whether two runs gave it different labels.
        top_differs: Whether it is in the top 5 of some run, but not of every run with the topic.
    """

    document_id: str
    text: str | None
    people: Mapping[str, str]
    places: list[Placement | None]
    stances_differ: bool
    top_differs: bool

    @property
    def best(self) -> int:
        """Return its best rank in any run."""
        return min(place.rank for place in self.places if place is not None)


@dataclass(frozen=True, slots=True)
class ComparedTopic:
    """A topic with the top documents of all runs, ordered by their best rank.

    Attributes:
        topic: Topic; its title is empty if no run folder has it.
        objects: Compared objects, named in the topic or extracted by the model, by the letters of the runs.
        documents: Documents at the top of some run.
    """

    topic: Topic
    objects: Mapping[tuple[str, ...], tuple[str, str]]
    documents: list[ComparedDocument]


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Everything on the page.

    Attributes:
        task: Task of all runs.
        judged_by: Files of the qrels, by aspect.
        sides: Runs.
        baseline: Letter of the baseline.
        measures: All measures.
        assessor_labels: Stances by assessors.
        topics: Topics in the order of the runs.
        top: Number of documents per topic and run.
        coverage: Number of evaluated topics out of the judged ones, a line for each aspect.
        notes: Limitations of the runs and of this page.
    """

    task: Task
    judged_by: Mapping[str, Path]
    sides: list[ComparedRun]
    baseline: str
    measures: list[MeasureComparison]
    assessor_labels: list[str]
    topics: list[ComparedTopic]
    top: int
    coverage: list[str]
    notes: list[str]
