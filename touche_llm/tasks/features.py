"""Features of tasks that need code: objects of a question, excerpts of long pages, pairs of sentences."""

from __future__ import annotations

from typing import Literal

from pydantic import create_model, model_validator

from touche_llm.data.records import Document, Topic
from touche_llm.errors import DataError
from touche_llm.llm.answers import AnswerModel
from touche_llm.tasks.base import RenderedDocument
from touche_llm.text.analysis import Analyzer
from touche_llm.text.passages import rank_passages

# The longest title of the three editions has 17 words. Each span of words becomes a label of the schema.
_MAX_TITLE_WORDS = 40
_MAX_OBJECT_WORDS = 5
_PUNCTUATION = " \t.,;:?!\"'()[]{}“”‘’„…"
OBJECT_VARIABLES = {"first": False, "second": False}
SENTENCE_VARIABLES = {"conclusion": False, "side": False}
# Shared by all pages, since it caches stems.
_ANALYZER = Analyzer()


class _Objects(AnswerModel):
    first: str
    second: str

    @model_validator(mode="after")
    def _differ(self) -> _Objects:
        first, second = (f" {' '.join(name.casefold().split())} " for name in (self.first, self.second))
        if first in second or second in first:
            raise ValueError(f"{self.first!r} and {self.second!r} are not two objects: one contains the other")
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
    return RenderedDocument(f"Conclusion: {document.title or '(none)'}\nPremises{side}: {document.text or '(none)'}")


def render_sentence(topic: Topic, document: Document) -> RenderedDocument:
    """Render a sentence with the conclusion and the side of its argument."""
    return RenderedDocument(document.text, {"conclusion": document.title, "side": document.side})
