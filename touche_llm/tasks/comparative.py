"""Touché 2022 task 2: passages for comparative questions."""

from __future__ import annotations

from typing import Literal

from pydantic import create_model, model_validator

from touche_llm.corpus.json_lines import read_collection
from touche_llm.data.records import Document, Topic
from touche_llm.errors import DataError
from touche_llm.llm.answers import AnswerModel
from touche_llm.tasks.base import FIRST_STAGE, Question, RenderedDocument, Task

# The longest title of the three editions has 17 words. Each span of words becomes a label of the schema.
_MAX_TITLE_WORDS = 40
_MAX_OBJECT_WORDS = 5
_PUNCTUATION = " \t.,;:?!\"'()[]{}“”‘’„…"


class ComparativeJudgment(AnswerModel):
    """Relevance, rhetorical quality and stance of one passage."""

    relevance: Literal[0, 1, 2, 3]
    quality: Literal[0, 1, 2, 3]
    stance: Literal["FIRST", "SECOND", "NEUTRAL", "NO"]


class ComparativeStance(AnswerModel):
    """Stance of a passage, in two steps."""

    position: Literal["YES", "NO"]
    stance: Literal["FIRST", "SECOND", "NEUTRAL"]


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


def _name_objects(topic: Topic) -> dict[str, str]:
    assert topic.objects is not None
    first, second = topic.objects
    return {"first": first, "second": second}


def _render(topic: Topic, document: Document) -> RenderedDocument:
    return RenderedDocument(document.text, _name_objects(topic))


_VARIABLES = {"first": False, "second": False}

COMPARATIVE = Task(
    name="comparative",
    title="Touché 2022 task 2, argument retrieval for comparative questions",
    stances=("FIRST", "SECOND", "NEUTRAL", "NO"),
    unknown_stance="NO",
    min_per_topic=0,
    max_per_topic=1000,
    corpus_files=("passages.jsonl", "passages.jsonl.gz"),
    read_corpus=read_collection,
    question=Question(ComparativeJudgment, _render, _VARIABLES, _name_objects),
    # Half the weight on quality: the organisers judge both, and a run is ranked once. The first stage only breaks ties.
    objectives={
        "relevance": {"relevance": 1.0, "quality": 0.0, FIRST_STAGE: 0.05},
        "quality": {"relevance": 0.25, "quality": 1.0, FIRST_STAGE: 0.05},
        "both": {"relevance": 1.0, "quality": 0.5, FIRST_STAGE: 0.05},
    },
    objects_answer=objects_answer,
    no_stances=("NO", "NEUTRAL"),
    stance_question=Question(ComparativeStance, _render, _VARIABLES),
    swapped_stances={"FIRST": "SECOND", "SECOND": "FIRST"},
)
