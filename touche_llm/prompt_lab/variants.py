"""Judgments of a sample by each variant of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs
from pydantic import NonNegativeInt

from touche_llm.config import Config
from touche_llm.data.records import Failure, Judgment, Model, Reading, Topic
from touche_llm.errors import UsageError
from touche_llm.judging.labels import StancePrompt, choose_stance
from touche_llm.judging.pointwise import RequestBuilder, judge, judge_stances
from touche_llm.llm.engine import Counts
from touche_llm.pipeline.context import RunContext
from touche_llm.prompts.prompt import Prompt, check_overlay
from touche_llm.prompts.purposes import load, load_named, purposes_of
from touche_llm.tasks.task import Task

PURPOSE = "judge"


class VariantSettings(Model):
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


@dataclass(frozen=True, slots=True)
class VariantJudgments:
    """Judgments, failures and counts of one variant on one part of the sample."""

    judgments: dict[tuple[str, str], Judgment]
    failures: list[Failure]
    counts: Counts


async def judge_variant(
    context: RunContext, variant: Variant, pairs: list[tuple[Topic, str]], builder: RequestBuilder
) -> VariantJudgments:
    """Judge documents of topics with a variant; misses of a replay are in the builder's model."""
    model, task, documents = builder.model, context.task, context.corpus.documents
    before, builder = replace(model.counts), variant.choose_builder(builder)
    with context.progress.stage(f"judging with {variant.name}", len(pairs), model.counts) as done:
        found, failures = await judge(pairs, documents, task.question, variant.prompt, builder, done)
    judgments = {(judgment.topic_id, judgment.document_id): _convert_grades(judgment, task) for judgment in found}
    if variant.stance is not None:
        failures += await _judge_stances(context, variant, pairs, judgments, builder)
    return VariantJudgments(judgments, failures, model.counts.since(before))


async def _judge_stances(
    context: RunContext,
    variant: Variant,
    pairs: list[tuple[Topic, str]],
    judgments: dict[tuple[str, str], Judgment],
    builder: RequestBuilder,
) -> list[Failure]:
    """Replace the stances of judgments by those of the variant's stance prompt; return its failures.

    As in a run, a document without a judgment is not requested, and one without a usable answer keeps the stance of the
    judge prompt.
    """
    task = context.task
    assert variant.stance is not None
    readings, failures = await judge_stances(
        [(topic, document_id) for topic, document_id in pairs if (topic.id, document_id) in judgments],
        context.corpus.documents,
        task,
        variant.stance,
        variant.settings.stance_prompt == "both_orders",
        builder,
        lambda title, total: context.progress.stage(f"{title} with {variant.name}", total, builder.model.counts),
    )
    for reading in readings:
        judgment = judgments[reading.topic_id, reading.document_id]
        label = choose_stance(reading.probabilities, {}, task)
        shares = reading.probabilities if reading.source == "probabilities" else None
        judgments[reading.topic_id, reading.document_id] = structs.replace(
            judgment,
            stance=label,
            readings={**judgment.readings, "stance": Reading(answered=label, probabilities=shares)},
        )
    return failures


def _convert_grades(judgment: Judgment, task: Task) -> Judgment:
    """Return a judgment with its grades on the scales of the human ones."""
    grades = {
        name: task.aspects[name].convert(grade, task.qrels_scales[name]) for name, grade in judgment.grades.items()
    }
    return structs.replace(judgment, grades=grades)
