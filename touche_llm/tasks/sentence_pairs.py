"""Touché 2022 task 1: pairs of sentences from args.me for controversial questions."""

from __future__ import annotations

from typing import Literal

from touche_llm.corpus.args_me import read_arguments
from touche_llm.data.records import Document, Topic
from touche_llm.llm.answers import AnswerModel
from touche_llm.tasks.base import FIRST_STAGE, Question, RenderedDocument, Task


class SentenceJudgment(AnswerModel):
    """Argumentative role, relevance, quality and side of a sentence."""

    role: Literal["CLAIM", "PREMISE", "NONE"]
    relevance: Literal[0, 1, 2, 3]
    quality: Literal[0, 1, 2, 3]
    stance: Literal["PRO", "CON", "NONE"]


class PairJudgment(AnswerModel):
    """Relevance, quality, coherence and side of two sentences, read in order."""

    relevance: Literal[0, 1, 2, 3]
    quality: Literal[0, 1, 2, 3]
    coherence: Literal[0, 1, 2, 3]
    stance: Literal["PRO", "CON"]


def _render_pair(topic: Topic, document: Document) -> RenderedDocument:
    return RenderedDocument(document.text)


def _render_sentence(topic: Topic, document: Document) -> RenderedDocument:
    return RenderedDocument(document.text, {"conclusion": document.title, "side": document.side})


SENTENCE_PAIRS = Task(
    name="sentence_pairs",
    title="Touché 2022 task 1, argument retrieval for controversial questions",
    stances=("PRO", "CON"),
    unknown_stance=None,
    min_per_topic=100,
    max_per_topic=1000,
    corpus_files=(
        "args_processed_04_01.csv",
        "args_processed_04_01.csv.gz",
        "args_processed_04_01.tar.gz",
        "args_processed.csv",
        "args_processed.csv.gz",
    ),
    read_corpus=read_arguments,
    question=Question(PairJudgment, _render_pair),
    objectives={
        "relevance": {"relevance": 1.0, "quality": 0.0, "coherence": 0.0, FIRST_STAGE: 0.05},
        "quality": {"relevance": 0.25, "quality": 1.0, "coherence": 1.0, FIRST_STAGE: 0.05},
        "both": {"relevance": 1.0, "quality": 0.5, "coherence": 0.5, FIRST_STAGE: 0.05},
    },
    sentence_question=Question(SentenceJudgment, _render_sentence, {"conclusion": False, "side": False}),
)
