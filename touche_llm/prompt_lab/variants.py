"""Variants of a comparison: their judgments of a sample, their agreement with human ones, and the best of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
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

# Agreement that is estimated for a measure of an aspect.
_AGREEMENT_NAMES: Mapping[str, AgreementName] = {
    MeasureName.KAPPA: AgreementName.QUADRATIC_KAPPA,
    MeasureName.SPEARMAN: AgreementName.SPEARMAN,
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the compared prompts, with the name or path that it was given by."""

    name: str
    prompt: Prompt


def load_variants(prompts: Sequence[str | Variant], config: Config, task: Task) -> list[Variant]:
    """Load the prompts to compare.

    Args:
        prompts: Names or paths of prompts. A draft, which has no file of its own, is given as a
            variant that is loaded already, under a name of its own.
        config: Configuration with the folder of templates.
        task: Task of the prompts.

    Raises:
        PromptError: A prompt is invalid.
        UsageError: There are fewer than two prompts, one is given twice, or one judges no documents.
    """
    if len(prompts) < 2:
        given = ", ".join(map(str, prompts)) or "no prompt"
        raise UsageError(f"{given} alone cannot be compared; name two or more")

    variants: list[Variant] = []
    for prompt in prompts:
        if isinstance(prompt, Variant):
            # A draft may have the path of its saved version, but judgments are kept by name.
            is_repeated = prompt.name in {variant.name for variant in variants}
            variant = prompt
        else:
            variant = Variant(prompt, _load_judge_prompt(prompt, config, task))
            is_repeated = _find_path(variant) in map(_find_path, variants)
        if is_repeated:
            raise UsageError(f"{variant.name}: is given twice; name each prompt once")
        variants.append(variant)
    return variants


def _find_path(variant: Variant) -> Path:
    """Return the file of a variant, which is the same by whichever path it was given."""
    return variant.prompt.path.resolve()


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
    """Judge documents with a variant of the prompt.

    Args:
        context: Context with the task, the documents and the progress.
        variant: Variant to judge with.
        work: Documents to judge, topic by topic.
        requester: Client of the model, and the builder of its requests.

    Returns:
        Judgments, with the grades on the scales of the human ones.

    Raises:
        EngineError: The engine failed, or the labels of no answer can be read.
        PromptError: The prompt is invalid, or leaves no room for a document.
    """
    # The client counts the requests of all variants, so those of this one are the difference.
    counts = requester.client.counts
    counts_before = replace(counts)
    total = len(work) * variant.prompt.requests_per_document
    with context.progress.stage(f"judging with {variant.name}", total, counts) as done:
        outcomes = await judge(
            work=work,
            documents=context.corpus.documents,
            question=context.task.question,
            prompt=variant.prompt,
            requester=requester,
            done=done,
        )

    judgments: dict[tuple[str, str], Judgment] = {}
    for judgment in outcomes.results:
        judgments[judgment.topic_id, judgment.document_id] = judgment
    return VariantJudgments(judgments, outcomes.failures, counts.since(counts_before))


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
    """Measure how well the judgments of several prompts agree with human ones.

    Args:
        name: Name of the part of the sample: all, choice or hold-out.
        sample: Documents of the part.
        judgments: Judgments by variant of the prompt; the others are compared with the first.
        qrels: Human judgments.
        weights: Weights by which grades are combined into the score of a document.
        task: Task of the prompts.
    """
    sampled_qrels = _select_sampled(qrels, sample)
    has_stance_qrels = bool(qrels.stances)

    estimates: dict[str, dict[Measure, Estimate]] = {}
    off_label_masses: dict[str, float | None] = {}
    for variant, variant_judgments in judgments.items():
        rankings = _rank_documents(sample, variant_judgments, weights, task.aspects)
        stances = _list_stances(variant_judgments)
        estimates[variant] = _estimate_variant(
            run=ParsedRun(rankings, stances),
            judgments=variant_judgments,
            qrels=sampled_qrels,
            task=task,
            has_stance_qrels=has_stance_qrels,
        )
        off_label_masses[variant] = mean_off_label_mass(variant_judgments.values())

    chance = compute_chance_ndcg(_select_relevant(sampled_qrels))
    return PartMeasures(
        name=name,
        sample=list(sample),
        estimates=estimates,
        differences=_compare_with_first(estimates),
        chance=chance.value,
        off_label_mass=off_label_masses,
    )


def _compare_with_first(
    estimates: Mapping[str, Mapping[Measure, Estimate]],
) -> dict[tuple[str, Measure], Mapping[str, Any]]:
    """Compare the estimates of each variant with those of the first.

    Returns:
        Rows of `significance.compare`, by variant and measure.
    """
    baseline = next(iter(estimates))
    differences: dict[tuple[str, Measure], Mapping[str, Any]] = {}
    for row in compare(baseline, estimates).to_dict("records"):
        differences[row["run"], row["measure"]] = row
    return differences


def choose_winner(part: PartMeasures) -> str:
    """Return the best variant by nDCG@5; the earlier one of a tie, and an undefined value last."""
    winner = part.baseline
    best_value = -math.inf
    for variant, estimates in part.estimates.items():
        value = estimates[part.headline_measure].value
        # An undefined value is NaN, which is not greater than any number.
        if value > best_value:
            winner = variant
            best_value = value
    return winner


def decide_verdict(parts: Sequence[PartMeasures]) -> Verdict:
    """Return the best variant by the measures of one part, and whether another part confirms it.

    Args:
        parts: Measures of the part to choose on and, if the choice was tested, of the held-out one.
    """
    choice = parts[0]
    winner = choose_winner(choice)
    if winner == choice.baseline:
        return Verdict(winner, confirmed=None, sentence=_describe_no_choice(choice))

    chosen = _describe_choice(choice, winner)
    if len(parts) == 1:
        doubt = "the best of several can be it by chance; confirm it on the topics held out"
        return Verdict(winner, confirmed=None, sentence=f"{chosen} Not confirmed: {doubt}.")

    held_out = parts[1]
    difference = held_out.differences[winner, choice.headline_measure]
    confirmed = _confirms(difference)
    tested = _describe_test(difference, confirmed)
    return Verdict(winner, confirmed=confirmed, sentence=f"{chosen} {tested}")


def _confirms(difference: Mapping[str, Any]) -> bool:
    """Return whether a difference on held-out topics confirms that a variant is better.

    Args:
        difference: Row of `significance.compare`.
    """
    # The interval decides nothing: few topics have one, and for some data it is too narrow.
    is_better: bool = difference["difference"] > 0.0
    is_significant: bool = difference["p"] < CONFIRMED_BELOW
    return is_better and is_significant


def _describe_test(difference: Mapping[str, Any], confirmed: bool) -> str:
    """Return a sentence with the difference on held-out topics, and whether it confirms a choice."""
    result = "Confirmed" if confirmed else "Not confirmed"
    return (
        f"{result}: on the {difference['n']} topics held out the difference is "
        f"{difference['difference']:+.4f}, p = {difference['p']:.4f}."
    )


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

    Args:
        grades: Grades by topic and document; each topic has one above 0.
    """
    values: dict[str, float] = {}
    for topic, topic_grades in grades.items():
        gains = [max(grade, 0.0) for grade in topic_grades.values()]
        values[topic] = _compute_expected_ndcg(gains)
    return estimate_mean(values)


def _compute_expected_ndcg(gains: Sequence[float]) -> float:
    """Compute the expected nDCG@5 of a random order of documents with the given gains.

    Gains and discounts are as in `estimate_grades`.
    """
    best_first = sorted(gains, reverse=True)
    depth = min(CUTOFF, len(gains))
    discounts = [1.0 / math.log2(rank + 1) for rank in range(1, depth + 1)]
    ideal_dcg = sum(gain * discount for gain, discount in zip(best_first, discounts, strict=False))

    # In a random order, the expected gain at each rank is the mean gain.
    mean_gain = sum(best_first) / len(best_first)
    expected_dcg = mean_gain * sum(discounts)
    return expected_dcg / ideal_dcg


def _select_sampled(qrels: Qrels, sample: Sequence[Sampled]) -> Qrels:
    """Return the human judgments of the sampled documents."""
    sampled = {(document.topic_id, document.document_id) for document in sample}
    grades: dict[str, Grades] = {}
    for aspect, aspect_grades in qrels.grades.items():
        grades[aspect] = _restrict(aspect_grades, sampled)
    stances = _restrict(qrels.stances, sampled)
    return replace(qrels, grades=grades, stances=stances)


def _select_relevant(qrels: Qrels) -> Grades:
    """Return the first aspect's grades, without topics that have none above 0.

    Such topics have no nDCG, which compares a ranking with the best possible one.
    """
    first_aspect_grades = next(iter(qrels.grades.values()))
    relevant: Grades = {}
    for topic, topic_grades in first_aspect_grades.items():
        if max(topic_grades.values()) > 0.0:
            relevant[topic] = topic_grades
    return relevant


def _restrict(
    judgments: Mapping[str, Mapping[str, ValueT]], sampled: Set[tuple[str, str]]
) -> dict[str, dict[str, ValueT]]:
    """Return the human judgments of sampled documents, without topics that have none.

    Args:
        judgments: Grades or stances by topic and document.
        sampled: Topic and document of each sampled one.
    """
    restricted: dict[str, dict[str, ValueT]] = {}
    for topic, topic_judgments in judgments.items():
        for document, value in topic_judgments.items():
            if (topic, document) in sampled:
                restricted.setdefault(topic, {})[document] = value
    return restricted


def _rank_documents(
    sample: Sequence[Sampled],
    judgments: Judgments,
    weights: Mapping[str, float],
    scales: Mapping[str, Scale],
) -> dict[str, list[Candidate]]:
    """Rank the sampled documents of each topic by a variant's judgments.

    Equal documents keep the order of the sample, and documents without a judgment come last.

    Args:
        sample: Documents to rank.
        judgments: Judgments of the variant.
        weights: Weights of the grades.
        scales: Scale of each grade.

    Returns:
        Ranking by topic.
    """
    documents_by_topic: defaultdict[str, list[ScoredDocument]] = defaultdict(list)
    for sampled in sample:
        # All documents have the same first-stage score, so that the judgments alone decide.
        document = ScoredDocument(sampled.document_id, score=0.0)
        documents_by_topic[sampled.topic_id].append(document)
    judgments_by_topic = group_judgments(judgments.values())

    rankings: dict[str, list[Candidate]] = {}
    for topic, documents in documents_by_topic.items():
        judged = rank_by_judgment(documents, judgments_by_topic[topic], weights, scales)
        ranked = judged.ranking.fill_scores()
        rankings[topic] = [
            Candidate(topic, scored.document_id, rank, scored.score)
            for rank, scored in enumerate(ranked, start=1)
        ]
    return rankings


def _list_stances(judgments: Judgments) -> dict[tuple[str, str], str]:
    """Return the stances of judgments that have one, by topic and document."""
    stances: dict[tuple[str, str], str] = {}
    for key, judgment in judgments.items():
        if judgment.stance != NO_STANCE_COLUMN:
            stances[key] = judgment.stance
    return stances


def _estimate_variant(
    run: ParsedRun,
    judgments: Judgments,
    qrels: Qrels,
    task: Task,
    *,
    has_stance_qrels: bool,
) -> dict[Measure, Estimate]:
    """Estimate nDCG@5, the agreement on each aspect and the macro-F1 of the stance of a variant.

    A measure without any human judgment to compare with has an undefined estimate.

    Args:
        run: Ranking by the judgments of the variant, with their stances.
        judgments: Judgments of the variant.
        qrels: Human judgments of the sampled documents.
        task: Task of the prompts.
        has_stance_qrels: Whether there are stance qrels, with or without sampled documents.
    """
    estimates: dict[Measure, Estimate] = {}
    ndcg = make_headline_ndcg(next(iter(qrels.grades)))
    estimates[ndcg] = _estimate_ndcg(run, ndcg, qrels)

    for aspect in qrels.grades:
        agreement = _choose_agreement(aspect, task)
        estimates[agreement] = _estimate_agreement(agreement, judgments, qrels, task)

    if has_stance_qrels:
        estimates[MACRO_F1] = _estimate_macro_f1(run, qrels)
    return estimates


def _estimate_ndcg(run: ParsedRun, ndcg: Measure, qrels: Qrels) -> Estimate:
    """Estimate the nDCG of a run, by the grades of the sampled documents alone.

    Topics in which no sampled document has a grade above 0 are left out; without any other topic,
    the estimate is undefined.
    """
    relevant = _select_relevant(qrels)
    if not relevant:
        return estimate_mean({})
    return estimate_grades(run, ndcg.aspect, relevant, CUTOFF)[ndcg]


def _estimate_macro_f1(run: ParsedRun, qrels: Qrels) -> Estimate:
    """Estimate the macro-F1 of a run's stances; undefined without human stances."""
    if not qrels.stances:
        return estimate_mean({})
    return estimate_stances(run, qrels, CUTOFF)[MACRO_F1]


def _choose_agreement(aspect: str, task: Task) -> Measure:
    """Return the measure of the agreement with human grades: kappa or Spearman's correlation.

    Correlation is for grades of a prompt that cannot be compared with human ones one by one.
    """
    has_same_grades = task.qrels_mapping_of(aspect) is not None
    if has_same_grades:
        return Measure(aspect, MeasureName.KAPPA)
    return Measure(aspect, MeasureName.SPEARMAN)


def _estimate_agreement(
    measure: Measure, judgments: Judgments, qrels: Qrels, task: Task
) -> Estimate:
    """Estimate the agreement of a variant's grades with the human grades of an aspect.

    The estimate is undefined if no document has both grades.

    Args:
        measure: Measure of the agreement, with its aspect; see `_choose_agreement`.
        judgments: Judgments of the variant.
        qrels: Human judgments of the sampled documents.
        task: Task of the prompts.
    """
    human_labels = take_people_labels(qrels, measure.aspect)
    variant_labels = take_judgment_labels(judgments.values(), measure.aspect, task, "variant")
    documents = list_common_documents(human_labels, [variant_labels])
    if not documents:
        return estimate_mean({}, CORRELATION)

    joint_labels = join_labels(human_labels, variant_labels, documents)
    estimates = estimate_tables(human_labels, variant_labels, joint_labels)
    agreement_name = _AGREEMENT_NAMES[measure.name]
    return estimates[agreement_name]
