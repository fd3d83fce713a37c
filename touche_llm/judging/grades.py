"""The grades of a judgment as one number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from touche_llm.data.records import HIGHEST_GRADE
from touche_llm.tasks.base import FIRST_STAGE


class GradedDocument(Protocol):
    """A judgment, or what the ranking needs of it."""

    @property
    def grades(self) -> Mapping[str, float]:
        """By name, from 0 to 3."""
        ...

    @property
    def source(self) -> str:
        """See Judgment."""
        ...


def combine_grades(judgment: GradedDocument, weights: Mapping[str, float], first_stage: float | None = None) -> float:
    """The weighted mean of a judgment's grades/3 and, if given, of the first-stage score, all between 0 and 1.

    It is 0 where all that the judgment has weighs nothing.
    """
    parts = {name: grade / HIGHEST_GRADE for name, grade in judgment.grades.items()}
    if first_stage is not None:
        parts[FIRST_STAGE] = first_stage
    total = sum(weights[name] for name in parts)
    return sum(weights[name] * value for name, value in parts.items()) / total if total else 0.0
