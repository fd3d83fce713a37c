"""Questions to the model: what it answers, how documents are rendered for it, and what features of tasks add."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from pydantic import create_model, model_validator

from touche_llm.data.records import Document, Topic
from touche_llm.errors import DataError
from touche_llm.llm.answer_schema import AnswerModel, get_labels
from touche_llm.text.analysis import Analyzer
from touche_llm.text.passages import RankedPassages, rank_passages

ROLES = ("CLAIM", "PREMISE", "NONE")
# The longest title of the three editions has 17 words. Each span of words becomes a label of the
# schema.
_MAX_TITLE_WORDS = 40
_MAX_OBJECT_WORDS = 5
_PUNCTUATION = " \t.,;:?!\"'()[]{}“”‘’„…"
# Shared by all pages, since it caches stems.
_ANALYZER = Analyzer()


@dataclass(frozen=True, slots=True)
class RenderedDocument:
    """Document as variables of a prompt template: its text or passages, and the other variables."""

    document: str | RankedPassages
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """Question that a prompt puts to the model about a document.

    Attributes:
        answer: Answer model; its integer fields are grades, and a field `stance` has labels.
        position_answer: The same with the field `position`, whether the document takes one (YES or
            NO), before its `stance`, which has the other labels; None if all labels take a side.
        variables: Variables of the template beside `topic` and `document`, and whether each is
            required.
        render: Renders a document for a topic.
        topic_variables: Returns the values of the variables that depend on the topic alone.
    """

    answer: type[AnswerModel]
    render: Callable[[Topic, Document], RenderedDocument]
    variables: Mapping[str, bool] = field(default_factory=dict)
    topic_variables: Callable[[Topic], Mapping[str, Any]] = lambda topic: {}
    position_answer: type[AnswerModel] | None = None

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
    return tuple(
        name
        for name, labels in get_labels(answer).items()
        if all(isinstance(label, int) for label in labels)
    )


def create_answer(name: str, **fields: Iterable[int | str]) -> type[AnswerModel]:
    """Create an answer model with these labels by field, in their order."""
    types: dict[str, Any] = {
        field: (Literal[tuple(labels)], ...) for field, labels in fields.items()
    }
    return create_model(name, __base__=AnswerModel, **types)


class _Objects(AnswerModel):
    first: str
    second: str

    @model_validator(mode="after")
    def _differ(self) -> _Objects:
        first, second = (
            f" {' '.join(name.casefold().split())} " for name in (self.first, self.second)
        )
        if first in second or second in first:
            raise ValueError(
                f"{self.first!r} and {self.second!r} are not two objects: one contains the other"
            )
        return self


def objects_answer(topic: Topic) -> type[AnswerModel]:
    """Return the answer model for the two objects of a topic; only spans of its title are valid.

    Raises:
        DataError: The title has fewer than two words, or more than `_MAX_TITLE_WORDS`.
    """
    spans = list_title_spans(topic.title)
    if len(spans) < 2 or len(topic.title.split()) > _MAX_TITLE_WORDS:
        raise DataError(
            f"topic {topic.id}: cannot extract two objects from a title of {len(topic.title.split())} words; "
            "name them in <objects>"
        )
    labels = Literal[spans]  # type: ignore[valid-type]
    return create_model("Objects", __base__=_Objects, first=(labels, ...), second=(labels, ...))


def list_title_spans(title: str) -> tuple[str, ...]:
    """Return all distinct spans of one to five words of a title, without punctuation at their ends."""
    words = title.split()
    spans = (
        " ".join(words[start : start + length]).strip(_PUNCTUATION)
        for start in range(len(words))
        for length in range(1, min(_MAX_OBJECT_WORDS, len(words) - start) + 1)
    )
    return tuple(dict.fromkeys(span for span in spans if span))


def name_objects(topic: Topic) -> dict[str, str]:
    """Return the objects of a topic as variables of a template."""
    assert topic.objects is not None
    first, second = topic.objects
    return {"first": first, "second": second}


def render_text(topic: Topic, document: Document) -> RenderedDocument:
    """Render the whole text of a document."""
    return RenderedDocument(document.text)


def render_excerpts(topic: Topic, document: Document) -> RenderedDocument:
    """Render the passages of a long page, the best ones for the topic first to be kept."""
    return RenderedDocument(rank_passages(document.text, topic, _ANALYZER))


def render_argument(topic: Topic, document: Document) -> RenderedDocument:
    """Render an argument of args.me as one text: its conclusion, then its premises with their side."""
    side = {"PRO": " for the conclusion", "CON": " against the conclusion"}.get(document.side, "")
    return RenderedDocument(
        f"Conclusion: {document.title or '(none)'}\nPremises{side}: {document.text or '(none)'}"
    )


def render_sentence(topic: Topic, document: Document) -> RenderedDocument:
    """Render a sentence with the conclusion and the side of its argument."""
    return RenderedDocument(document.text, {"conclusion": document.title, "side": document.side})


def add_objects(
    render: Callable[[Topic, Document], RenderedDocument],
) -> Callable[[Topic, Document], RenderedDocument]:
    """Return a function that renders a document with the objects of the topic."""
    return lambda topic, document: RenderedDocument(
        render(topic, document).document, name_objects(topic)
    )
