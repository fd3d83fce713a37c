"""Comparison of prompts: each judges the same sample and is compared with human judgments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from touche_llm.api.opening import open_client
from touche_llm.api.progress import ForwardedProgress, Progress
from touche_llm.api.retrieve import add_objects
from touche_llm.config.configuration import Config
from touche_llm.data.records import Failure, Topic
from touche_llm.engines.dry_run import DryRunEngine
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.evaluation.qrels import Grades, Qrels
from touche_llm.evaluation.significance import describe_intervals
from touche_llm.judging.objects import find_objects
from touche_llm.judging.requests import Requester, TopicDocument, make_requester
from touche_llm.llm.counts import Counts
from touche_llm.llm.model import ModelClient
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

    Attributes:
        config: Configuration, as of a run.
        names: Names or template paths of two prompts or more, or variants that are loaded already.
        qrels: Human judgments.
        plan: Plan of the sample.
    """

    config: Config
    names: Sequence[str | Variant]
    qrels: Qrels
    plan: Plan = field(default_factory=Plan)


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """Result of a comparison: judgments and measures of each part of the sample.

    Attributes:
        task: Task of the prompts.
        variants: Variants in the given order; the others are compared with the first.
        topics: Sampled topics in the order of the topics file, with the objects that the model
            found.
        model: Name of the model.
        parts: Measures of each part: the one to choose on, then the held-out one if it was judged.
        judged: Judgments by part and variant.
        object_failures: Failures to find a topic's objects.
        texts: Texts of the sampled documents, by id.
        notes: Notes for the user.
        earlier_accesses: Those that make a confirmation weaker; None if held-out topics were not
            judged.
    """

    task: Task
    variants: Sequence[Variant]
    topics: Sequence[Topic]
    model: str
    parts: Sequence[PartMeasures]
    judged: Mapping[tuple[str, str], VariantJudgments]
    object_failures: Sequence[Failure]
    texts: Mapping[str, str]
    notes: Sequence[str]
    earlier_accesses: Sequence[Access] | None

    @property
    def verdict(self) -> Verdict:
        """Return the best variant, and whether it was confirmed."""
        return decide_verdict(self.parts)

    def variants_in(self, part: PartMeasures) -> list[Variant]:
        """Return the variants that judged a part."""
        return [variant for variant in self.variants if (part.name, variant.name) in self.judged]

    def all_failures(self) -> list[Failure]:
        """Return the failures of all variants and of the topics."""
        failures = list(self.object_failures)
        for judgments in self.judged.values():
            failures.extend(judgments.failures)
        return failures


async def compare_prompts(inputs: ComparisonInputs, progress: Progress) -> PromptComparison:
    """Judge one sample with several prompts, and measure each by human judgments.

    The prompt with the best nDCG@5 is chosen on one part of the sample; another part, which is held
    out, can confirm the choice.

    Args:
        inputs: Prompts, human judgments and the plan of the sample.
        progress: Shows the progress and warnings.

    Raises:
        DataError: A file is invalid, or the model found objects for no topic.
        EngineError: The engine failed, or the labels of no answer can be read.
        PromptError: A prompt is invalid.
        ReplayMiss: The cache of a replay lacks an answer.
        UsageError: A prompt does not judge documents or has an example from the sample, or the
            sample is too small.
    """
    notes = _Notes(progress)
    with RunContext(inputs.config, progress) as context:
        work = await _prepare_work(context, inputs, notes)
        # A malformed log is an error before any request is sent.
        check_log(_find_log(inputs.config))
        measured = await _measure_work(context, work, inputs.qrels, notes)
        texts = _read_texts(context, measured.parts)

    measures = [part.measures for part in measured.parts]
    _note_intervals(measures, notes)
    return PromptComparison(
        task=context.task,
        variants=work.variants,
        topics=measured.topics,
        model=measured.model,
        parts=measures,
        judged=_index_judgments(measured.parts),
        object_failures=measured.object_failures,
        texts=texts,
        notes=notes.texts,
        earlier_accesses=measured.earlier_accesses,
    )


async def _measure_work(
    context: RunContext, work: _Work, qrels: Qrels, notes: _Notes
) -> _MeasuredWork:
    """Let the model find missing objects and judge the sample, and measure its judgments.

    Raises:
        DataError: The model found objects for no topic.
        EngineError: The engine failed, or the labels of no answer can be read.
        ReplayMiss: The cache of a replay lacks an answer.
        UsageError: Too few topics are left to measure an order.
    """
    config = context.config
    opening = open_client(
        config.engine,
        config.sampling,
        config.cache,
        schemas=list_schemas(variant.prompt for variant in work.variants),
        progress=context.progress,
    )
    async with opening as model:
        requester = make_requester(model)
        named = await _find_objects(context, work, requester, notes)
        judge = _PartJudge(context, qrels, named.work, requester)
        sample = await _choose_and_confirm(judge, notes)
        report_known_failures(context.progress, model, before=Counts())
        return _MeasuredWork(
            model=model.engine_info.model,
            topics=named.work.topics,
            object_failures=named.failures,
            parts=sample.parts,
            earlier_accesses=sample.earlier_accesses,
        )


async def estimate_comparison(inputs: ComparisonInputs, progress: Progress) -> DryRun:
    """Estimate the requests on the topics to choose on; nothing is sent, and no access recorded.

    Args:
        inputs: Prompts, human judgments and the plan of the sample.
        progress: Shows the progress and warnings.

    Raises:
        DataError: A file is invalid.
        PromptError: A prompt is invalid.
        UsageError: A prompt does not judge documents or has an example from the sample, or the
            sample is too small.
    """
    notes = _Notes(progress)
    with RunContext(inputs.config, progress) as context:
        work = await _prepare_work(context, inputs, notes)
        context.progress = ForwardedProgress(progress, "dry run")
        part = work.first_part
        estimate = _Estimate(inputs.config, part)

        async with estimate.open_requester("objects") as requester:
            named = await _find_objects(context, work, requester, notes)
        for variant in work.variants:
            # A requester counts by the name of a prompt, which two variants can share.
            async with estimate.open_requester(part) as requester:
                part_judge = _PartJudge(context, inputs.qrels, named.work, requester)
                await part_judge.judge(part, [variant])
    return estimate.dry_run


class _Estimate:
    """Estimate of a comparison, which collects the requests of its stages.

    Attributes:
        dry_run: Requests so far.
    """

    def __init__(self, config: Config, part: str) -> None:
        """Start an estimate that has no requests yet.

        Args:
            config: Configuration of the comparison.
            part: Part of the sample that the requests are about.
        """
        self.dry_run = DryRun(known={part: 0}, failed={part: 0})
        self._config = config
        self._part = part
        # Each engine adds the answers that it gives, so that later variants find them answered.
        self._answered: set[str] = set()

    @asynccontextmanager
    async def open_requester(self, stage: str) -> AsyncIterator[Requester]:
        """Open a requester that sends nothing; when it is closed, add its requests to the estimate.

        Args:
            stage: Stage of the comparison, under which the requests are listed.
        """
        engine = DryRunEngine(answered=self._answered)
        async with open_dry_client(self._config, engine) as model:
            yield make_requester(model)
        self._add_requests(stage, engine, model)

    def _add_requests(self, stage: str, engine: DryRunEngine, model: ModelClient) -> None:
        """Add the requests of a stage, and count those that need not be sent."""
        self.dry_run.context = find_context(self._config, model)
        # An answer is known from the cache, or from an earlier request of the comparison.
        self.dry_run.known[self._part] += model.counts.cache_hits + engine.repeated
        self.dry_run.failed[self._part] += model.counts.known_failures
        for prompt, usage in engine.usage.items():
            self.dry_run.costs.append(Cost(stage, prompt, usage))


class _Notes:
    """Notes for the user, each of which is also a warning.

    Attributes:
        texts: Notes so far.
    """

    def __init__(self, progress: Progress) -> None:
        self.texts: list[str] = []
        self._progress = progress

    def add(self, text: str) -> None:
        """Add a note, and warn."""
        self.texts.append(text)
        self._progress.warn(text)


@dataclass(frozen=True, slots=True)
class _Work:
    """What a comparison judges, and with which prompts.

    Attributes:
        variants: Variants in the given order.
        objects_prompt: Prompt that finds the objects of topics; None if each names its own.
        topics: Sampled topics in the order of the topics file.
        samples: Documents by name of the part: the one to choose on, then the held-out one if it is
            to be judged.
    """

    variants: list[Variant]
    objects_prompt: Prompt | None
    topics: list[Topic]
    samples: dict[str, list[Sampled]]

    @property
    def first_part(self) -> str:
        """Name of the part to choose on."""
        return next(iter(self.samples))

    def list_documents(self, part: str) -> list[TopicDocument]:
        """Return the documents of a part, with their topics."""
        topics = {topic.id: topic for topic in self.topics}
        return [
            TopicDocument(topics[document.topic_id], document.document_id)
            for document in self.samples[part]
        ]

    def list_titles(self, part: str) -> list[str]:
        """Return the different titles of the topics of a part."""
        topics = _select_topics(self.topics, {part: self.samples[part]})
        return list(dict.fromkeys(topic.title for topic in topics))

    def restrict_to(self, topics: list[Topic]) -> _Work:
        """Return the work on some of the topics.

        Raises:
            UsageError: Too few topics are left to measure an order.
        """
        topic_ids = {topic.id for topic in topics}
        samples: dict[str, list[Sampled]] = {}
        for part, sample in self.samples.items():
            samples[part] = [document for document in sample if document.topic_id in topic_ids]
        check_parts(samples)
        return replace(self, topics=topics, samples=samples)


async def _prepare_work(context: RunContext, inputs: ComparisonInputs, notes: _Notes) -> _Work:
    """Load the prompts to compare, and draw a sample of judged documents.

    Raises:
        DataError: None of the judged documents is in the corpus.
        PromptError: A prompt is invalid.
        UsageError: There are no grades, the sample is too small, or a prompt does not judge
            documents or has an example from the sample.
    """
    task = context.task
    grades = _find_grades(inputs.qrels, task)
    variants = load_variants(inputs.names, context.config, task)

    await _fetch_judged(context, grades)
    sample = choose_sample(inputs.plan, grades, context.topics, context.corpus.documents)
    sampled_topics = _select_topics(context.topics, sample.parts)
    objects_prompt = _load_objects_prompt(context, sampled_topics)
    # Held-out topics count too, even if the choice is not to be confirmed on them now.
    _check_examples(context, variants, objects_prompt, sampled_topics)

    judged_parts = _list_judged_parts(sample.parts, inputs.plan)
    check_parts(judged_parts)
    for note in sample.notes:
        notes.add(note)

    return _Work(
        variants=variants,
        objects_prompt=objects_prompt,
        topics=_select_topics(sampled_topics, judged_parts),
        samples=judged_parts,
    )


def _list_judged_parts(parts: Mapping[str, list[Sampled]], plan: Plan) -> dict[str, list[Sampled]]:
    """Return the parts of a sample without the held-out one, unless it is to confirm the choice."""
    return {part: sample for part, sample in parts.items() if plan.confirm or part != HOLD_OUT}


def _check_examples(
    context: RunContext,
    variants: Iterable[Variant],
    objects_prompt: Prompt | None,
    topics: list[Topic],
) -> None:
    """Raise UsageError if a prompt shows the model an example from the topics it is measured on."""
    prompts = [variant.prompt for variant in variants]
    if objects_prompt is not None:
        prompts.append(objects_prompt)
    for prompt in prompts:
        check_examples(prompt, topics, context.config.topics, context.progress.warn)


def _find_grades(qrels: Qrels, task: Task) -> Grades:
    """Return the grades by which documents are drawn: those of the first aspect.

    Raises:
        UsageError: There are none.
    """
    if not qrels.grades:
        aspects = ", ".join(task.aspects)
        raise UsageError(
            f"qrels: no grades, by which documents are drawn; give those of at least one of {aspects}"
        )
    return next(iter(qrels.grades.values()))


async def _fetch_judged(context: RunContext, grades: Grades) -> None:
    """Load the judged documents of the topics, if the corpus is a search engine."""
    document_ids: list[str] = []
    for topic in context.topics:
        document_ids.extend(grades.get(topic.id, {}))
    await context.corpus.fetch(document_ids)


def _load_objects_prompt(context: RunContext, topics: Iterable[Topic]) -> Prompt | None:
    """Load the prompt that finds the two objects which a topic compares.

    None if each topic names its own, or the task needs none.
    """
    task = context.task
    needs_objects = task.objects_answer is not None
    lacks_objects = any(topic.objects is None for topic in topics)
    if not needs_objects or not lacks_objects:
        return None

    prompts = context.config.prompts
    return load(task, purposes_of(task)["objects"], prompts.objects, prompts.folder)


def _select_topics(
    topics: Iterable[Topic], samples: Mapping[str, Sequence[Sampled]]
) -> list[Topic]:
    """Return the topics with a sampled document."""
    sampled: set[str] = set()
    for sample in samples.values():
        sampled.update(document.topic_id for document in sample)
    return [topic for topic in topics if topic.id in sampled]


@dataclass(frozen=True, slots=True)
class _NamedWork:
    """Work on topics that all have objects, and failures to find these."""

    work: _Work
    failures: list[Failure]


async def _find_objects(
    context: RunContext, work: _Work, requester: Requester, notes: _Notes
) -> _NamedWork:
    """Let the model find the objects of topics that name none; leave out topics where it fails.

    Raises:
        DataError: The model found objects for no topic.
        EngineError: The engine failed.
        ReplayMiss: The cache of a replay lacks an answer.
        UsageError: Too few topics are left to measure an order.
    """
    if work.objects_prompt is None:
        return _NamedWork(work, failures=[])

    unnamed = sum(topic.objects is None for topic in work.topics)
    with context.progress.stage("finding objects", unnamed, requester.client.counts) as done:
        outcomes = await find_objects(work.topics, work.objects_prompt, requester, done)
    requester.client.raise_on_misses()

    topics = add_objects(work.topics, outcomes.results)
    named_topics = _leave_out_unnamed(topics, notes)
    return _NamedWork(work.restrict_to(named_topics), outcomes.failures)


def _leave_out_unnamed(topics: Iterable[Topic], notes: _Notes) -> list[Topic]:
    """Return the topics with objects, and note which ones are left out.

    Raises:
        DataError: No topic has objects.
    """
    named_topics: list[Topic] = []
    unnamed_ids: list[str] = []
    for topic in topics:
        if topic.objects is None:
            unnamed_ids.append(topic.id)
        else:
            named_topics.append(topic)

    if unnamed_ids:
        notes.add(
            f"topics left out, since the model found no two objects in their titles: {shorten(unnamed_ids)}"
        )
    if not named_topics:
        raise DataError(
            "the model found no two objects in the title of any topic; name them in <objects>"
        )
    return named_topics


@dataclass(frozen=True, slots=True)
class _MeasuredPart:
    """Judgments and measures of a part of the sample.

    Attributes:
        measures: Measures of the variants.
        judgments: Judgments by variant.
        prompts: Labels of the prompts of the variants.
        earlier: Earlier accesses to the topics of the part.
    """

    measures: PartMeasures
    judgments: dict[str, VariantJudgments]
    prompts: list[str]
    earlier: list[Access]


@dataclass(frozen=True, slots=True)
class _PartJudge:
    """Judge of the parts of a sample.

    Attributes:
        context: Context with the task, the documents and the progress.
        qrels: Human judgments.
        work: Variants, topics and documents.
        requester: Client of the model, and the builder of its requests.
    """

    context: RunContext
    qrels: Qrels
    work: _Work
    requester: Requester

    async def judge(self, part: str, variants: Sequence[Variant]) -> dict[str, VariantJudgments]:
        """Judge the documents of a part with each variant, and return the judgments by variant.

        Raises:
            EngineError: The engine failed, or the labels of no answer can be read.
            ReplayMiss: The cache of a replay lacks an answer.
        """
        documents = self.work.list_documents(part)
        judgments: dict[str, VariantJudgments] = {}
        for variant in variants:
            judgments[variant.name] = await judge_variant(
                self.context, variant, documents, self.requester
            )

        client = self.requester.client
        client.raise_on_misses()
        client.labels.raise_on_unread()
        return judgments

    async def measure(self, kind: Kind, part: str, variants: Sequence[Variant]) -> _MeasuredPart:
        """Judge a part with each variant, and measure the judgments.

        The more prompts are tried on the same topics, the less a good measure proves. So each access
        to the topics is logged, before its measures are known.

        Raises:
            EngineError: The engine failed, or the labels of no answer can be read.
            ReplayMiss: The cache of a replay lacks an answer.
        """
        config = self.context.config
        judged = await self.judge(part, variants)
        access = Access(
            kind=kind,
            topics=self.work.list_titles(part),
            prompts=[variant.prompt.label for variant in variants],
        )
        earlier_accesses = record_access(_find_log(config), access)

        judgments = {name: variant_judged.judgments for name, variant_judged in judged.items()}
        measures = measure_part(
            name=part,
            sample=self.work.samples[part],
            judgments=judgments,
            qrels=self.qrels,
            weights=config.weights,
            task=self.context.task,
        )
        return _MeasuredPart(measures, judged, access.prompts, earlier_accesses)


@dataclass(frozen=True, slots=True)
class _MeasuredSample:
    """Judgments and measures of the parts of a sample.

    Attributes:
        parts: The part to choose on, then the held-out one if it was judged.
        earlier_accesses: Accesses that weaken a confirmation; None if none was tried.
    """

    parts: list[_MeasuredPart]
    earlier_accesses: list[Access] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasuredWork:
    """What a model judged, and the measures of its judgments.

    Attributes:
        model: Name of the model.
        topics: Topics with the objects that the model found; topics without objects are left out.
        object_failures: Failures to find a topic's objects.
        parts: The part to choose on, then the held-out one if it was judged.
        earlier_accesses: Accesses that weaken a confirmation; None if none was tried.
    """

    model: str
    topics: list[Topic]
    object_failures: list[Failure]
    parts: list[_MeasuredPart]
    earlier_accesses: list[Access] | None


async def _choose_and_confirm(judge: _PartJudge, notes: _Notes) -> _MeasuredSample:
    """Measure all variants on one part, and the baseline and the winner on the held-out part.

    The baseline is the first variant, and the winner the best. The held-out part is not judged if
    the baseline is the winner or the comparison is not to be confirmed; then `earlier_accesses` is
    None.
    """
    variants = judge.work.variants
    choice = await judge.measure("choice", judge.work.first_part, variants)

    winner_name = choose_winner(choice.measures)
    has_held_out = bool(judge.work.samples.get(HOLD_OUT))
    if not has_held_out or winner_name == choice.measures.baseline:
        return _MeasuredSample([choice], earlier_accesses=None)

    baseline = variants[0]
    winner = next(variant for variant in variants if variant.name == winner_name)
    confirmation = await judge.measure("confirmation", HOLD_OUT, [baseline, winner])
    earlier_accesses = _note_accesses(confirmation, judge.context.config, notes)
    return _MeasuredSample([choice, confirmation], earlier_accesses)


def _note_accesses(confirmation: _MeasuredPart, config: Config, notes: _Notes) -> list[Access]:
    """Note earlier accesses to held-out topics; return those that weaken the confirmation."""
    _, winner_prompt = confirmation.prompts
    counted = select_counted(confirmation.earlier, winner_prompt)
    notes.add(f"{_find_log(config)}: {describe_accesses(confirmation.earlier, counted)}")
    return counted


def _note_intervals(parts: Iterable[PartMeasures], notes: _Notes) -> None:
    """Note which confidence intervals of differences are missing or unreliable."""
    differences: list[Mapping[str, Any]] = []
    for part in parts:
        differences.extend(part.differences.values())
    for note in describe_intervals(differences):
        notes.add(note)


def _find_log(config: Config) -> Path:
    """Return the log of accesses to judged topics."""
    return access_log(config.cache.file)


def _read_texts(context: RunContext, parts: Iterable[_MeasuredPart]) -> dict[str, str]:
    """Return the texts of the sampled documents, by id."""
    documents = context.corpus.documents
    texts: dict[str, str] = {}
    for part in parts:
        for sampled in part.measures.sample:
            document = documents.get(sampled.document_id)
            texts[sampled.document_id] = document.text
    return texts


def _index_judgments(
    parts: Iterable[_MeasuredPart],
) -> dict[tuple[str, str], VariantJudgments]:
    """Return the judgments by part and variant."""
    judgments: dict[tuple[str, str], VariantJudgments] = {}
    for part in parts:
        for variant, variant_judgments in part.judgments.items():
            judgments[part.measures.name, variant] = variant_judgments
    return judgments
