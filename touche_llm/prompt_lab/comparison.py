"""Comparison of prompts: each judges the same sample and is compared with human judgments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from touche_llm.api.opening import open_client
from touche_llm.api.progress import ForwardedProgress, Progress
from touche_llm.config.configuration import Config
from touche_llm.data.records import Failure, Topic
from touche_llm.engines.dry_run import DryRunEngine
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.evaluation.qrels import Qrels
from touche_llm.evaluation.significance import describe_missing_intervals
from touche_llm.judging.objects import find_objects
from touche_llm.judging.requests import RequestBuilder, make_request_builder
from touche_llm.llm.counts import Counts
from touche_llm.prompt_lab.holdout import (
    HOLD_OUT,
    Access,
    Kind,
    access_log,
    check_log,
    describe_accesses,
    record_access,
    select_counted,
)
from touche_llm.prompt_lab.sample import Plan, Sampled, check_parts, choose_sample
from touche_llm.prompt_lab.variants import (
    PartMeasures,
    Variant,
    VariantJudgments,
    Verdict,
    choose_winner,
    decide_verdict,
    judge_variant,
    load_variants,
    measure_part,
)
from touche_llm.prompts.leakage import check_examples
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.runs.context import RunContext, list_schemas
from touche_llm.runs.dry_run import Cost, DryRun, find_context, open_dry_client
from touche_llm.runs.stages import report_known_failures
from touche_llm.tasks.task import Task


@dataclass(frozen=True, slots=True)
class ComparisonInputs:
    """Prompts to compare, and what to compare them on.

    `names` are names or template paths of two prompts or more, or variants that are loaded already.
    """

    config: Config
    names: Sequence[str | Variant]
    qrels: Qrels
    plan: Plan = field(default_factory=Plan)


@dataclass(slots=True)
class PromptComparison:
    """A comparison: prompts and sample, then the judgments and measures of each part.

    Attributes:
        variants: Variants in the given order; the others are compared with the first.
        objects_prompt: Prompt that finds the objects of topics; None if each names its own.
        topics: Sampled topics in the order of the topics file, with the objects that the model
            found.
        samples: Documents by name of the part: the one to choose on, then the held-out one if it is
            to be judged.
        judged: Judgments by part and variant, their grades on the scales of the human ones.
        failures: Failures to find a topic's objects.
        earlier_accesses: Those that make a confirmation weaker; None if held-out topics were not
            judged.
    """

    context: RunContext
    qrels: Qrels
    variants: list[Variant]
    objects_prompt: Prompt | None
    topics: list[Topic]
    samples: dict[str, list[Sampled]]
    notes: list[str] = field(default_factory=list)
    model: str = ""
    parts: list[PartMeasures] = field(default_factory=list)
    judged: dict[tuple[str, str], VariantJudgments] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    earlier_accesses: list[Access] | None = None

    @property
    def task(self) -> Task:
        """Return the task of the prompts."""
        return self.context.task

    @property
    def verdict(self) -> Verdict:
        """Return the best variant, and whether it was confirmed."""
        return decide_verdict(self.parts)

    def variants_in(self, part: PartMeasures) -> list[Variant]:
        """Return the variants that judged a part."""
        return [variant for variant in self.variants if (part.name, variant.name) in self.judged]

    def all_failures(self) -> list[Failure]:
        """Return the failures of all variants and of the topics."""
        return [
            *self.failures,
            *(failure for result in self.judged.values() for failure in result.failures),
        ]

    def note(self, text: str) -> None:
        """Add a note, and warn."""
        self.notes.append(text)
        self.context.progress.warn(text)

    async def find_objects(self, builder: RequestBuilder) -> None:
        """Let the model find the objects of topics that name none.

        Drop the topics where it fails.
        """
        if self.objects_prompt is None:
            return
        unnamed = sum(topic.objects is None for topic in self.topics)
        with self.context.progress.stage("finding objects", unnamed, builder.model.counts) as done:
            topics, self.failures = await find_objects(
                self.topics, self.task, self.objects_prompt, builder, done
            )
        builder.model.raise_on_misses()
        self.topics = [topic for topic in topics if topic.objects is not None]
        if lost := [topic.id for topic in topics if topic.objects is None]:
            self.note(
                f"topics left out, since the model found no two objects in their titles: {shorten(lost)}"
            )
        if not self.topics:
            raise DataError(
                "the model found no two objects in the title of any topic; name them in <objects>"
            )
        kept = {topic.id for topic in self.topics}
        self.samples = {
            name: [item for item in sample if item.topic_id in kept]
            for name, sample in self.samples.items()
        }
        check_parts(self.samples)

    async def judge(self, part: str, variants: Sequence[Variant], builder: RequestBuilder) -> None:
        """Judge a part with each variant."""
        topics = {topic.id: topic for topic in self.topics}
        pairs = [(topics[item.topic_id], item.document_id) for item in self.samples[part]]
        for variant in variants:
            self.judged[part, variant.name] = await judge_variant(
                self.context, variant, pairs, builder
            )
        builder.model.raise_on_misses()
        builder.model.labels.raise_on_unread()

    async def measure(
        self, kind: Kind, part: str, variants: Sequence[Variant], builder: RequestBuilder
    ) -> list[Access]:
        """Judge a part and measure it.

        Return earlier accesses to its topics, logged before any measure is known.
        """
        await self.judge(part, variants, builder)
        sampled = {item.topic_id for item in self.samples[part]}
        titles = list(dict.fromkeys(topic.title for topic in self.topics if topic.id in sampled))
        access = Access(
            kind=kind, topics=titles, prompts=[variant.prompt.label for variant in variants]
        )
        earlier = record_access(access_log(self.context.config.cache.file), access)
        judgments = {
            variant.name: self.judged[part, variant.name].judgments for variant in variants
        }
        weights = self.context.config.weights
        self.parts.append(measure_part(part, self.samples[part], judgments, self.qrels, weights))
        return earlier

    async def confirm(self, builder: RequestBuilder) -> None:
        """Judge the held-out topics, if they are to be judged, with the first variant and the best."""
        if not self.samples.get(HOLD_OUT):
            return

        baseline = self.variants[0]
        winner_name = choose_winner(self.parts[0])
        if winner_name == baseline.name:
            return

        winner = next(variant for variant in self.variants if variant.name == winner_name)
        finalists = [baseline, winner]
        earlier = await self.measure("confirmation", HOLD_OUT, finalists, builder)
        self.earlier_accesses = select_counted(earlier, winner.prompt.label)

        log = access_log(self.context.config.cache.file)
        self.note(f"{log}: {describe_accesses(earlier, self.earlier_accesses)}")


async def compare_prompts(inputs: ComparisonInputs, progress: Progress) -> PromptComparison:
    """Judge one sample with several prompts and compare each with human judgments; nDCG@5 chooses.

    A prompt that does not judge documents or has an example from the sample is a UsageError.
    """
    config = inputs.config
    with RunContext(config, progress) as context:
        found = await _prepare(context, inputs)
        check_log(access_log(config.cache.file))
        schemas = list_schemas(variant.prompt for variant in found.variants)
        opening = open_client(
            config.engine, config.sampling, config.cache, schemas=schemas, progress=progress
        )
        async with opening as model:
            found.model = model.engine_info.model
            builder = make_request_builder(model)
            await found.find_objects(builder)
            await found.measure("choice", next(iter(found.samples)), found.variants, builder)
            await found.confirm(builder)
            report_known_failures(progress, model, Counts())
        ids = (item.document_id for part in found.parts for item in part.sample)
        found.texts = {
            document_id: context.corpus.documents.get(document_id).text for document_id in ids
        }
    for note in describe_missing_intervals(
        row for part in found.parts for row in part.differences.values()
    ):
        found.note(note)
    return found


async def estimate_comparison(inputs: ComparisonInputs, progress: Progress) -> DryRun:
    """Estimate the requests on the topics to choose on; nothing is sent, and no access recorded.

    Errors as `compare_prompts`.
    """
    config = inputs.config
    result = DryRun()
    answered: set[str] = set()
    known = 0
    failed = 0
    with RunContext(config, progress) as context:
        work = await _prepare(context, inputs)
        context.progress = ForwardedProgress(progress, "dry run")
        part = next(iter(work.samples))
        for variant in (None, *work.variants):
            engine = DryRunEngine(answered=answered)
            async with open_dry_client(config, engine) as model:
                builder = make_request_builder(model)
                if variant is None:
                    stage = "objects"
                    await work.find_objects(builder)
                else:
                    stage = part
                    await work.judge(part, [variant], builder)
                result.context = find_context(config, model)
            for prompt, usage in engine.usage.items():
                result.costs.append(Cost(stage, prompt, usage))
            known += model.counts.cache_hits + engine.repeated
            failed += model.counts.known_failures
        result.known[part] = known
        result.failed[part] = failed
    return result


async def _prepare(context: RunContext, inputs: ComparisonInputs) -> PromptComparison:
    """Load the variants, draw the sample and divide it; raise an error if one does not fit."""
    config, task, qrels, corpus = context.config, context.task, inputs.qrels, context.corpus
    if not qrels.grades:
        aspects = ", ".join(task.aspects)
        raise UsageError(
            f"qrels: no grades, by which documents are drawn; give those of at least one of {aspects}"
        )
    variants = load_variants(inputs.names, config, task)
    grades = next(iter(qrels.grades.values()))
    await corpus.fetch(
        document_id for topic in context.topics for document_id in grades.get(topic.id, {})
    )
    samples, notes = choose_sample(inputs.plan, grades, context.topics, corpus.documents)
    topics = _keep_topics(context.topics, samples)
    prompts = [variant.prompt for variant in variants]
    objects_prompt = None
    if task.objects_answer is not None and any(topic.objects is None for topic in topics):
        named = config.prompts
        objects_prompt = load(task, purposes_of(task)["objects"], named.objects, named.folder)
        prompts.append(objects_prompt)
    for prompt in prompts:
        check_examples(prompt, topics, config.topics, context.progress.warn)
    if not inputs.plan.confirm:
        samples.pop(HOLD_OUT, None)
    check_parts(samples)
    topics = _keep_topics(topics, samples)
    found = PromptComparison(context, qrels, variants, objects_prompt, topics, samples)
    for note in notes:
        found.note(note)
    return found


def _keep_topics(topics: Sequence[Topic], samples: Mapping[str, Sequence[Sampled]]) -> list[Topic]:
    sampled = {document.topic_id for sample in samples.values() for document in sample}
    return [topic for topic in topics if topic.id in sampled]
