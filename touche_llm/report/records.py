"""What a report shows, as records; made by `data.py`, drawn by `figures.py` and `page.html.jinja`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from touche_llm.data.records import Failure, Topic
from touche_llm.report.measured import Measured
from touche_llm.report.sources import RenderedPrompt


@dataclass(frozen=True, slots=True)
class Said:
    """What the model said in one field of its answer: a share for each label, and what lay outside of the labels."""

    field: str
    shares: Mapping[str, float]
    outside: float | None = None


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """The text that came back to one prompt; None where the cache does not hold it."""

    prompt: str
    text: str | None


@dataclass(frozen=True, slots=True)
class SentenceView:
    """A sentence of a pair, as it was judged by itself; title and side are those of its argument, if at hand."""

    id: str
    title: str
    side: str
    said: list[Said]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the run.

    Attributes:
        rank: in the run, from 1.
        document_id: its document.
        stance: its label.
        score: in the run.
        first: its rank in the first stage.
        judge: its rank by the judgments, where later steps could change it; else None.
        grades: expected grades, by name; empty where there is no judgment.
        source: how the grades were made, see `Judgment`; empty where there is no judgment.
        people: what people said: grades by aspect, and the stance.
    """

    rank: int
    document_id: str
    stance: str
    score: float
    first: int
    judge: int | None
    grades: Mapping[str, float]
    source: str
    people: Mapping[str, str]

    @property
    def places(self) -> list[int]:
        """Its ranks, from the first stage to the run."""
        return [self.first, *([self.judge] if self.judge is not None else []), self.rank]


@dataclass(frozen=True, slots=True)
class DocumentView:
    """A line of the run with all that is known of its document.

    Attributes:
        row: the line.
        text: the document's, or the parts of it that the model saw; None where it is not at hand.
        seen: how much of it the model saw; empty where it saw all.
        said: by field.
        compared: what came of comparing it, a line for each step.
        answers: as they came.
        failures: of questions about this document alone.
        sentences: of a pair.
    """

    row: Row
    text: str | None
    seen: str
    said: list[Said]
    compared: list[str]
    answers: list[RawAnswer]
    failures: list[Failure]
    sentences: list[SentenceView]


@dataclass(frozen=True, slots=True)
class Left:
    """A candidate that went from the top: its rank among the candidates, and in the run, if it is there."""

    document_id: str
    first: int
    rank: int | None
    people: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic with its ranking.

    Attributes:
        topic: the topic.
        shown: the documents that are shown with all that is known of them.
        listed: further lines, without texts.
        more: how many more lines there are.
        left: what stood among the first 5 candidates and is not among the shown.
        prompts: as its documents were asked about.
    """

    topic: Topic
    shown: list[DocumentView]
    listed: list[Row]
    more: int
    left: list[Left]
    prompts: list[RenderedPrompt]


@dataclass(frozen=True, slots=True)
class StageCost:
    """What a stage took, as far as the metadata says."""

    name: str
    figures: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything on the page.

    Attributes:
        name: of the run's folder.
        facts: what the run is, by name.
        grades: the names of the grades that the model gives.
        labels: the task's stances.
        topics: in the order of the run.
        before: what the candidates are, see `Task.before_judging`.
        moved: by way to the run (`candidates`, `judge`) and group of final ranks, how many of its documents came from
            each band of ranks, see `BANDS`; and under `run`, by group of ranks among the candidates, how many went to
            each band.
        stances: by set of documents, the share of each label.
        measured: None without judgments of people.
        costs: by stage.
        failures: all of them, by file.
        notes: what people should know.
    """

    name: str
    facts: Mapping[str, str]
    grades: tuple[str, ...]
    labels: tuple[str, ...]
    topics: list[TopicView]
    before: str
    moved: Mapping[str, Mapping[str, list[int]]]
    stances: Mapping[str, Mapping[str, float]]
    measured: Measured | None
    costs: list[StageCost]
    failures: Mapping[str, list[Failure]]
    notes: list[str]
