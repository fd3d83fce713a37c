"""Definition of a task: all differences between the shared tasks, in one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from touche_llm.corpus.store import Reader
from touche_llm.data.records import Document, Topic
from touche_llm.llm.answers import AnswerModel, get_labels
from touche_llm.text.passages import RankedPassages

# Name of the weight of the first stage's score, beside those of the grades.
FIRST_STAGE = "first_stage"
# Objective of a ranking.
Objective = Literal["relevance", "quality", "both"]


@dataclass(frozen=True, slots=True)
class RenderedDocument:
    """Document as variables of a prompt template: its text or passages, and the other variables."""

    document: str | RankedPassages
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """Question that a prompt puts to the model about a document.

    Attributes:
        answer: Answer model; its integer fields are grades, one field is `stance`.
        variables: Variables of the template beside `topic` and `document`, and whether each is required.
        render: Renders a document for a topic.
        topic_variables: Returns the values of the variables that depend on the topic alone.
    """

    answer: type[AnswerModel]
    render: Callable[[Topic, Document], RenderedDocument]
    variables: Mapping[str, bool] = field(default_factory=dict)
    topic_variables: Callable[[Topic], Mapping[str, Any]] = lambda topic: {}

    @property
    def template_variables(self) -> dict[str, bool]:
        """All variables of the template, and whether each is required."""
        return {"topic": True, **self.variables, "document": True}

    @property
    def grades(self) -> tuple[str, ...]:
        """Fields of the answer that are grades."""
        return _grades_of(self.answer)


@lru_cache(maxsize=64)
def _grades_of(answer: type[AnswerModel]) -> tuple[str, ...]:
    return tuple(name for name, labels in get_labels(answer).items() if all(isinstance(label, int) for label in labels))


@dataclass(frozen=True, slots=True)
class Task:
    """Shared task.

    Attributes:
        name: Name on the command line, and of the folder of its prompts.
        title: Title for people.
        stances: Labels that a run may contain, in order of declaration.
        unknown_stance: Label of a document without usable answer, counted as imputed; None if such documents are
            omitted from the run.
        min_per_topic: Min length of a ranking, set by the organisers.
        max_per_topic: Max length of a ranking, set by the organisers.
        corpus_files: Names of the published corpus files.
        read_corpus: Streaming reader of the corpus.
        question: Question of the judge prompt about a document.
        objectives: Default weights of each grade and of the first stage, by objective.
        objects_answer: Returns the answer model with the objects (`first`, `second`) of a topic that names none; None
            if topics have no objects.
        sentence_question: Question about a sentence, if the documents are pairs of sentences; else None.
        no_stances: Labels that take no side, in the order in which they are ruled out.
        stance_question: Question of the stance prompt: whether the document takes a `position` (YES or NO, the first of
            `no_stances`), and which of the other labels is its `stance`; None if every document takes a side.
        swapped_stances: Labels that are exchanged when the two objects are.
    """

    name: str
    title: str
    stances: tuple[str, ...]
    unknown_stance: str | None
    min_per_topic: int
    max_per_topic: int
    corpus_files: tuple[str, ...]
    read_corpus: Reader
    question: Question
    objectives: Mapping[Objective, Mapping[str, float]]
    objects_answer: Callable[[Topic], type[AnswerModel]] | None = None
    sentence_question: Question | None = None
    no_stances: tuple[str, ...] = ()
    stance_question: Question | None = None
    swapped_stances: Mapping[str, str] = field(default_factory=dict)

    @property
    def weights(self) -> Mapping[str, float]:
        """Default weights of a run."""
        return self.objectives["both"]

    @property
    def sides(self) -> tuple[str, ...]:
        """Labels that take a side."""
        return tuple(label for label in self.stances if label not in self.no_stances)

    @property
    def before_judging(self) -> str:
        """Name of the content of `candidates.run.txt`: pairs consist of judged sentences, so are no first stage."""
        return "first stage" if self.sentence_question is None else "pairs before they are judged"

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Names of all weights of a document's score."""
        return (*self.question.grades, FIRST_STAGE)
