"""Several wordings of a prompt over one sample: each judges the same documents, and each is held against people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from touche_llm.config import Config
from touche_llm.data.records import Failure, Judgment, Topic
from touche_llm.data.topics import read_topics
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.evaluation.qrels import Qrels
from touche_llm.judging.pointwise import Documents, RequestBuilder, find_objects, judge
from touche_llm.llm.counts import Counts
from touche_llm.llm.model import LanguageModel
from touche_llm.pipeline.candidates import choose_topics, open_corpus
from touche_llm.pipeline.common import Progress, check_examples, make_request_builder, report_known_failures
from touche_llm.pipeline.engines import open_model
from touche_llm.prompt_lab.draw import Sampled
from touche_llm.prompt_lab.looks import Look, describe_looks, look_log, make_look, read_looks, record_look
from touche_llm.prompt_lab.measures import Part, Verdict, measure_part, verdict_of, winner_of
from touche_llm.prompt_lab.sample import HOLD_OUT, Plan, check_parts, parts_of, sample_of, split_topics
from touche_llm.prompts.catalog import load_named
from touche_llm.prompts.prompt import Prompt, check_overlay
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task

PURPOSE = "judge"


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the wordings, by the name or path that it was given as."""

    name: str
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Said:
    """What one variant said of the documents of one part, what failed, and what it cost."""

    judgments: dict[tuple[str, str], Judgment]
    failures: list[Failure]
    counts: Counts


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """What came of a comparison.

    Attributes:
        task: whose prompts.
        variants: in the order given; the others are held against the first.
        model: that judged.
        topics: with sampled documents, in the order of the topics' file, with the objects that the model found.
        sample_file: where the sample is.
        parts: of the sample; two where the choice was to be confirmed, of which the first is the one to choose on.
        said: by part and variant; of the topics held out only the first variant and the best.
        failures: of finding a topic's objects.
        verdict: which variant is the best, and whether that was confirmed.
        texts: of the documents, by id, where they were asked for.
        notes: what people should know.
        earlier_looks: Looks at the topics held out before this one; None where these were not opened.
    """

    task: Task
    variants: list[Variant]
    model: str
    topics: list[Topic]
    sample_file: Path
    parts: list[Part]
    said: dict[tuple[str, str], Said]
    failures: list[Failure]
    verdict: Verdict
    texts: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    earlier_looks: list[Look] | None = None

    def variants_in(self, part: Part) -> list[Variant]:
        """Return the variants that judged a part."""
        return [variant for variant in self.variants if (part.name, variant.name) in self.said]

    def all_failures(self) -> list[Failure]:
        """Of all variants, and of the topics."""
        return [*self.failures, *(failure for said in self.said.values() for failure in said.failures)]


async def compare_prompts(
    config: Config, names: Sequence[str], qrels: Qrels, plan: Plan, progress: Progress
) -> PromptComparison:
    """Judge one sample with several prompts, and measure each by what people said.

    Args:
        config: says how to ask, and where the documents are.
        names: of two prompts or more, or paths of templates.
        qrels: of people, with grades.
        plan: what is compared.
        progress: Receives warnings and the progress of each stage.

    Raises:
        PromptError: a prompt is not there, or not as it should be.
        UsageError: what is asked for cannot be done: prompts that do not judge, examples from the sample.
        DataError: judgments or a sample that do not fit the topics and the corpus.
        ReplayMiss: in replay, when the cache lacks an answer.
    """
    task = get_task(config.task)
    if not qrels.grades:
        raise UsageError("documents are drawn by their grades; give --relevance or others of them")
    variants = load_variants(names, config, task)
    topics = choose_topics(config)
    judged = next(iter(qrels.grades.values()))
    known = [topic.id for topic in read_topics(config.topics) if topic.id in judged]
    halves = split_topics(known, plan.split)
    with open_corpus(config, task, progress.warn) as corpus:
        await corpus.fetch(document for topic in topics for document in judged.get(topic.id, {}))
        sample, path, notes = sample_of(plan, qrels, topics, halves, corpus, task)
        sampled = {each.topic_id for each in sample}
        topics = [topic for topic in topics if topic.id in sampled]
        prompts = [variant.prompt for variant in variants]
        if task.objects_answer is not None and any(topic.objects is None for topic in topics):
            finding = load(task, purposes_of(task)["objects"], config.prompts.objects, config.prompts.folder)
            prompts.append(finding)
        for prompt in prompts:
            check_examples(prompt, topics, config.topics, progress.warn)
        # Before the engine starts: what is wrong with the sample or with the log.
        parted, remarks = parts_of(plan, sample, halves)
        read_looks(look_log(config.cache.file))
        asked = {each.topic_id for documents in parted.values() for each in documents}
        topics = [topic for topic in topics if topic.id in asked]
        notes += remarks
        for note in notes:
            progress.warn(note)
        async with open_model(config) as model:
            builder = make_request_builder(config, model)
            failures: list[Failure] = []
            if len(prompts) > len(variants):
                topics, failures = await _with_objects(topics, task, prompts[-1], builder, progress)
                left = {topic.id for topic in topics}
                parted = {
                    name: [each for each in documents if each.topic_id in left] for name, documents in parted.items()
                }
                check_parts(parted)
            by_id = {topic.id: topic for topic in topics}
            ask = partial(
                ask_variants, topics=by_id, documents=corpus.documents, task=task, builder=builder, progress=progress
            )
            held = parted.pop(HOLD_OUT, [])
            said = await ask(variants, parted)
            for documents in parted.values():
                _count_look(config, qrels, documents, variants)
            parts = [_measure(name, documents, said, qrels, config) for name, documents in parted.items()]
            finalists = list(dict.fromkeys((variants[0].name, winner_of(parts[0]))))
            earlier = None
            if held and len(finalists) > 1:
                compared = [variant for variant in variants if variant.name in finalists]
                said |= await ask(compared, {HOLD_OUT: held})
                earlier = _count_look(config, qrels, held, compared)
                notes.append(note := describe_looks(earlier, look_log(config.cache.file)))
                progress.warn(note)
                parts.append(_measure(HOLD_OUT, held, said, qrels, config))
            report_known_failures(progress, model, Counts())
        texts = _texts([each for part in parts for each in part.sample], corpus.documents) if plan.texts else {}
    if useless := [each for part in parts for each in part.topics if not part.counts(each)]:
        notes.append(
            f"topics without a grade above 0 among their sampled documents, left out of nDCG: {shorten(useless)}"
        )
        progress.warn(notes[-1])
    verdict, name = verdict_of(parts), model.facts.model
    return PromptComparison(task, variants, name, topics, path, parts, said, failures, verdict, texts, notes, earlier)


def _measure(
    name: str, documents: Sequence[Sampled], said: Mapping[tuple[str, str], Said], qrels: Qrels, config: Config
) -> Part:
    """Measure what was said of one part."""
    judgments = {variant: each.judgments for (part, variant), each in said.items() if part == name}
    return measure_part(name, documents, judgments, qrels, config.weights)


def _count_look(config: Config, qrels: Qrels, seen: Sequence[Sampled], compared: Sequence[Variant]) -> list[Look]:
    """Count a look at topics before anybody sees a figure; return the earlier ones at any of them."""
    aspect, grades = next(iter(qrels.grades.items()))
    prompts = [(variant.name, variant.prompt) for variant in compared]
    topics = list(dict.fromkeys(each.topic_id for each in seen))
    return record_look(look_log(config.cache.file), make_look(config.task, aspect, grades, topics, prompts))


def load_variants(names: Sequence[str], config: Config, task: Task) -> list[Variant]:
    """The prompts that are compared; raises UsageError where one of them does not judge, or is given twice."""
    folder = config.prompts.folder
    if len(names) < 2:
        raise UsageError(f"{', '.join(names) or 'no prompt'} alone cannot be compared; name two prompts or more")
    if folder is not None:
        check_overlay(folder, task.name, {each for each in (*purposes_of(task), *names) if not each.endswith(".jinja")})
    variants: list[Variant] = []
    for name in names:
        purpose, prompt = load_named(task, name, folder)
        if purpose.name != PURPOSE:
            asked = "documents" if task.sentence_question is None else "pairs of sentences"
            raise UsageError(
                f"{name}: is for {purpose.name!r}; only those for {PURPOSE!r}, which judge {asked} one by one, "
                "can be compared"
            )
        if any(prompt.path.resolve() == each.prompt.path.resolve() for each in variants):
            raise UsageError(f"{name}: is given twice; name each prompt once")
        variants.append(Variant(name, prompt))
    return variants


async def ask_variants(
    variants: Sequence[Variant],
    parts: Mapping[str, Sequence[Sampled]],
    topics: Mapping[str, Topic],
    documents: Documents,
    task: Task,
    builder: RequestBuilder,
    progress: Progress,
) -> dict[tuple[str, str], Said]:
    """What each variant says of each part, by part and variant; what the cache holds is not asked again.

    Raises:
        ReplayMiss: in replay, when the cache lacks an answer to any of them.
    """
    model, said = builder.model, dict[tuple[str, str], Said]()
    for variant in variants:
        with progress.stage(f"judging with {variant.name}", sum(map(len, parts.values())), model.counts) as done:
            for name, sample in parts.items():
                before = replace(model.counts)
                work = [(topics[each.topic_id], each.document_id) for each in sample]
                judgments, failures = await judge(work, documents, task.question, variant.prompt, builder, done)
                found = {(each.topic_id, each.document_id): each for each in judgments}
                said[name, variant.name] = Said(found, failures, model.counts.since(before))
    model.raise_on_misses()
    return said


async def _with_objects(
    topics: list[Topic], task: Task, prompt: Prompt, builder: RequestBuilder, progress: Progress
) -> tuple[list[Topic], list[Failure]]:
    """The topics that can be asked about, with their objects, and failures to find some."""
    model: LanguageModel = builder.model
    without = sum(topic.objects is None for topic in topics)
    with progress.stage("finding objects", without, model.counts) as done:
        found, failures = await find_objects(topics, task, prompt, builder, done)
    model.raise_on_misses()
    found = [topic for topic in found if topic.objects is not None]
    if not found:
        raise DataError("the model found no two objects in the title of any topic; name them in <objects>")
    return found, failures


def _texts(sample: Iterable[Sampled], documents: Documents) -> dict[str, str]:
    return {each.document_id: documents.get(each.document_id).text for each in sample}
