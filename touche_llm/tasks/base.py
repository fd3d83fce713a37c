"""What a task is: everything in which the shared tasks differ, in one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from touche_llm.corpus.store import Reader
from touche_llm.data.records import Document, Topic
from touche_llm.llm.answers import AnswerModel, labels_of
from touche_llm.text.passages import RankedPassages

# The weight of the first stage's score, beside those of the grades.
FIRST_STAGE = "first_stage"
# What a run is ranked for.
Aim = Literal["relevance", "quality", "both"]


@dataclass(frozen=True, slots=True)
class RenderedDocument:
    """What a prompt shows of a document: its text, and the template's other variables."""

    document: str | RankedPassages
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a document.

    Attributes:
        answer: the answer model; its fields of integers are grades, `stance` is one of its fields.
        variables: what the template may use beside `topic` and `document`, and must: {name: whether it must}.
        render: what of a document is shown for a topic.
        topic_variables: the values of those variables that depend on the topic alone.
    """

    answer: type[AnswerModel]
    render: Callable[[Topic, Document], RenderedDocument]
    variables: Mapping[str, bool] = field(default_factory=dict)
    topic_variables: Callable[[Topic], Mapping[str, Any]] = lambda topic: {}

    @property
    def template_variables(self) -> dict[str, bool]:
        """All variables of the template, and whether it must use them."""
        return {"topic": True, **self.variables, "document": True}

    @property
    def grades(self) -> tuple[str, ...]:
        """The fields of the answer that are grades."""
        return _grades_of(self.answer)


@lru_cache(maxsize=64)
def _grades_of(answer: type[AnswerModel]) -> tuple[str, ...]:
    return tuple(name for name, labels in labels_of(answer).items() if all(isinstance(each, int) for each in labels))


@dataclass(frozen=True, slots=True)
class Task:
    """A shared task.

    Attributes:
        name: as the command line spells it; also the folder of its prompts.
        title: for people.
        stances: the labels that a run may carry, in order of declaration.
        unknown_stance: the label that a document without a usable answer gets, counted as imputed; None where the task
            has no such label: the document is left out then.
        min_per_topic: the shortest ranking that the organisers want.
        max_per_topic: the longest ranking that the organisers take.
        corpus_files: names of the files under which the organisers publish the corpus.
        read_corpus: streaming reader of the corpus.
        question: what the judge prompt asks about a document.
        aims: for each aim the default weights of the ranking: of each grade and of the first stage.
        objects_answer: for a topic without objects, the answer model that asks for them (`first`, `second`); None
            where topics have no objects.
        sentence_question: where the documents are pairs of sentences, what is asked about a sentence; else None.
        no_stances: the labels that take no side, in the order in which they are ruled out.
        stance_question: what the stance prompt asks: whether the document takes a `position` (YES or NO, which is the
            first of `no_stances`), and which `stance` it takes of the other labels; None where every document has a
            side.
        swapped_stances: the labels that change places when the two objects do.
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
    aims: Mapping[Aim, Mapping[str, float]]
    objects_answer: Callable[[Topic], type[AnswerModel]] | None = None
    sentence_question: Question | None = None
    no_stances: tuple[str, ...] = ()
    stance_question: Question | None = None
    swapped_stances: Mapping[str, str] = field(default_factory=dict)

    @property
    def weights(self) -> Mapping[str, float]:
        """The default weights of a run that has no special aim."""
        return self.aims["both"]

    @property
    def sides(self) -> tuple[str, ...]:
        """The labels that take a side."""
        return tuple(label for label in self.stances if label not in self.no_stances)

    @property
    def before_judging(self) -> str:
        """What `candidates.run.txt` holds: pairs are made of sentences that were judged, so they are no first stage."""
        return "first stage" if self.sentence_question is None else "pairs before they are judged"

    @property
    def weight_names(self) -> tuple[str, ...]:
        """What a document's score can be made of."""
        return (*self.question.grades, FIRST_STAGE)
