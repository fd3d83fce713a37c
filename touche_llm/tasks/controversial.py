"""Touché 2023 task 1: web documents for controversial questions."""

from __future__ import annotations

from typing import Literal

from touche_llm.corpus.json_lines import read_collection
from touche_llm.data.records import Document, Topic
from touche_llm.llm.answers import AnswerModel
from touche_llm.tasks.base import FIRST_STAGE, Question, RenderedDocument, Task
from touche_llm.text.analysis import Analyzer
from touche_llm.text.passages import rank_passages


class ControversialJudgment(AnswerModel):
    """Relevance, rhetorical quality and stance of one web document."""

    relevance: Literal[0, 1, 2, 3]
    quality: Literal[0, 1, 2, 3]
    stance: Literal["PRO", "CON", "NEU", "NO"]


class ControversialStance(AnswerModel):
    """Stance of a web document, in two steps."""

    position: Literal["YES", "NO"]
    stance: Literal["PRO", "CON", "NEU"]


# Shared by all pages, since it caches stems.
_ANALYZER = Analyzer()


def _render(topic: Topic, document: Document) -> RenderedDocument:
    return RenderedDocument(rank_passages(document.text, topic, _ANALYZER))


CONTROVERSIAL = Task(
    name="controversial",
    title="Touché 2023 task 1, argument retrieval for controversial questions",
    stances=("PRO", "CON", "NEU", "NO"),
    unknown_stance="NO",
    min_per_topic=0,
    max_per_topic=1000,
    corpus_files=(),
    read_corpus=read_collection,
    question=Question(ControversialJudgment, _render),
    objectives={
        "relevance": {"relevance": 1.0, "quality": 0.0, FIRST_STAGE: 0.05},
        "quality": {"relevance": 0.25, "quality": 1.0, FIRST_STAGE: 0.05},
        "both": {"relevance": 1.0, "quality": 0.5, FIRST_STAGE: 0.05},
    },
    no_stances=("NO", "NEU"),
    stance_question=Question(ControversialStance, _render),
)
