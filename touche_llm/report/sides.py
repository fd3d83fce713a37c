"""What a page about several runs shows, as records; made by `side_by_side.py`, drawn by `side_by_side.html.jinja`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from touche_llm.data.records import Topic
from touche_llm.report.compared import ComparedMeasure
from touche_llm.report.measured import LabelScores
from touche_llm.report.records import DocumentView, Row


@dataclass(frozen=True, slots=True)
class Side:
    """One of the runs.

    Attributes:
        letter: that it has on the page.
        name: as it was given.
        facts: what it is, by name.
        stances: by set of its documents, the labels that it gave; see `overview.label_sets`.
        confusion: see `Measured`.
        labels: see `Measured`.
        failures: questions without a usable answer, by kind and file; None for a run file, which does not tell.
        costs: by stage; None for a run file.
    """

    letter: str
    name: str
    facts: Mapping[str, str]
    stances: Mapping[str, list[str]]
    confusion: list[list[int]]
    labels: list[LabelScores]
    failures: Mapping[tuple[str, str], int] | None
    costs: Mapping[str, Mapping[str, float | None]] | None


@dataclass(frozen=True, slots=True)
class Place:
    """A document's place in one run.

    Attributes:
        rank: in the run, from 1.
        stance: its label; empty where it has none.
        row: what a folder knows of the line; None for a run file.
        details: what the model said; None for a run file, and for documents that are not at the run's own top.
    """

    rank: int
    stance: str
    row: Row | None
    details: DocumentView | None


@dataclass(frozen=True, slots=True)
class SharedDocument:
    """A document at the top of some run.

    Attributes:
        document_id: its id.
        text: or the parts of it that a model saw; None where it is not at hand.
        people: what people said, see `overview.people_of`.
        places: in each run, in their order; None where the run lacks it.
        stances_differ: whether two runs gave it different labels.
        top_differs: whether it is among the first five of some run, but not of every run that has the topic.
    """

    document_id: str
    text: str | None
    people: Mapping[str, str]
    places: list[Place | None]
    stances_differ: bool
    top_differs: bool

    @property
    def best(self) -> int:
        """Its best rank in any run."""
        return min(place.rank for place in self.places if place is not None)


@dataclass(frozen=True, slots=True)
class SharedTopic:
    """A topic with the documents at the top of any run, that with the best rank in any run first.

    Attributes:
        topic: without a title where no folder has it.
        objects: that the model found, or the topic names, by the letters of the runs that have these.
        documents: at the top of some run.
    """

    topic: Topic
    objects: Mapping[tuple[str, ...], tuple[str, str]]
    documents: list[SharedDocument]


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Everything on the page.

    Attributes:
        task: its title.
        judged_by: the files of the judgments, by aspect.
        grades: the names of the grades that models give.
        labels: the task's stances.
        before: what their candidates are, see `Task.before_judging`.
        sides: the runs.
        baseline: the letter of the one that the others are held against.
        measures: all of them.
        people: the labels that people gave.
        topics: in the order of the runs.
        top: of each run so many documents of each topic are here.
        coverage: How many of the judged topics the figures of each aspect are over.
        notes: what people should know.
    """

    task: str
    judged_by: Mapping[str, Path]
    grades: tuple[str, ...]
    labels: tuple[str, ...]
    before: str
    sides: list[Side]
    baseline: str
    measures: list[ComparedMeasure]
    people: list[str]
    topics: list[SharedTopic]
    top: int
    coverage: list[str]
    notes: list[str]
