"""Variants of a comparison: judge prompts, each with settings of its own in place of the configured ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, NonNegativeInt

from touche_llm.config import Config
from touche_llm.errors import UsageError
from touche_llm.judging.pointwise import RequestBuilder
from touche_llm.judging.stance import StancePrompt
from touche_llm.prompts.catalog import load_named
from touche_llm.prompts.prompt import Prompt, check_overlay
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.tasks.base import Task

PURPOSE = "judge"


class VariantSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings of a variant, each in place of the configured one unless it is None.

    Attributes:
        thinking: Max tokens of reasoning before a judgment.
        stance_prompt: Prompt whose answers give the stance; None for the judge prompt.
    """

    thinking: NonNegativeInt | None = None
    stance_prompt: StancePrompt | None = None

    @property
    def suffix(self) -> str:
        """Return what the settings add to the name of a variant."""
        return "".join(f"+{value}" for value in (self.thinking, self.stance_prompt) if value is not None)


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the compared prompts.

    Attributes:
        name: Name or path that it was given by, with the suffix of its settings.
        prompt: Judge prompt.
        settings: Settings of its own.
        stance: Stance prompt; None if the stance is that of the judge prompt.
    """

    name: str
    prompt: Prompt
    settings: VariantSettings = VariantSettings()
    stance: Prompt | None = None

    @property
    def prompts(self) -> list[Prompt]:
        """Return the prompts that are sent."""
        return [self.prompt, *([] if self.stance is None else [self.stance])]

    def choose_builder(self, builder: RequestBuilder) -> RequestBuilder:
        """Return the builder of this variant's requests."""
        if self.settings.thinking is None:
            return builder
        return replace(builder, thinking=builder.thinking.model_copy(update={"judge": self.settings.thinking}))


def load_variants(
    names: Sequence[str], config: Config, task: Task, settings: Sequence[VariantSettings] = ()
) -> list[Variant]:
    """Load the prompts to compare; `settings` are empty if no variant has settings of its own.

    Raises:
        PromptError: A prompt is missing or invalid.
        UsageError: A prompt does not judge documents, a variant is given twice, or the task has no stance prompt.
    """
    settings = settings or [VariantSettings()] * len(names)
    if len(settings) != len(names):
        raise UsageError(f"{len(names)} prompts have {len(settings)} settings; give one for each")
    if len(names) < 2:
        raise UsageError(f"{', '.join(names) or 'no prompt'} alone cannot be compared; name two prompts or more")
    folder = config.prompts.folder
    if folder is not None:
        check_overlay(folder, task.name, {name for name in (*purposes_of(task), *names) if not name.endswith(".jinja")})
    variants: list[Variant] = []
    for name, own in zip(names, settings, strict=True):
        purpose, prompt = load_named(task, name, folder)
        if purpose.name != PURPOSE:
            judged = "documents" if task.sentence_question is None else "pairs of sentences"
            raise UsageError(
                f"{name}: is a prompt for {purpose.name!r}; only those for {PURPOSE!r}, which judge {judged} one by "
                "one, can be compared"
            )
        if any((prompt.path.resolve(), own) == (known.prompt.path.resolve(), known.settings) for known in variants):
            raise UsageError(f"{name}: is given twice; name each prompt once, or once for each value of its settings")
        variants.append(Variant(f"{name}{own.suffix}", prompt, own, _load_stance_prompt(config, task, own)))
    return variants


def describe_stance_measure(variants: Sequence[Variant]) -> str:
    """Describe the measured stance for the user."""
    if any(variant.settings.stance_prompt for variant in variants):
        return "macro-F1: of the stance by the prompt that each variant names; of the judge prompt where it fails."
    return "macro-F1: of the judge prompt's stance, as in a run whose stance.prompt is shared."


def _load_stance_prompt(config: Config, task: Task, settings: VariantSettings) -> Prompt | None:
    if settings.stance_prompt in (None, "shared"):
        return None
    if task.stance_question is None:
        raise UsageError(f"stance.prompt: {task.name} has no stance prompt; compare its prompts with `shared` alone")
    return load(task, purposes_of(task)["stance"], config.prompts.stance, config.prompts.folder)
