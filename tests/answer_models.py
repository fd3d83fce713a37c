"""Answer models of the project's own tasks, written out for tests of single answers, and a request for one."""

from __future__ import annotations

from typing import Any, Literal

from touche_llm.llm.answer_schema import AnswerModel, build_schema
from touche_llm.llm.request import Message, Origin, Request, Sampling


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


def judge_request(
    text: str, answer: type[AnswerModel] = ComparativeJudgment, **given: Any
) -> Request:
    """A request of the judge prompt with a text, and other fields where they are given."""
    fields: dict[str, Any] = {
        "messages": (Message("system", "Judge."), Message("user", text)),
        "schema": build_schema(answer),
        "sampling": Sampling(max_tokens=64),
        "model": "fake",
        "revision": "",
        "chat_template_kwargs": {},
        "origin": Origin("comparative/judge", 1, "0" * 12, "1", "d"),
    }
    return Request(**{**fields, **given})
