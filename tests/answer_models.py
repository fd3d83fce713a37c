"""Answer models of the project's own tasks, written out for tests of single answers."""

from __future__ import annotations

from typing import Literal

from touche_llm.llm.answers import AnswerModel


class ComparativeJudgment(AnswerModel):
    relevance: Literal[0, 1, 2, 3]
    quality: Literal[0, 1, 2, 3]
    stance: Literal["FIRST", "SECOND", "NEUTRAL", "NO"]


class ControversialJudgment(AnswerModel):
    relevance: Literal[0, 1, 2, 3]
    quality: Literal[0, 1, 2, 3]
    stance: Literal["PRO", "CON", "NEU", "NO"]


class SentenceJudgment(AnswerModel):
    role: Literal["CLAIM", "PREMISE", "NONE"]
    relevance: Literal[0, 1, 2, 3]
    quality: Literal[0, 1, 2, 3]
    stance: Literal["PRO", "CON", "NONE"]


class PairJudgment(AnswerModel):
    relevance: Literal[0, 1, 2, 3]
    quality: Literal[0, 1, 2, 3]
    coherence: Literal[0, 1, 2, 3]
    stance: Literal["PRO", "CON"]
