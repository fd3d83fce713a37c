"""Questions about documents: what an answer has, and how documents are rendered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from pydantic import create_model

from touche_llm.data.records import Document, Label, Reading, Topic
from touche_llm.llm.answer_schema import AnswerModel, get_labels
from touche_llm.tasks.objects import name_objects
from touche_llm.tasks.positions import combine_position
from touche_llm.text.analysis import Analyzer
from touche_llm.text.passages import RankedPassages, rank_passages

ROLES = ("CLAIM", "PREMISE", "NONE")
# Shared by all pages, since it caches stems.
_ANALYZER = Analyzer()
# How the premises of an argument relate to its conclusion, by the side in args.me.
_SIDES = {"PRO": " for the conclusion", "CON": " against the conclusion"}


@dataclass(frozen=True, slots=True)
class RenderedDocument:
    """Document as variables of a prompt template.

    Attributes:
        document: Its text, or its passages.
        variables: The other variables of the document and of its topic.
    """

    document: str | RankedPassages
    variables: Mapping[str, str] = field(default_factory=dict)


# Renders a document for a topic.
Render = Callable[[Topic, Document], RenderedDocument]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Question that a prompt puts to the model about a document.

    Attributes:
        answer: Answer model; its integer fields are grades, and a field `stance` has labels.
        render: Renders a document for a topic.
        variables: Variables of the template beside `topic` and `document`, and whether each is
            required.
        topic_variables: Returns the values of the variables that depend on the topic alone.
        position_answer: The same with the field `position`, whether the document takes one (YES or
            NO), before its `stance`, which has the other labels; None if all labels take a side.
        neutral_label: Stance of a document that takes no position, the one that `stance` of
            `position_answer` lacks; None if there is no such answer.
    """

    answer: type[AnswerModel]
    render: Render
    variables: Mapping[str, bool] = field(default_factory=dict)
    topic_variables: Callable[[Topic], Mapping[str, str]] = lambda topic: {}
    position_answer: type[AnswerModel] | None = None
    neutral_label: str | None = None

    @property
    def template_variables(self) -> dict[str, bool]:
        """All variables of the template, and whether each is required."""
        return {"topic": True, **self.variables, "document": True}

    @property
    def grades(self) -> tuple[str, ...]:
        """Fields of the answer that are grades."""
        return _list_grades(self.answer)

    def combine(self, readings: Mapping[str, Reading]) -> dict[str, Reading]:
        """Return the readings of an answer, with position and side combined into the stance.

        Args:
            readings: Readings by field, of an answer with or without a position.

        Returns:
            Readings by field of `answer`; all unchanged if the question has no neutral label or the
            answer no position.
        """
        if self.neutral_label is None or "position" not in readings:
            return dict(readings)

        stance_labels = [str(label) for label in get_labels(self.answer)["stance"]]
        combined = dict(readings)
        position = combined.pop("position")
        combined["stance"] = combine_position(
            position=position,
            side=readings["stance"],
            labels=stance_labels,
            neutral_label=self.neutral_label,
        )
        return combined


@lru_cache(maxsize=64)
def _list_grades(answer: type[AnswerModel]) -> tuple[str, ...]:
    """Return the fields of an answer whose labels are all numbers."""
    grades: list[str] = []
    for name, labels in get_labels(answer).items():
        if all(isinstance(label, int) for label in labels):
            grades.append(name)
    return tuple(grades)


def create_answer(name: str, **fields: Iterable[Label]) -> type[AnswerModel]:
    """Create an answer model with these labels by field, in their order."""
    types: dict[str, Any] = {}
    for field_name, labels in fields.items():
        types[field_name] = (Literal[tuple(labels)], ...)
    return create_model(name, __base__=AnswerModel, **types)


def render_text(topic: Topic, document: Document) -> RenderedDocument:
    """Render the whole text of a document."""
    return RenderedDocument(document.text)


def render_excerpts(topic: Topic, document: Document) -> RenderedDocument:
    """Render the passages of a long page, the best ones for the topic first to be kept."""
    return RenderedDocument(rank_passages(document.text, topic, _ANALYZER))


def render_argument(topic: Topic, document: Document) -> RenderedDocument:
    """Render an argument of args.me as one text: its conclusion, then its premises with their side."""
    side = _SIDES.get(document.side, "")
    conclusion = document.title or "(none)"
    premises = document.text or "(none)"
    return RenderedDocument(f"Conclusion: {conclusion}\nPremises{side}: {premises}")


def render_sentence(topic: Topic, document: Document) -> RenderedDocument:
    """Render a sentence with the conclusion and the side of its argument."""
    return RenderedDocument(document.text, {"conclusion": document.title, "side": document.side})


def add_objects(render: Render) -> Render:
    """Return a function that renders a document with the objects of the topic."""

    def render_with_objects(topic: Topic, document: Document) -> RenderedDocument:
        rendered = render(topic, document)
        return RenderedDocument(rendered.document, name_objects(topic))

    return render_with_objects
