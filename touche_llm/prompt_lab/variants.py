"""Variants of a comparison: their judgments of a sample, their agreement with human ones, and the best of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from touche_llm.config.configuration import Config
from touche_llm.data.measure import CUTOFF, MACRO_F1, Measure, MeasureName, make_headline_ndcg
from touche_llm.data.records import Candidate, Failure, Judgment, ScoredDocument
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.data.runs.writing import NO_STANCE_COLUMN
from touche_llm.errors import UsageError
from touche_llm.evaluation.agreement import estimate_stances
from touche_llm.evaluation.judges.agreement import (
    CORRELATION,
    AgreementName,
    estimate_tables,
    join_labels,
    list_common_documents,
)
from touche_llm.evaluation.judges.labels import take_judgment_labels, take_people_labels
from touche_llm.evaluation.measures import estimate_grades
from touche_llm.evaluation.qrels import Grades, Qrels
from touche_llm.evaluation.significance import Estimate, compare, estimate_mean
from touche_llm.judging.grades import mean_off_label_mass
from touche_llm.judging.judgments import group_judgments, judge
from touche_llm.judging.requests import Requester, TopicDocument
from touche_llm.llm.counts import Counts
from touche_llm.prompt_lab.sample import ALL, CONFIRMED_BELOW, Sampled
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import load_named
from touche_llm.ranking.scores import rank_by_judgment
from touche_llm.runs.context import RunContext
from touche_llm.tasks.parts import Scale
from touche_llm.tasks.task import Task

PURPOSE = "judge"


# Judgments by topic id and document id.
Judgments = Mapping[tuple[str, str], Judgment]

ValueT = TypeVar("ValueT", str, float)


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the compared prompts, with the name or path that it was given by."""

    name: str
    prompt: Prompt


def load_variants(names: Sequence[str | Variant], config: Config, task: Task) -> list[Variant]:
    """Load the prompts to compare.

    Args:
        names: Names or paths of prompts; variants are loaded already, as drafts are, which have no
            file of their own.
        config: Configuration with the folder of templates.
        task: Task of the prompts.

    Raises:
        PromptError: A prompt is invalid.
        UsageError: There are fewer than two prompts, one is given twice, or one judges no documents.
    """
    if len(names) < 2:
        given = ", ".join(map(str, names)) or "no prompt"
        raise UsageError(f"{given} alone cannot be compared; name two or more")

    variants: list[Variant] = []
    for name in names:
        if isinstance(name, Variant):
            variants.append(name)
            continue

        prompt = _load_judge_prompt(name, config, task)
        path = prompt.path.resolve()
        if any(path == other.prompt.path.resolve() for other in variants):
            raise UsageError(f"{name}: is given twice; name each prompt once")
        variants.append(Variant(name, prompt))
    return variants


def _load_judge_prompt(name: str, config: Config, task: Task) -> Prompt:
    """Load a prompt that judges documents; raise UsageError if it has another purpose."""
    loaded = load_named(task, name, config.prompts.folder, config.judge_per)
    if loaded.purpose.name != PURPOSE:
        raise UsageError(
            f"{name}: is a prompt for {loaded.purpose.name!r}; only those for {PURPOSE!r} can be compared"
        )
    return loaded.prompt


@dataclass(frozen=True, slots=True)
class VariantJudgments:
    """Judgments, failures and counts of one variant on one part of the sample."""

    judgments: dict[tuple[str, str], Judgment]
    failures: list[Failure]
    counts: Counts


async def judge_variant(
    context: RunContext, variant: Variant, work: list[TopicDocument], requester: Requester
) -> VariantJudgments:
    """Judge documents with a variant.

    Args:
        context: Context with the task, the documents and the progress.
        variant: Variant to judge with.
        work: Documents to judge, topic by topic.
        requester: Client of the model, and the builder of its requests; misses of a replay are in the client.

    Returns:
        Judgments, with the grades on the scales of the human ones.

    Raises:
        EngineError: The engine failed, or the labels of no answer can be read.
        PromptError: The prompt is invalid, or leaves no room for a document.
    """
    task = context.task
    model = requester.client
    before = replace(model.counts)
    total = len(work) * variant.prompt.requests_per_document
    with context.progress.stage(f"judging with {variant.name}", total, model.counts) as done:
        outcomes = await judge(
            work=work,
            documents=context.corpus.documents,
            question=task.question,
            prompt=variant.prompt,
            requester=requester,
            done=done,
        )

    judgments = {
        (judgment.topic_id, judgment.document_id): judgment for judgment in outcomes.results
    }
    return VariantJudgments(judgments, outcomes.failures, model.counts.since(before))


@dataclass(frozen=True, slots=True)
class PartMeasures:
    """Measures over one part of the sample: all, choice or hold-out.

    Attributes:
        name: Name of the part.
        sample: Documents of the part.
        estimates: Estimates by variant and measure: nDCG@5 by the first aspect's grades, kappa or
            Spearman's correlation by those of each aspect, macro-F1 of the stance if there are stance
            qrels.
        differences: Rows of `significance.compare` with the first variant, by variant and measure.
        chance: Expected nDCG@5 of a random order of the sample.
        off_label_mass: Mean probability outside the labels by variant; None if no engine reported
            it.
    """

    name: str
    sample: list[Sampled]
    estimates: dict[str, dict[Measure, Estimate]]
    differences: dict[tuple[str, Measure], Mapping[str, Any]]
    chance: float
    off_label_mass: dict[str, float | None]

    @property
    def topics(self) -> list[str]:
        """Ids of the topics of the documents."""
        return list(dict.fromkeys(document.topic_id for document in self.sample))

    @property
    def baseline(self) -> str:
        """Name of the first variant, which the others are compared with."""
        return next(iter(self.estimates))

    @property
    def measures(self) -> list[Measure]:
        """Measures, nDCG@5 first."""
        return list(self.estimates[self.baseline])

    @property
    def headline_measure(self) -> Measure:
        """Measure by which the best variant is chosen: nDCG@5."""
        return self.measures[0]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The best variant, and whether it is better than the first.

    Attributes:
        winner: Name of the best variant.
        confirmed: Whether held-out topics confirm that it is better than the first; None if that
            was not tested.
        sentence: Verdict in words.
    """

    winner: str
    confirmed: bool | None
    sentence: str


def measure_part(
    name: str,
    sample: Sequence[Sampled],
    judgments: Mapping[str, Judgments],
    qrels: Qrels,
    weights: Mapping[str, float],
    task: Task,
) -> PartMeasures:
    """Measure the judgments of several variants for the documents of a part.

    nDCG@5 ranks the sampled documents of each topic by the weights of a run, documents without a
    judgment last. Its ideal ranking consists of these documents, and topics without a grade above 0
    among them are left out. The other measures are over the documents that a variant judged.

    Args:
        name: Name of the part.
        sample: Documents of the part.
        judgments: Judgments by variant; the others are compared with the first.
        qrels: Human judgments.
        weights: Weights of the aspects and of the first stage.
        task: Task of the prompts.
    """
    sampled_qrels = _select_sampled(qrels, sample)
    estimates: dict[str, dict[Measure, Estimate]] = {}
    off_label_masses: dict[str, float | None] = {}
    for variant, variant_judgments in judgments.items():
        estimates[variant] = _estimate_variant(
            run=_rank_documents(sample, variant_judgments, weights, task.aspects),
            judgments=variant_judgments,
            qrels=sampled_qrels,
            task=task,
            has_stance_qrels=bool(qrels.stances),
        )
        off_label_masses[variant] = mean_off_label_mass(variant_judgments.values())

    baseline = next(iter(judgments))
    differences: dict[tuple[str, Measure], Mapping[str, Any]] = {}
    for row in compare(baseline, estimates).to_dict("records"):
        differences[row["run"], row["measure"]] = row

    return PartMeasures(
        name=name,
        sample=list(sample),
        estimates=estimates,
        differences=differences,
        chance=compute_chance_ndcg(_select_relevant(sampled_qrels)).value,
        off_label_mass=off_label_masses,
    )


def choose_winner(part: PartMeasures) -> str:
    """Return the best variant by nDCG@5; the earlier one of a tie, and an undefined value last."""
    values: dict[str, float] = {}
    for variant, estimates in part.estimates.items():
        value = estimates[part.headline_measure].value
        values[variant] = -math.inf if math.isnan(value) else value
    return max(values, key=values.__getitem__)


def decide_verdict(parts: Sequence[PartMeasures]) -> Verdict:
    """Choose the best variant on one part of the sample, and test it on another.

    Args:
        parts: The part to choose on and, if the choice is to be confirmed, the held-out one.
    """
    choice = parts[0]
    winner = choose_winner(choice)
    if winner == choice.baseline:
        return Verdict(winner, confirmed=None, sentence=_describe_no_choice(choice))

    sentence = _describe_choice(choice, winner)
    if len(parts) == 1:
        doubt = "the best of several can be it by chance; confirm it on the topics held out"
        return Verdict(winner, confirmed=None, sentence=f"{sentence} Not confirmed: {doubt}.")

    # The interval decides nothing: few topics have one, and for some data it is too narrow.
    held_out = parts[1]
    change = held_out.differences[winner, choice.headline_measure]
    is_confirmed = change["difference"] > 0.0 and change["p"] < CONFIRMED_BELOW
    result = "Confirmed" if is_confirmed else "Not confirmed"
    reason = (
        f"on the {change['n']} topics held out the difference is {change['difference']:+.4f}, "
        f"p = {change['p']:.4f}"
    )
    return Verdict(winner, is_confirmed, f"{sentence} {result}: {reason}.")


def _describe_no_choice(choice: PartMeasures) -> str:
    """Return the verdict that no variant is better than the first."""
    measure = choice.headline_measure
    value = choice.estimates[choice.baseline][measure].value
    return (
        f"No variant has a better {measure} than {choice.baseline}, the first ({value:.4f}), on "
        f"{_describe_topics(choice)}: there is no choice to confirm."
    )


def _describe_choice(choice: PartMeasures, winner: str) -> str:
    """Return a sentence with the best variant, its value and that of the first."""
    measure = choice.headline_measure
    best_value = choice.estimates[winner][measure].value
    first_value = choice.estimates[choice.baseline][measure].value
    return (
        f"{winner} has the best {measure} on {_describe_topics(choice)}: {best_value:.4f}, and "
        f"{choice.baseline}, the first, {first_value:.4f}."
    )


def _describe_topics(choice: PartMeasures) -> str:
    """Return in words the topics that a variant was chosen on."""
    # Topics without a grade above 0 do not count.
    count = len(choice.estimates[choice.baseline][choice.headline_measure].topics)
    topics = "1 topic" if count == 1 else f"{count} topics"
    if choice.name == ALL:
        return topics
    return f"the {topics} that it was chosen on"


def compute_chance_ndcg(grades: Grades) -> Estimate:
    """Compute the expected nDCG@5 of a random order of each topic's documents.

    The expected gain at each rank is the mean gain. Gains and discounts are as in
    `estimate_grades`.

    Args:
        grades: Grades by topic and document; each topic has one above 0.
    """
    values: dict[str, float] = {}
    for topic, topic_grades in grades.items():
        gains = sorted((max(grade, 0.0) for grade in topic_grades.values()), reverse=True)
        depth = min(CUTOFF, len(gains))
        discounts = [1.0 / math.log2(rank + 1) for rank in range(1, depth + 1)]

        ideal_dcg = sum(gain * discount for gain, discount in zip(gains, discounts, strict=False))
        mean_gain = sum(gains) / len(gains)
        values[topic] = mean_gain * sum(discounts) / ideal_dcg
    return estimate_mean(values)


def _select_sampled(qrels: Qrels, sample: Sequence[Sampled]) -> Qrels:
    """Return the human judgments of the sampled documents."""
    sampled = {(document.topic_id, document.document_id) for document in sample}
    grades: dict[str, Grades] = {}
    for aspect, aspect_grades in qrels.grades.items():
        grades[aspect] = _restrict(aspect_grades, sampled)
    return replace(qrels, grades=grades, stances=_restrict(qrels.stances, sampled))


def _select_relevant(qrels: Qrels) -> Grades:
    """Return the first aspect's grades of the topics that count in nDCG."""
    first_aspect_grades = next(iter(qrels.grades.values()))
    relevant: Grades = {}
    for topic, topic_grades in first_aspect_grades.items():
        if max(topic_grades.values()) > 0.0:
            relevant[topic] = topic_grades
    return relevant


def _restrict(
    judgments: Mapping[str, Mapping[str, ValueT]], sampled: Set[tuple[str, str]]
) -> dict[str, dict[str, ValueT]]:
    """Return the human judgments of sampled documents, without topics that have none."""
    restricted: dict[str, dict[str, ValueT]] = {}
    for topic, topic_judgments in judgments.items():
        selected = {
            document: value
            for document, value in topic_judgments.items()
            if (topic, document) in sampled
        }
        if selected:
            restricted[topic] = selected
    return restricted


def _rank_documents(
    sample: Sequence[Sampled],
    judgments: Judgments,
    weights: Mapping[str, float],
    scales: Mapping[str, Scale],
) -> ParsedRun:
    """Rank the documents of each topic by their judgments; ties keep the order of the sample."""
    by_topic: defaultdict[str, list[ScoredDocument]] = defaultdict(list)
    for document in sample:
        by_topic[document.topic_id].append(ScoredDocument(document.document_id, 0.0))

    judgments_by_topic = group_judgments(judgments.values())
    rankings: dict[str, list[Candidate]] = {}
    for topic, documents in by_topic.items():
        judged = rank_by_judgment(documents, judgments_by_topic[topic], weights, scales)
        ranked = judged.ranking.fill_scores()
        rankings[topic] = [
            Candidate(topic, scored.document_id, rank, scored.score)
            for rank, scored in enumerate(ranked, start=1)
        ]

    stances: dict[tuple[str, str], str] = {}
    for key, judgment in judgments.items():
        if judgment.stance != NO_STANCE_COLUMN:
            stances[key] = judgment.stance
    return ParsedRun(rankings, stances)


def _estimate_variant(
    run: ParsedRun,
    judgments: Judgments,
    qrels: Qrels,
    task: Task,
    *,
    has_stance_qrels: bool,
) -> dict[Measure, Estimate]:
    """Estimate the measures of a variant, in the order of `PartMeasures.measures`.

    Args:
        run: Ranking by the judgments of the variant, with their stances.
        judgments: Judgments of the variant.
        qrels: Human judgments of the sampled documents.
        task: Task of the prompts.
        has_stance_qrels: Whether there are stance qrels, with or without sampled documents.
    """
    first_aspect = next(iter(qrels.grades))
    relevant = _select_relevant(qrels)
    estimates: dict[Measure, Estimate] = {}

    ndcg = make_headline_ndcg(first_aspect)
    estimates[ndcg] = estimate_mean({})
    if relevant:
        estimates[ndcg] = estimate_grades(run, first_aspect, relevant, CUTOFF)[ndcg]

    for aspect in qrels.grades:
        measure, estimate = _estimate_labels(judgments, qrels, aspect, task)
        estimates[measure] = estimate

    if has_stance_qrels:
        estimates[MACRO_F1] = estimate_mean({})
    if qrels.stances:
        estimates[MACRO_F1] = estimate_stances(run, qrels, CUTOFF)[MACRO_F1]
    return estimates


def _estimate_labels(
    judgments: Judgments, qrels: Qrels, aspect: str, task: Task
) -> tuple[Measure, Estimate]:
    """Estimate the agreement of a variant's labels with the human grades of an aspect.

    It is quadratically weighted kappa, or Spearman's correlation if the grades of the task's prompt
    cannot be compared with human ones one by one.
    """
    name = AgreementName.SPEARMAN
    measure = Measure(aspect, MeasureName.SPEARMAN)
    if task.qrels_mapping_of(aspect) is not None:
        name = AgreementName.QUADRATIC_KAPPA
        measure = Measure(aspect, MeasureName.KAPPA)

    people = take_people_labels(qrels, aspect)
    judge = take_judgment_labels(judgments.values(), aspect, task, "variant")
    documents = list_common_documents(people, [judge])
    if not documents:
        return measure, estimate_mean({}, CORRELATION)
    joint = join_labels(people, judge, documents)
    return measure, estimate_tables(people, judge, joint)[name]
