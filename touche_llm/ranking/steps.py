"""Steps of a ranking: `judge,pairwise:10` ranks by judgments, then the best ten by pairwise comparison.

A ranking method is a class with its settings (`RankingMethod`) and a field of `RankingSettings`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, model_validator

from touche_llm.ranking.balance import BalanceSettings
from touche_llm.ranking.comparer import ComparisonKind, RankingMethod
from touche_llm.ranking.cross_encoder import CrossEncoderSettings
from touche_llm.ranking.fusion import FusionSettings
from touche_llm.ranking.insertion import Insertion
from touche_llm.ranking.listwise import Listwise
from touche_llm.ranking.pairwise import Pairwise
from touche_llm.ranking.setwise import Setwise
from touche_llm.ranking.sliding import Sliding
from touche_llm.ranking.tournament import Tournament
from touche_llm.settings.section import AnswerKey, Section
from touche_llm.tasks.parts import FIRST_STAGE

JUDGE, FUSION, BALANCE, CROSS_ENCODER = "judge", "fusion", "balance", "cross_encoder"


class RankingSettings(Section):
    """Settings of the steps, each in its own section.

    The steps with a model are the fields that are methods.

    Attributes:
        document_tokens: Maximum number of tokens per document in a comparison; fewer if the context
            is too short.
    """

    document_tokens: Annotated[int, AnswerKey.ENTERS] = Field(512, ge=16)
    # Settings of methods decide which documents are compared, and in which orders. A comparison of
    # the same documents in the same order is the same request, whichever method sends it.
    pairwise: Annotated[Pairwise, AnswerKey.STAYS_OUT] = Pairwise()
    sliding: Annotated[Sliding, AnswerKey.STAYS_OUT] = Sliding()
    setwise: Annotated[Setwise, AnswerKey.STAYS_OUT] = Setwise()
    insertion: Annotated[Insertion, AnswerKey.STAYS_OUT] = Insertion()
    listwise: Annotated[Listwise, AnswerKey.STAYS_OUT] = Listwise()
    tournament: Annotated[Tournament, AnswerKey.STAYS_OUT] = Tournament()
    cross_encoder: CrossEncoderSettings = CrossEncoderSettings()
    fusion: Annotated[FusionSettings, AnswerKey.STAYS_OUT] = FusionSettings()
    balance: Annotated[BalanceSettings, AnswerKey.STAYS_OUT] = BalanceSettings()

    @model_validator(mode="after")
    def _check_fusion_weights(self) -> RankingSettings:
        names = (FIRST_STAGE, JUDGE, *METHODS, FUSION)
        unknown = [name for name in self.fusion.weights if name not in names]
        if unknown:
            raise ValueError(
                f"fusion.weights: {', '.join(unknown)}: no ranking of that name; known: {', '.join(names)}"
            )
        return self


METHODS: Mapping[str, type[RankingMethod]] = {
    name: method
    for name, setting in RankingSettings.model_fields.items()
    if isinstance(method := setting.annotation, type) and issubclass(method, RankingMethod)
}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the ranking: its name, and how many of the best documents it ranks (0 for `judge`: all)."""

    name: str
    depth: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.depth}" if self.depth else self.name


def parse_steps(texts: Sequence[str]) -> tuple[Step, ...]:
    """Parse steps that are written as `judge` or `name:depth`.

    Raises:
        ValueError: A step is unknown, its depth is missing or out of range, or `judge` is not the
            first step.
    """
    steps = tuple(_parse(text) for text in texts or ("",))
    if any(step.name == JUDGE for step in steps[1:]):
        raise ValueError(
            f"{JUDGE} ranks all documents by their judgments, so it can only be the first step"
        )
    return steps


_WITH_DEPTH = (*METHODS, FUSION, BALANCE)


def _parse(text: str) -> Step:
    name, _, depth = text.strip().partition(":")
    if text.strip() == JUDGE:
        return Step(JUDGE)
    if name not in _WITH_DEPTH:
        raise ValueError(
            f"{text!r:.80}: no such step; write {JUDGE}, or with a number of documents, as pairwise:10, one of "
            f"{', '.join(_WITH_DEPTH)}"
        )
    limit = METHODS.get(name, RankingMethod).max_depth
    if re.fullmatch("[0-9]{1,4}", depth) is None or not 2 <= int(depth) <= limit:
        raise ValueError(
            f"{text!r:.80}: needs the number of documents to rank, from 2 to {limit}, as {name}:10"
        )
    return Step(name, int(depth))


def list_comparison_kinds(steps: Sequence[Step]) -> tuple[ComparisonKind, ...]:
    """Return the kinds of comparison that the steps request from the model."""
    kinds = (METHODS[step.name].kind for step in steps if step.name in METHODS)
    return tuple(sorted({kind for kind in kinds if kind is not None}))


def count_shown_documents(steps: Sequence[Step], settings: RankingSettings) -> dict[str, int]:
    """Return how many documents the comparisons of the steps show at most, by purpose of their prompt."""
    shown: dict[str, int] = {}
    for step in steps:
        if step.name not in METHODS:
            continue

        method: RankingMethod = getattr(settings, step.name)
        if method.kind is None:
            continue

        shown_by_step = min(method.max_shown, step.depth)
        shown[method.kind] = max(shown_by_step, shown.get(method.kind, 0))
    return shown


def needs_texts(steps: Sequence[Step]) -> bool:
    """Return whether a model sees the documents' texts in a step."""
    return any(step.name in METHODS for step in steps)


def check_balance(steps: Sequence[Step], sides: Collection[str], setting: str) -> None:
    """Raise ValueError, naming `setting`, if a step balances the sides of a task that has none."""
    if not sides and any(step.name == BALANCE for step in steps):
        raise ValueError(f"{setting}: the task has no stances to balance; leave this step out")
