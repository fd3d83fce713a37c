"""Judgments of a sample by each variant of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from touche_llm.data.records import Failure, Judgment, Reading, Topic
from touche_llm.judging.pointwise import RequestBuilder, judge
from touche_llm.judging.stance import choose_stance
from touche_llm.llm.counts import Counts
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.stances import judge_stances
from touche_llm.prompt_lab.draw import Sampled
from touche_llm.prompt_lab.variants import Variant
from touche_llm.tasks.base import Task


@dataclass(frozen=True, slots=True)
class VariantJudgments:
    """Judgments, failures and counts of one variant on one part of the sample."""

    judgments: dict[tuple[str, str], Judgment]
    failures: list[Failure]
    counts: Counts


async def judge_variants(
    context: RunContext,
    variants: Sequence[Variant],
    part: str,
    sample: Sequence[Sampled],
    topics: Mapping[str, Topic],
    builder: RequestBuilder,
) -> dict[tuple[str, str], VariantJudgments]:
    """Judge a part with each variant; return the judgments by part and variant.

    Raises:
        ReplayMiss: The cache of a replay lacks an answer.
    """
    model, task, documents = builder.model, context.task, context.corpus.documents
    judged = dict[tuple[str, str], VariantJudgments]()
    work = [(topics[item.topic_id], item.document_id) for item in sample]
    for variant in variants:
        before, own = replace(model.counts), variant.choose_builder(builder)
        with context.progress.stage(f"judging with {variant.name}", len(work), model.counts) as done:
            found, failures = await judge(work, documents, task.question, variant.prompt, own, done)
        judgments = {(judgment.topic_id, judgment.document_id): _convert_grades(judgment, task) for judgment in found}
        if variant.stance is not None:
            failures += await _judge_stances(context, variant, work, judgments, own)
        judged[part, variant.name] = VariantJudgments(judgments, failures, model.counts.since(before))
    model.raise_on_misses()
    model.raise_on_unread()
    return judged


async def _judge_stances(
    context: RunContext,
    variant: Variant,
    work: Sequence[tuple[Topic, str]],
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
        [(topic, document_id) for topic, document_id in work if (topic.id, document_id) in judgments],
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
        name: task.scales[name].convert(grade, task.qrels_scales[name]) for name, grade in judgment.grades.items()
    }
    return structs.replace(judgment, grades=grades)
