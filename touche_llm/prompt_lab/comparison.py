"""Comparison of prompts: each judges the same sample and is compared with human judgments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from touche_llm.config import Config
from touche_llm.data.records import Failure, Topic
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.evaluation.measures import NDCG
from touche_llm.evaluation.notes import describe_missing_intervals
from touche_llm.evaluation.qrels import Qrels
from touche_llm.judging.pointwise import RequestBuilder, find_objects
from touche_llm.llm.counts import Counts
from touche_llm.llm.model import ModelClient
from touche_llm.llm.recorder import RecordingEngine, Usage, make_dry_engine, open_known_answers
from touche_llm.pipeline.context import RunContext, check_examples, list_schemas, make_request_builder
from touche_llm.pipeline.dry_run import Cost, DryRun, QuietProgress
from touche_llm.pipeline.engines import assume_engine_info, open_model
from touche_llm.pipeline.progress import Progress
from touche_llm.pipeline.stages import report_known_failures
from touche_llm.prompt_lab.holdout import (
    HOLD_OUT,
    Access,
    Kind,
    access_log,
    check_log,
    describe_accesses,
    make_access,
    record_access,
    select_counted,
)
from touche_llm.prompt_lab.measures import (
    MACRO_F1,
    PartMeasures,
    Verdict,
    choose_winner,
    decide_verdict,
    measure_part,
)
from touche_llm.prompt_lab.sample import (
    Plan,
    Sampled,
    check_parts,
    divide_sample,
    provide_sample,
    split_topics,
    write_sample,
)
from touche_llm.prompt_lab.variants import Variant, VariantJudgments, VariantSettings, judge_variants, load_variants
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.tasks.task import Task


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """Result of a comparison.

    Attributes:
        task: Task of the prompts.
        variants: Variants in the given order; the others are compared with the first.
        model: Name of the judging model.
        topics: Sampled topics in the order of the topics file, with the objects that the model found.
        sample_file: File of the sample.
        parts: Measures of each part of the sample: the one to choose on, then the held-out one if it was judged.
        judged: Judgments by part and variant, their grades on the scales of the human ones; held-out topics are judged
            by the first variant and the best only.
        failures: Failures to find a topic's objects.
        verdict: The best variant, and whether it was confirmed.
        texts: Texts of the documents by id, if the plan wants them.
        notes: Notes for the user.
        earlier_accesses: Earlier accesses to the held-out topics that make a confirmation weaker; None if these were
            not judged.
    """

    task: Task
    variants: list[Variant]
    model: str
    topics: list[Topic]
    sample_file: Path
    parts: list[PartMeasures]
    judged: dict[tuple[str, str], VariantJudgments]
    failures: list[Failure]
    verdict: Verdict
    texts: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    earlier_accesses: list[Access] | None = None

    def variants_in(self, part: PartMeasures) -> list[Variant]:
        """Return the variants that judged a part."""
        return [variant for variant in self.variants if (part.name, variant.name) in self.judged]

    def all_failures(self) -> list[Failure]:
        """Return the failures of all variants and of the topics."""
        return [*self.failures, *(failure for result in self.judged.values() for failure in result.failures)]


@dataclass(slots=True)
class _Prepared:
    """Sample of a comparison, divided into parts and checked before the engine starts."""

    objects_prompt: Prompt | None
    topics: list[Topic]
    parts: dict[str, list[Sampled]]
    sample: list[Sampled]
    sample_file: Path
    notes: list[str]


async def compare_prompts(
    config: Config,
    names: Sequence[str],
    qrels: Qrels,
    plan: Plan,
    progress: Progress,
    settings: Sequence[VariantSettings] = (),
) -> PromptComparison:
    """Judge one sample with several prompts and compare each with human judgments.

    Variants are chosen by nDCG@5; by macro-F1 of the stance if they name the prompt of their stance.

    Args:
        config: Configuration with the engine and the corpus.
        names: Names or template paths of two prompts or more.
        qrels: Human judgments, with grades.
        plan: The documents and topics to compare on.
        progress: Receives warnings and the progress of each stage.
        settings: Settings of each variant; empty if none has settings of its own.

    Raises:
        PromptError: A prompt is missing or invalid.
        UsageError: A prompt does not judge documents, a few-shot example is from the sample, or there are no judgments
            to choose by.
        DataError: The judgments or the sample do not fit the topics and the corpus.
        ReplayMiss: The cache of a replay lacks an answer.
    """
    with RunContext(config, progress) as context:
        task, corpus = context.task, context.corpus
        variants, prepared = await _prepare(context, names, settings, qrels, plan)
        check_log(access_log(config.cache.file))
        if not prepared.sample_file.exists():
            write_sample(prepared.sample_file, prepared.sample)
        schemas = list_schemas(prompt for variant in variants for prompt in variant.prompts)
        opening = open_model(config.engine, config.sampling, config.cache, schemas=schemas, progress=progress)
        async with opening as model:
            builder = make_request_builder(model, config.engine, config.sampling)
            failures = await _find_objects(context, prepared, builder)
            judged, parts, earlier = await _judge_parts(context, qrels, variants, prepared, builder)
            report_known_failures(progress, model, Counts())
        ids = [document.document_id for part in parts for document in part.sample] if plan.texts else []
        texts = {document_id: corpus.documents.get(document_id).text for document_id in ids}
    notes = prepared.notes
    if ungraded := [topic for part in parts for topic in part.topics if not part.counts(topic)]:
        notes.append(
            f"topics without a grade above 0 among their sampled documents, left out of nDCG: {shorten(ungraded)}"
        )
        progress.warn(notes[-1])
    for note in describe_missing_intervals(row for part in parts for row in part.differences.values()):
        notes.append(note)
        progress.warn(note)
    return PromptComparison(
        task,
        variants,
        model.engine_info.model,
        prepared.topics,
        prepared.sample_file,
        parts,
        judged,
        failures,
        decide_verdict(parts),
        texts,
        notes,
        earlier,
    )


async def estimate_comparison(
    config: Config,
    names: Sequence[str],
    qrels: Qrels,
    plan: Plan,
    progress: Progress,
    settings: Sequence[VariantSettings] = (),
) -> DryRun:
    """Estimate the requests of a comparison, part by part; nothing is sent, and neither sample nor access recorded.

    Held-out topics are judged by the first variant and the best, so they cost nothing if the first is the best, and at
    most those of the first and of the most expensive other. Arguments and errors as `compare_prompts`.
    """
    result = DryRun()
    with (
        RunContext(config, progress) as context,
        open_known_answers(config.cache.file, config.cache.mode) as cache,
    ):
        variants, prepared = await _prepare(context, names, settings, qrels, plan)
        context.progress = QuietProgress(progress, "dry run")
        facts = assume_engine_info(config.engine, cache)
        result.context = facts.context if facts.engine or config.engine.context else None
        counts, engines, answered = Counts(), dict[str, RecordingEngine](), set[str]()

        def make_builder(name: str) -> RequestBuilder:
            engine = engines[name] = make_dry_engine(answered=answered)
            retry = config.cache.retry_failures
            model = ModelClient(engine_info=facts, engine=engine, cache=cache, counts=counts, retry_failures=retry)
            return make_request_builder(model, config.engine, config.sampling)

        await _find_objects(context, prepared, make_builder("objects"))
        topics = {topic.id: topic for topic in prepared.topics}
        result.costs += [Cost("objects", prompt, use, use) for prompt, use in engines["objects"].usage.items()]
        for part, sample in prepared.parts.items():
            before = replace(counts)
            for variant in variants:
                await judge_variants(context, [variant], part, sample, topics, make_builder(variant.name))
            result.costs += _collect_costs(part, variants, engines)
            spent = counts.since(before)
            repeated = sum(engines[variant.name].repeated for variant in variants)
            # Of the held-out topics, nothing is sure to be requested.
            result.known[part] = 0 if part == HOLD_OUT else spent.cache_hits + repeated
            result.failed[part] = 0 if part == HOLD_OUT else spent.known_failures
    return result


def _collect_costs(part: str, variants: Sequence[Variant], engines: Mapping[str, RecordingEngine]) -> Iterator[Cost]:
    """Yield the costs of a part: of all variants, or on held-out topics of the first and the most expensive other."""
    is_open = part != HOLD_OUT

    def count(variant: Variant) -> int:
        return sum(use.prompt_tokens + use.completion_tokens for use in engines[variant.name].usage.values())

    for variant in variants if is_open else (variants[0], max(variants[1:], key=count)):
        for prompt, use in engines[variant.name].usage.items():
            yield Cost(part, f"{prompt}{variant.settings.suffix}", use if is_open else Usage(), use)


async def _prepare(
    context: RunContext, names: Sequence[str], settings: Sequence[VariantSettings], qrels: Qrels, plan: Plan
) -> tuple[list[Variant], _Prepared]:
    """Load the variants, draw or read the sample and divide it; raise an error if one does not fit."""
    config, task, topics, corpus = context.config, context.task, context.topics, context.corpus
    if not qrels.grades:
        aspects = ", ".join(task.aspects)
        raise UsageError(f"qrels: no grades, by which documents are drawn; give those of at least one of {aspects}")
    variants = load_variants(names, config, task, settings)
    grades = next(iter(qrels.grades.values()))
    halves = split_topics([topic for topic in context.file_topics if topic.id in grades], plan.split)
    await corpus.fetch(document_id for topic in topics for document_id in grades.get(topic.id, {}))
    sample, path, notes = provide_sample(plan, grades, topics, halves, corpus, task)
    topics = _keep_topics(topics, sample)
    prompts = [prompt for variant in variants for prompt in variant.prompts]
    objects_prompt = None
    if task.objects_answer is not None and any(topic.objects is None for topic in topics):
        named = config.prompts
        objects_prompt = load(task, purposes_of(task)["objects"], named.objects, named.folder)
        prompts.append(objects_prompt)
    for prompt in prompts:
        check_examples(prompt, topics, config.topics, context.progress.warn)
    parts, part_notes = divide_sample(plan, sample, halves)
    if _choose_criterion(qrels, variants) == MACRO_F1:
        _check_stances(parts, qrels)
    topics = _keep_topics(topics, [document for documents in parts.values() for document in documents])
    notes += part_notes
    for note in notes:
        context.progress.warn(note)
    return variants, _Prepared(objects_prompt, topics, parts, sample, path, notes)


def _keep_topics(topics: list[Topic], sample: Sequence[Sampled]) -> list[Topic]:
    """Return the topics that have a document in the sample."""
    sampled = {document.topic_id for document in sample}
    return [topic for topic in topics if topic.id in sampled]


async def _judge_parts(
    context: RunContext, qrels: Qrels, variants: Sequence[Variant], prepared: _Prepared, builder: RequestBuilder
) -> tuple[dict[tuple[str, str], VariantJudgments], list[PartMeasures], list[Access] | None]:
    """Judge with all variants; then judge the held-out topics, if any, with the first variant and the best.

    Returns:
        The judgments by part and variant, the measures of each part, and the earlier accesses to count or None.
    """
    config, parts = context.config, dict(prepared.parts)
    topics = {topic.id: topic for topic in prepared.topics}
    held_out = parts.pop(HOLD_OUT, [])
    ((name, sample),) = parts.items()
    judged = await judge_variants(context, variants, name, sample, topics, builder)
    _record(config, qrels, "choice", [topics[item.topic_id] for item in sample], variants)
    criterion = _choose_criterion(qrels, variants)

    def measure(name: str, sample: Sequence[Sampled]) -> PartMeasures:
        judgments = {variant: result.judgments for (part, variant), result in judged.items() if part == name}
        return measure_part(name, sample, judgments, qrels, config.weights, criterion)

    measures = [measure(name, sample)]
    names = {variants[0].name, choose_winner(measures[0])}
    if not held_out or len(names) < 2:
        return judged, measures, None
    finalists = [variant for variant in variants if variant.name in names]
    judged |= await judge_variants(context, finalists, HOLD_OUT, held_out, topics, builder)
    access, earlier = _record(config, qrels, "confirmation", [topics[item.topic_id] for item in held_out], finalists)
    baseline, winner = ([prompt.label for prompt in variant.prompts] for variant in finalists)
    counted = select_counted(earlier, baseline, winner)
    notes = describe_accesses(earlier, counted, access, winner, access_log(config.cache.file))
    prepared.notes += notes
    for note in notes:
        context.progress.warn(note)
    return judged, [*measures, measure(HOLD_OUT, held_out)], counted


def _choose_criterion(qrels: Qrels, variants: Sequence[Variant]) -> str:
    """Return the name of the measure that the variants are chosen by."""
    has_stances = any(variant.settings.stance_prompt for variant in variants)
    return MACRO_F1 if has_stances else f"{next(iter(qrels.grades))} {NDCG}"


def _check_stances(parts: Mapping[str, Sequence[Sampled]], qrels: Qrels) -> None:
    """Raise UsageError if a part has no document whose stance people judged."""
    for name, sample in parts.items():
        if not any(item.document_id in qrels.stances.get(item.topic_id, {}) for item in sample):
            raise UsageError(
                f"qrels: no stance of the {len(sample)} sampled documents ({name}), by which prompts of the stance are "
                "compared; give stance judgments of these topics"
            )


def _record(
    config: Config, qrels: Qrels, kind: Kind, topics: Sequence[Topic], variants: Sequence[Variant]
) -> tuple[Access, list[Access]]:
    """Log an access to the topics before any measure is shown; return it and earlier accesses to any of them."""
    labels = [prompt.label for variant in variants for prompt in variant.prompts]
    access = make_access(kind, (topic.title for topic in topics), qrels, labels)
    return access, record_access(access_log(config.cache.file), access)


async def _find_objects(context: RunContext, prepared: _Prepared, builder: RequestBuilder) -> list[Failure]:
    """Let the model find the objects of topics that name none; drop the topics where it fails.

    Raises:
        DataError: No topic has objects.
    """
    if (prompt := prepared.objects_prompt) is None:
        return []
    unnamed = sum(topic.objects is None for topic in prepared.topics)
    with context.progress.stage("finding objects", unnamed, builder.model.counts) as done:
        topics, failures = await find_objects(prepared.topics, context.task, prompt, builder, done)
    builder.model.raise_on_misses()
    prepared.topics = [topic for topic in topics if topic.objects is not None]
    if lost := [topic.id for topic in topics if topic.objects is None]:
        prepared.notes.append(f"topics left out, since the model found no two objects in their titles: {shorten(lost)}")
        context.progress.warn(prepared.notes[-1])
    if not prepared.topics:
        raise DataError("the model found no two objects in the title of any topic; name them in <objects>")
    kept = {topic.id for topic in prepared.topics}
    prepared.parts = {
        name: [document for document in sample if document.topic_id in kept] for name, sample in prepared.parts.items()
    }
    check_parts(prepared.parts)
    return failures
