"""Steps of a ranking: `judge,pairwise:10` ranks by judgments, then the best ten by pairwise comparison.

All steps beside `judge` are registered; their settings are made of the registry.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, create_model, model_validator

from touche_llm.errors import ExtensionError
from touche_llm.extensions import load_extensions

# Imported because each registers its step.
from touche_llm.ranking import (  # noqa: F401
    balance,
    cross_encoder,
    fusion,
    insertion,
    listwise,
    pairwise,
    registry,
    setwise,
    sliding,
    tournament,
)
from touche_llm.ranking.comparer import ComparisonKind
from touche_llm.ranking.cross_encoder import CrossEncoderSettings
from touche_llm.ranking.fusion import FusionSettings
from touche_llm.ranking.registry import (
    ComparingMethod,
    RankingMethod,
    RankingStep,
    ReorderingMethod,
    ScoringMethod,
)
from touche_llm.settings.section import AnswerKey, Section, Trust
from touche_llm.tasks.parts import FIRST_STAGE

JUDGE = "judge"


class BaseRankingSettings(Section):
    """Settings of the steps, each in its own section.

    Attributes:
        document_tokens: Maximum number of tokens per document in a comparison; fewer if the context
            is too short.
    """

    document_tokens: Annotated[int, AnswerKey.ENTERS] = Field(512, ge=16)

    if TYPE_CHECKING:
        # Sections of registered steps that other modules read by name.
        cross_encoder: CrossEncoderSettings = CrossEncoderSettings()
        fusion: FusionSettings = FusionSettings()

    @model_validator(mode="after")
    def _check_fusion_weights(self) -> Self:
        """Raise ValueError if a weight belongs to nothing that can be fused."""
        fusable = [FIRST_STAGE, JUDGE]
        for step in STEPS.values():
            if not issubclass(step.method, ReorderingMethod):
                fusable.append(step.name)

        unknown = [name for name in self.fusion.weights if name not in fusable]
        if unknown:
            raise ValueError(
                f"fusion.weights: {', '.join(unknown)}: no ranking of that name; known: {', '.join(fusable)}"
            )
        return self

    def find_method(self, name: str) -> RankingMethod | None:
        """Return the method of a step with its settings; None for `judge`, which has neither."""
        if name == JUDGE:
            return None
        method: RankingMethod = getattr(self, name)
        return method


def _list_steps() -> list[RankingStep]:
    """Return all registered steps in the order in which they are documented.

    Raises:
        ExtensionError: An installed package with a step cannot be imported, or the name of a step
            is no identifier or is reserved.
    """
    load_extensions()
    # A step that registers later would be missing in the settings, so that it must be an error.
    registry.RANKING_STEPS.close()
    registered = registry.RANKING_STEPS.by_name.values()
    steps = sorted(registered, key=lambda step: (step.order, step.name))
    for step in steps:
        _check_name(step.name)
    return steps


def _check_name(name: str) -> None:
    """Raise ExtensionError unless a step can have a name, which its section of settings has too."""
    reserved = {JUDGE, FIRST_STAGE, *dir(BaseRankingSettings), *BaseRankingSettings.model_fields}
    if not name.isidentifier() or name in reserved:
        raise ExtensionError(
            f"{name}: cannot be the name of a ranking step, which is that of its settings too; "
            "choose another word of letters, digits and _"
        )


STEPS: Mapping[str, RankingStep] = {step.name: step for step in _list_steps()}


def _make_settings_type() -> type[BaseRankingSettings]:
    """Return the type of the settings, which has a section for each step, named like the step."""
    sections = {step.name: _make_section(step) for step in STEPS.values()}
    # The types of the sections are made at run time, so that mypy knows none.
    return create_model(  # type: ignore[no-any-return, call-overload]
        "RankingSettings",
        __base__=BaseRankingSettings,
        __doc__=BaseRankingSettings.__doc__,
        __module__=__name__,
        **sections,
    )


def _make_section(step: RankingStep) -> tuple[object, RankingMethod]:
    """Return the type and the default of the settings of a step, as `create_model` takes them."""
    trust = Trust.DATA
    if issubclass(step.method, ScoringMethod):
        # It has a server of its own.
        trust = Trust.ACTS

    # Settings of steps decide which documents are compared, and in which orders. A comparison of
    # the same documents in the same order is the same request, whichever step sends it.
    annotation = Annotated[step.method, AnswerKey.STAYS_OUT, trust]  # type: ignore[name-defined]
    return annotation, step.method()


if TYPE_CHECKING:
    RankingSettings = BaseRankingSettings
else:
    RankingSettings = _make_settings_type()


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the ranking: its name, and how many of the best documents it ranks (0 for `judge`: all)."""

    name: str
    depth: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.depth}" if self.depth else self.name


def parse_steps(texts: Sequence[str]) -> tuple[Step, ...]:
    """Parse steps that are written as `judge` or, with a depth, as `pairwise:10`.

    Raises:
        ValueError: There is no step, one is unknown, its depth is missing or out of range, or
            `judge` is not the first step.
    """
    if not texts:
        raise ValueError(_describe_unknown_step(""))

    steps = tuple(_parse(text) for text in texts)
    later_names = [step.name for step in steps[1:]]
    if JUDGE in later_names:
        raise ValueError(
            f"{JUDGE} ranks all documents by their judgments, so it can only be the first step"
        )
    return steps


def _parse(text: str) -> Step:
    """Parse one step, `judge` or a name and a depth as `pairwise:10`.

    Raises:
        ValueError: The step is unknown, or its depth is missing or out of range.
    """
    if text.strip() == JUDGE:
        return Step(JUDGE)

    name, _, depth_text = text.strip().partition(":")
    if name not in STEPS:
        raise ValueError(_describe_unknown_step(text))

    max_depth = STEPS[name].max_depth
    depth = _parse_depth(depth_text)
    if depth is None or not 2 <= depth <= max_depth:
        raise ValueError(
            f"{text!r:.80}: needs the number of documents to rank, from 2 to {max_depth}, as {name}:10"
        )
    return Step(name, depth)


def _parse_depth(text: str) -> int | None:
    """Return a number of one to four ASCII digits; None for any other text, as `+5` or `1e3`."""
    if re.fullmatch("[0-9]{1,4}", text) is None:
        return None
    return int(text)


def _describe_unknown_step(text: str) -> str:
    """Return the error for a text that names no step, with the known ones."""
    return (
        f"{text!r:.80}: no such step; write {JUDGE}, or with a number of documents, as pairwise:10, one of "
        f"{', '.join(STEPS)}"
    )


def list_comparison_kinds(steps: Sequence[Step]) -> tuple[ComparisonKind, ...]:
    """Return the kinds of comparison that the steps request from the model."""
    kinds: set[ComparisonKind] = set()
    for method in _list_methods(steps):
        if issubclass(method, ComparingMethod):
            kinds.add(method.kind)
    return tuple(sorted(kinds))


def count_shown_documents(steps: Sequence[Step], settings: BaseRankingSettings) -> dict[str, int]:
    """Return the maximum number of documents that one comparison of the steps shows.

    Returns:
        Numbers by kind of comparison, which is also the purpose of its prompt.
    """
    max_shown: dict[str, int] = {}
    for step in steps:
        method = settings.find_method(step.name)
        if not isinstance(method, ComparingMethod):
            continue
        shown_by_step = min(method.max_shown, step.depth)
        shown_so_far = max_shown.get(method.kind, 0)
        max_shown[method.kind] = max(shown_by_step, shown_so_far)
    return max_shown


def needs_texts(steps: Sequence[Step]) -> bool:
    """Return whether a model sees the documents' texts in a step."""
    return any(
        issubclass(method, ComparingMethod | ScoringMethod) for method in _list_methods(steps)
    )


def needs_scores(steps: Sequence[Step]) -> bool:
    """Return whether a step requests scores from the cross-encoder."""
    return any(issubclass(method, ScoringMethod) for method in _list_methods(steps))


def _list_methods(steps: Sequence[Step]) -> list[type[RankingMethod]]:
    """Return the methods of steps beside `judge`."""
    return [STEPS[step.name].method for step in steps if step.name != JUDGE]


def check_sides(steps: Sequence[Step], sides: Collection[str], setting: str) -> None:
    """Raise ValueError, naming `setting`, if a step balances the sides of a task that has none."""
    if sides:
        return
    for step in steps:
        if step.name != JUDGE and STEPS[step.name].needs_sides:
            raise ValueError(f"{setting}: the task has no stances to balance; leave this step out")
