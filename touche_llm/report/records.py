"""Records of the page of a run: built in `run_report.py`, rendered by `run_page.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from touche_llm.data.records import Failure, Judgment, Reading, Topic
from touche_llm.report.run_measures import MeasuredRun
from touche_llm.tasks.base import Task


def describe_truncation(judgment: Judgment | None) -> str:
    """Describe how much of the document the model saw; empty if all."""
    if judgment is None or (cut := judgment.cut) is None:
        return ""
    return f"the model saw {cut.kept_chars:,} of {cut.of_chars:,} characters"


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """The completion of one prompt; None where the cache lacks it."""

    prompt: str
    text: str | None


@dataclass(frozen=True, slots=True)
class SentenceView:
    """The judgment of one sentence of a pair; title and side of its argument are empty without a corpus."""

    id: str
    title: str
    side: str
    readings: Mapping[str, Reading]


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """A row of the ranking.

    Attributes:
        rank: Rank in the run, from 1.
        document_id: Id of the document.
        stance: Stance label.
        score: Score in the run.
        first: Rank in the first stage.
        judge: Rank by judgment, if later steps reranked the documents; else None.
        grades: Expected grades, by name; empty without a judgment.
        source: Source of the grades, as in `Judgment`; empty without a judgment.
        people: Judgments by assessors: grades by aspect, and the stance.
        differs: Aspects in which the model differs from the assessors, grades after rounding; None unless both judged.
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
    differs: Sequence[str] | None = None

    @property
    def places(self) -> list[int]:
        """Return its ranks, from the first stage to the run."""
        return [self.first, *([self.judge] if self.judge is not None else []), self.rank]


@dataclass(frozen=True, slots=True)
class DocumentView:
    """A row of the ranking with its document and the answers of the model.

    Attributes:
        row: Row of the ranking.
        text: Text of the document, or the parts that the model saw; None if unavailable.
        truncation: How much of the document the model saw; empty if all.
        readings: Readings of the fields of its answers, with the probabilities of the labels.
        comparisons: Results of its comparisons, a line for each step.
        answers: Completions.
        failures: Failed requests about this document alone.
        sentences: Sentences of a pair.
    """

    row: DocumentRow
    text: str | None
    truncation: str
    readings: Mapping[str, Reading]
    comparisons: list[str]
    answers: list[RawAnswer]
    failures: list[Failure]
    sentences: list[SentenceView]


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt rendered for one topic.

    Each message is a role and the pieces of its text before, between and after the documents.
    """

    purpose: str
    label: str
    messages: list[tuple[str, list[str]]]


@dataclass(frozen=True, slots=True)
class DroppedCandidate:
    """A top candidate that is not among the shown documents: its first-stage rank, and its rank in the run if any."""

    document_id: str
    first: int
    rank: int | None
    people: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic with its ranking.

    Attributes:
        topic: Topic.
        documents: Top documents, shown with text and answers.
        rows: Following rows, shown without text.
        omitted: Number of rows that are not shown.
        dropped: Top 5 candidates that are not among the shown documents.
        prompts: Rendered prompts of the topic.
    """

    topic: Topic
    documents: list[DocumentView]
    rows: list[DocumentRow]
    omitted: int
    dropped: list[DroppedCandidate]
    prompts: list[RenderedPrompt]


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything on the page.

    Attributes:
        name: Name of the run folder.
        task: Task of the run.
        facts: Description of the run, by name.
        topics: Topics in the order of the run.
        movements: Under `candidates` and `judge`, by group of final ranks, the number of documents from each band of
            ranks (`BANDS`) at that stage; under `run`, by group of candidate ranks, the number of documents in each
            band of final ranks.
        stances: Share of each label, by set of documents.
        measured: Evaluation; None without qrels.
        costs: Costs by stage and name, as returned by `overview.extract_costs`.
        failures: Failed requests, by file.
        notes: Limitations of the run and of this page.
    """

    name: str
    task: Task
    facts: Mapping[str, str]
    topics: list[TopicView]
    movements: Mapping[str, Mapping[str, list[int]]]
    stances: Mapping[str, Mapping[str, float]]
    measured: MeasuredRun | None
    costs: Mapping[str, Mapping[str, float | None]]
    failures: Mapping[str, list[Failure]]
    notes: list[str]
