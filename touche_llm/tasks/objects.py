"""Objects of topics, found among the words of a title."""

from __future__ import annotations

from typing import Literal

from pydantic import create_model, model_validator

from touche_llm.data.records import Topic
from touche_llm.errors import DataError
from touche_llm.llm.answer_schema import AnswerModel

# The longest title of the three editions has 17 words. Each span of words becomes a label of the
# schema.
_MAX_TITLE_WORDS = 40
_MAX_OBJECT_WORDS = 5
_PUNCTUATION = " \t.,;:?!\"'()[]{}“”‘’„…"


class _Objects(AnswerModel):
    first: str
    second: str

    @model_validator(mode="after")
    def _differ(self) -> _Objects:
        """Raise ValueError if one object contains the other, in whole words."""
        first = _pad_words(self.first)
        second = _pad_words(self.second)
        if first in second or second in first:
            raise ValueError(
                f"{self.first!r} and {self.second!r} are not two objects: one contains the other"
            )
        return self


def _pad_words(text: str) -> str:
    """Return the words of a text in small letters, with a space before and after each."""
    words = " ".join(text.casefold().split())
    return f" {words} "


def objects_answer(topic: Topic) -> type[AnswerModel]:
    """Return the answer model for the two objects of a topic; only spans of its title are valid.

    Raises:
        DataError: The title has fewer than two words, or more than `_MAX_TITLE_WORDS`.
    """
    spans = list_title_spans(topic.title)
    word_count = len(topic.title.split())
    if len(spans) < 2 or word_count > _MAX_TITLE_WORDS:
        raise DataError(
            f"topic {topic.id}: cannot extract two objects from a title of {word_count} words; "
            "name them in <objects>"
        )
    labels = Literal[spans]  # type: ignore[valid-type]
    return create_model("Objects", __base__=_Objects, first=(labels, ...), second=(labels, ...))


def list_title_spans(title: str) -> tuple[str, ...]:
    """Return all distinct spans of one to five words of a title, without punctuation at their ends.

    They are in the order of their first words, short ones first: of `Is tea good?`, `Is`, `Is tea`,
    `Is tea good`, `tea`, `tea good`, `good`.
    """
    words = title.split()
    spans: list[str] = []
    for start in range(len(words)):
        remaining = len(words) - start
        for length in range(1, min(_MAX_OBJECT_WORDS, remaining) + 1):
            span = " ".join(words[start : start + length])
            spans.append(span.strip(_PUNCTUATION))
    return tuple(dict.fromkeys(span for span in spans if span))


def name_objects(topic: Topic) -> dict[str, str]:
    """Return the objects of a topic as variables of a template."""
    assert topic.objects is not None, "documents are judged only for topics with objects"
    first, second = topic.objects
    return {"first": first, "second": second}
