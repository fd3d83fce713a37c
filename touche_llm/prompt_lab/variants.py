"""Variants of a comparison: their judgments of a sample, their agreement with human ones, and the best of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgspec import structs

from touche_llm.config.configuration import Config
from touche_llm.data.measure import CUTOFF, MACRO_F1, Measure, MeasureName, make_headline_ndcg
from touche_llm.data.records import Candidate, Failure, Judgment, ScoredDocument, Topic
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.data.runs.writing import NO_STANCE_COLUMN
from touche_llm.errors import UsageError
from touche_llm.evaluation.agreement import estimate_kappa, estimate_stances
from touche_llm.evaluation.measures import estimate_grades
from touche_llm.evaluation.qrels import Grades, Qrels
from touche_llm.evaluation.significance import Estimate, compare, estimate_mean
from touche_llm.judging.grades import mean_off_label_mass
from touche_llm.judging.judgments import judge
from touche_llm.judging.requests import RequestBuilder
from touche_llm.llm.counts import Counts
from touche_llm.prompt_lab.sample import ALL, CONFIRMED_BELOW, Sampled
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import load_named
from touche_llm.ranking.scores import rank_by_judgment
from touche_llm.runs.context import RunContext
from touche_llm.tasks.parts import Scale
from touche_llm.tasks.task import Task

PURPOSE = "judge"


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the compared prompts, with the name or path that it was given by."""

    name: str
    prompt: Prompt


def load_variants(names: Sequence[str | Variant], config: Config, task: Task) -> list[Variant]:
    """Load the prompts to compare.

    Variants are loaded already, as drafts are, which have no file of their own.
    """
    if len(names) < 2:
        raise UsageError(
            f"{', '.join(map(str, names)) or 'no prompt'} alone cannot be compared; name two or more"
        )
    variants: list[Variant] = []
    for name in names:
        if isinstance(name, Variant):
            variants.append(name)
            continue
        purpose, prompt = load_named(task, name, config.prompts.folder, config.judge_per)
        if purpose.name != PURPOSE:
            raise UsageError(
                f"{name}: is a prompt for {purpose.name!r}; only those for {PURPOSE!r} can be compared"
            )
        if any(prompt.path.resolve() == known.prompt.path.resolve() for known in variants):
            raise UsageError(f"{name}: is given twice; name each prompt once")
        variants.append(Variant(name, prompt))
    return variants


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
    before, total = replace(model.counts), len(pairs) * len(variant.prompt.sent)
    with context.progress.stage(f"judging with {variant.name}", total, model.counts) as done:
        found, failures = await judge(
            pairs, documents, task.question, variant.prompt, builder, done
        )
    judgments = {
        (judgment.topic_id, judgment.document_id): _convert_grades(judgment, task)
        for judgment in found
    }
    return VariantJudgments(judgments, failures, model.counts.since(before))


def _convert_grades(judgment: Judgment, task: Task) -> Judgment:
    """Return a judgment with its grades on the scales of the human ones."""
    grades = {
        name: task.aspects[name].convert(grade, task.qrels_scales[name])
        for name, grade in judgment.grades.items()
    }
    return structs.replace(judgment, grades=grades)


Judgments = Mapping[tuple[str, str], Judgment]

ValueT = TypeVar("ValueT", str, float)


@dataclass(frozen=True, slots=True)
class PartMeasures:
    """Measures over one part of the sample: all, choice or hold-out.

    Attributes:
        estimates: Estimates by variant and measure: nDCG@5 by the first aspect's grades, kappa by
            the grades of each aspect, macro-F1 of the stance if there are stance qrels.
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
        """Return the topics of the documents."""
        return list(dict.fromkeys(item.topic_id for item in self.sample))

    @property
    def measures(self) -> list[Measure]:
        """Return the measures, nDCG@5 first."""
        return list(next(iter(self.estimates.values())))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The best variant, and whether held-out topics confirm that it is better than the first.

    None if not tested.
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
) -> PartMeasures:
    """Measure the judgments of several variants for the documents of a part.

    nDCG@5 ranks the sampled documents of each topic by the weights of a run, documents without a
    judgment last. Its ideal ranking consists of these documents, and topics without a grade above 0
    among them are left out. The other measures are over the documents that a variant judged.
    """
    sampled = {(item.topic_id, item.document_id) for item in sample}
    grades = {aspect: _restrict(judged, sampled) for aspect, judged in qrels.grades.items()}
    given = replace(qrels, grades=grades, stances=_restrict(qrels.stances, sampled))
    runs = {
        variant: _rank_documents(sample, said, weights, qrels.scales)
        for variant, said in judgments.items()
    }
    estimates = {
        variant: _estimate_variant(runs[variant], said, given, stances=bool(qrels.stances))
        for variant, said in judgments.items()
    }
    rows = compare(next(iter(judgments)), estimates).to_dict("records")
    return PartMeasures(
        name,
        list(sample),
        estimates,
        {(row["run"], row["measure"]): row for row in rows},
        compute_chance_ndcg(_select_relevant(given)).value,
        {variant: mean_off_label_mass(said.values()) for variant, said in judgments.items()},
    )


def choose_winner(part: PartMeasures) -> str:
    """Return the best variant by nDCG@5; the earlier one of a tie."""
    values = {
        variant: estimates[part.measures[0]].value for variant, estimates in part.estimates.items()
    }
    # NaN ranks below every number.
    return max(values, key=lambda variant: (values[variant] == values[variant], values[variant]))


def decide_verdict(parts: Sequence[PartMeasures]) -> Verdict:
    """Choose the best variant on the first part, and test it against the first variant on the second."""
    choice, measure = parts[0], parts[0].measures[0]
    first, winner = next(iter(choice.estimates)), choose_winner(choice)
    best, value = (choice.estimates[variant][measure] for variant in (winner, first))
    # Topics without a grade above 0 do not count.
    on = f"{len(value.topics)} topic{'' if len(value.topics) == 1 else 's'}"
    if choice.name != ALL:
        on = f"the {on} that it was chosen on"
    if winner == first:
        sentence = f"No variant has a better {measure} than {first}, the first ({value.value:.4f}), on {on}"
        return Verdict(winner, None, f"{sentence}: there is no choice to confirm.")
    sentence = f"{winner} has the best {measure} on {on}: {best.value:.4f}, and {first}, the first, {value.value:.4f}."
    if len(parts) == 1:
        how = "confirm it on the topics held out"
        return Verdict(
            winner,
            None,
            f"{sentence} Not confirmed: the best of several can be it by chance; {how}.",
        )
    # The interval decides nothing: few topics have one, and for some data it is too narrow.
    row = parts[1].differences[winner, measure]
    confirmed = row["difference"] > 0.0 and row["p"] < CONFIRMED_BELOW
    reason = f"on the {row['n']} topics held out the difference is {row['difference']:+.4f}, p = {row['p']:.4f}"
    return Verdict(
        winner, confirmed, f"{sentence} {'Confirmed' if confirmed else 'Not confirmed'}: {reason}."
    )


def compute_chance_ndcg(grades: Grades) -> Estimate:
    """Compute the expected nDCG@5 of a random order of each topic's documents, one of which has a grade above 0.

    The expected gain at each rank is the mean gain. Gains and discounts are as in
    `estimate_grades`.
    """
    values = {}
    for topic, judged in grades.items():
        gains = sorted((max(grade, 0.0) for grade in judged.values()), reverse=True)
        discounts = [1.0 / math.log2(rank + 1) for rank in range(1, min(CUTOFF, len(gains)) + 1)]
        ideal = sum(gain * discount for gain, discount in zip(gains, discounts, strict=False))
        values[topic] = sum(gains) / len(gains) * sum(discounts) / ideal
    return estimate_mean(values)


def _select_relevant(given: Qrels) -> Grades:
    """Return the first aspect's grades of the topics that count in nDCG."""
    grades = next(iter(given.grades.values()))
    return {topic: judged for topic, judged in grades.items() if max(judged.values()) > 0.0}


def _restrict(
    judged: Mapping[str, Mapping[str, ValueT]], sampled: Set[tuple[str, str]]
) -> dict[str, dict[str, ValueT]]:
    found = {
        topic: {
            document: value for document, value in of_topic.items() if (topic, document) in sampled
        }
        for topic, of_topic in judged.items()
    }
    return {topic: of_topic for topic, of_topic in found.items() if of_topic}


def _rank_documents(
    sample: Sequence[Sampled],
    said: Judgments,
    weights: Mapping[str, float],
    scales: Mapping[str, Scale],
) -> ParsedRun:
    """Rank the documents of each topic by their judgments; ties keep the order of the sample."""
    rankings: dict[str, list[Candidate]] = {}
    for topic in dict.fromkeys(item.topic_id for item in sample):
        documents = [
            ScoredDocument(item.document_id, 0.0) for item in sample if item.topic_id == topic
        ]
        own = {document: judgment for (of, document), judgment in said.items() if of == topic}
        ranked = rank_by_judgment(documents, own, weights, scales).ranking.fill_scores()
        rankings[topic] = [
            Candidate(topic, found.document_id, rank, found.score)
            for rank, found in enumerate(ranked, start=1)
        ]
    stances = {
        key: judgment.stance
        for key, judgment in said.items()
        if judgment.stance != NO_STANCE_COLUMN
    }
    return ParsedRun(rankings, stances)


def _estimate_variant(
    run: ParsedRun, said: Judgments, given: Qrels, *, stances: bool
) -> dict[Measure, Estimate]:
    """Estimate the measures of a variant, in the order of `PartMeasures.measures`.

    Args:
        run: Ranking by the judgments of the variant, with their stances.
        said: Judgments of the variant.
        given: Human judgments of the sampled documents.
        stances: Whether there are stance qrels, with or without sampled documents.
    """
    first_aspect = next(iter(given.grades))
    relevant = _select_relevant(given)
    estimates: dict[Measure, Estimate] = {}

    ndcg = make_headline_ndcg(first_aspect)
    estimates[ndcg] = estimate_mean({})
    if relevant:
        estimates[ndcg] = estimate_grades(run, first_aspect, relevant, CUTOFF)[ndcg]

    for aspect, grades in given.grades.items():
        kappa = Measure(aspect, MeasureName.KAPPA)
        estimates[kappa] = _estimate_kappa(said, grades, aspect)

    if stances:
        estimates[MACRO_F1] = estimate_mean({})
    if given.stances:
        estimates[MACRO_F1] = estimate_stances(run, given, CUTOFF)[MACRO_F1]
    return estimates


def _estimate_kappa(said: Judgments, grades: Grades, aspect: str) -> Estimate:
    """Estimate kappa of a variant's and the human grades of an aspect."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for topic, judged in grades.items():
        pairs[topic] = [
            (said[topic, document].grades[aspect], grade)
            for document, grade in judged.items()
            if (topic, document) in said
        ]
    return estimate_kappa(pairs)
