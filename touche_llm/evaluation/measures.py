"""Measures of a run, by topic and with confidence intervals, and comparisons of runs with a baseline."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import ir_measures
import numpy as np
import pandas as pd
import pytrec_eval  # noqa: F401, ir_measures would hide why it cannot be loaded

from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import UsageError
from touche_llm.evaluation.qrels import (
    GRADE_DECIMALS,
    STANCE,
    Coverage,
    Grades,
    Qrels,
    check_judged,
    describe_labels,
    describe_topics,
    select_topics,
)
from touche_llm.evaluation.significance import (
    Estimate,
    compare,
    compute_interval,
    estimate_mean,
    list_common_topics,
)
from touche_llm.evaluation.stances import estimate_common_stances, estimate_labels, estimate_stances

CUTOFF = 5
NDCG = f"nDCG@{CUTOFF}"
TOUCHE_NDCG = f"touche_nDCG@{CUTOFF}"
JUDGED = f"judged@{CUTOFF}"
# pytrec_eval takes integers; nDCG with linear gain does not change if all grades are multiplied.
_UNIT = 10**GRADE_DECIMALS


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The measured values of a run.

    Attributes:
        estimates: Estimates by measure: for each graded aspect those of `estimate_grades`, prefixed
            by the aspect, as in `relevance nDCG@5`, and those of `estimate_stances`.
        labels: Estimates of `estimate_labels`.
        notes: Notes for readers, such as on missing topics, each with its aspects.
    """

    name: str
    run: ParsedRun
    qrels: Qrels
    estimates: dict[str, Estimate]
    labels: dict[str, Estimate]
    notes: list[str]

    def coverage(self, aspect: str) -> Coverage:
        """Return the judged topics of an aspect that the run is measured on."""
        return Coverage.of(self.run, self.qrels, aspect)

    def summary(self) -> pd.DataFrame:
        """Return a row for each measure, with the columns that `evaluation.evaluate` names."""
        estimates = self.estimates | self.labels
        rows = []
        for measure, estimate in estimates.items():
            covered = self.coverage(aspect_of(measure))
            counts = (estimate.n, len(covered.topics), len(covered.missing), covered.judged)
            judged = estimate_judged(self.run, self.qrels, measure, estimate.topics).value
            rows.append(
                (self.name, measure, estimate.value, *compute_interval(estimate), *counts, judged)
            )
        columns = [
            "run",
            "measure",
            "value",
            "low",
            "high",
            "n",
            "topics",
            "missing",
            "judged_topics",
            "judged",
        ]
        return pd.DataFrame(rows, columns=columns)

    def per_topic(self) -> pd.DataFrame:
        """Return a row for each measure and contributing topic: `run`, `measure`, `topic`, `value` and `judged`.

        Topics are in the order of their numbers, since qrels files have them in any order. A stance
        measure is computed over the topic's own documents; the mean over topics is not the run's
        value.
        """
        rows = []
        for measure, estimate in self.estimates.items():
            judged = estimate_judged(self.run, self.qrels, measure, estimate.topics)
            values = zip(
                estimate.topics,
                estimate.by_topic().tolist(),
                judged.by_topic().tolist(),
                strict=True,
            )
            in_order = sorted(values, key=lambda of_topic: (len(of_topic[0]), of_topic[0]))
            rows += [(self.name, measure, *of_topic) for of_topic in in_order]
        return pd.DataFrame(rows, columns=["run", "measure", "topic", "value", "judged"])


def aspect_of(measure: str) -> str:
    """Return the aspect of a measure, its first word."""
    return measure.split(" ", 1)[0]


def name_judged(measure: str) -> str:
    """Return the name of the share of judged documents that belongs to a measure, such as `relevance judged@10`."""
    _, at, cutoff = measure.partition("@")
    return f"{aspect_of(measure)} judged{at}{cutoff}"


def estimate_judged(
    run: ParsedRun, qrels: Qrels, measure: str, topics: Collection[str]
) -> Estimate:
    """Estimate judged@k over judged topics: the share of judged documents among those that a measure looks at.

    The k is the measure's cutoff, as in `relevance nDCG@5`. The missing places of a shorter ranking
    are unjudged, as they are no hits for P@5 (Judged@5 of ir-measures divides by the number of
    documents). Without a cutoff the whole ranking counts.
    """
    aspect, cutoff = aspect_of(measure), measure.partition("@")[2]
    judged = qrels.stances if aspect == STANCE else qrels.grades[aspect]
    return _estimate_share(
        run, {topic: judged[topic] for topic in topics}, int(cutoff) if cutoff else None
    )


def _estimate_share(
    run: ParsedRun, judged: Mapping[str, Collection[str]], cutoff: int | None
) -> Estimate:
    shares = {}
    for topic, documents in judged.items():
        top = run.rankings.get(topic, [])[:cutoff]
        shares[topic] = sum(candidate.document_id in documents for candidate in top) / (
            cutoff or len(top) or 1
        )
    return estimate_mean(shares)


def list_headline(qrels: Qrels) -> list[str]:
    """Return the headline measures: nDCG@5 of each graded aspect, and macro-F1 of the stance."""
    return [
        *(f"{aspect} {NDCG}" for aspect in qrels.grades),
        *([f"{STANCE} macro-F1"] if qrels.stances else []),
    ]


def evaluate_run(name: str, run: ParsedRun, qrels: Qrels, depth: int | None = None) -> Evaluation:
    """Measure a run, which is in the order of its rank column, on the topics that `select_topics` selects for it.

    The depth is the cutoff of the recall; the length of the run's longest ranking if None.

    Raises:
        DataError: No document of the run is judged, or it has a stance that the task does not have.
        UsageError: The depth is below 1.
    """
    qrels = select_topics(qrels, [run])
    if depth is None:
        depth = max(map(len, run.rankings.values()))
    if depth < 1:
        raise UsageError(f"recall at {depth} documents: give a depth of 1 or more")
    estimates: dict[str, Estimate] = {}
    labels: dict[str, Estimate] = {}
    notes: dict[str, list[str]] = {}
    for aspect in (*qrels.grades, *([STANCE] if qrels.stances else [])):
        check_judged(run, qrels, aspect)
        found = describe_topics(run, qrels, aspect)
        if aspect == STANCE:
            estimates |= estimate_stances(run, qrels, CUTOFF)
            labels = estimate_labels(run, qrels)
            found += describe_labels(run, qrels)
        else:
            of_grades = estimate_grades(run, qrels.grades[aspect], depth)
            estimates |= {
                f"{aspect} {measure}": estimate for measure, estimate in of_grades.items()
            }
        for note in found:
            notes.setdefault(note, []).append(aspect)
    lines = [f"{', '.join(aspects)}: {note}" for note, aspects in notes.items()]
    return Evaluation(name, run, qrels, estimates, labels, lines)


def estimate_grades(run: ParsedRun, grades: Grades, depth: int) -> dict[str, Estimate]:
    """Estimate the measures of one aspect's grades, each the mean over the judged topics.

    nDCG@5, nDCG@10: linear gain, discount log2(rank + 1), unjudged documents and grades below 0
    count 0, as in trec_eval. P@5, R@depth: a document is relevant from grade 1. These are computed
    by ir-measures, where a topic counts 0 if the run lacks it or it has no grade above 0, as in
    trec_eval with `-c`.

    judged@5: see `estimate_judged`.

    touche_nDCG@5: see `compute_condensed_ndcg`; only over the topics for which it is defined.
    """
    judged = {
        topic: {document: round(max(grade, 0.0) * _UNIT) for document, grade in documents.items()}
        for topic, documents in grades.items()
    }
    # Scores are made from ranks, since evaluators sort by score and then by id. The id of an
    # unjudged document may contain characters that end a string in C, so it is replaced; no id in
    # qrels contains a space.
    ranked = {
        topic: {
            candidate.document_id
            if candidate.document_id in judged[topic]
            else f" {candidate.rank}": -float(candidate.rank)
            for candidate in run.rankings[topic]
        }
        for topic in judged
        if topic in run.rankings
    }
    measures = {
        NDCG: ir_measures.nDCG @ CUTOFF,
        "nDCG@10": ir_measures.nDCG @ 10,
        f"P@{CUTOFF}": ir_measures.P(rel=_UNIT) @ CUTOFF,
        f"R@{depth}": ir_measures.R(rel=_UNIT) @ depth,
    }
    values = {
        (metric.measure, metric.query_id): metric.value
        for metric in ir_measures.iter_calc(list(measures.values()), judged, ranked)
    }
    estimates = {
        name: estimate_mean({topic: values[measure, topic] for topic in judged})
        for name, measure in measures.items()
    }
    estimates[JUDGED] = _estimate_share(run, grades, CUTOFF)
    condensed = {
        topic: compute_condensed_ndcg(run, topic, documents) for topic, documents in grades.items()
    }
    estimates[TOUCHE_NDCG] = estimate_mean(
        {topic: value for topic, value in condensed.items() if value is not None}
    )
    return estimates


def compute_condensed_ndcg(run: ParsedRun, topic: str, grades: Mapping[str, float]) -> float | None:
    """Compute a topic's nDCG@5 like the organisers' script of 2022 (webis.de/events/touche-22/evaluate.py).

    The ranking is cut to the first 5 by the rank column; then unjudged documents are dropped and
    the others move up. Gains are the grades without their decimals, those below 0 are 0 (the script
    knows only -2); the discount is log2(i + 2) with i from 0; the ideal ranking contains all judged
    documents of the topic.

    Errors of the script: if a document occurs twice its value can exceed 1, and if columns are
    separated by two spaces it stops; `runs.read_run` rejects the first and reads the second. A run
    with two tags, which the script takes for two runs, is one run here.

    Returns:
        The value; None if the script leaves the topic out of its mean, since the run lacks it, none
        of its first 5 documents is judged, or no grade of it is above 0.
    """
    top = [candidate.document_id for candidate in run.rankings.get(topic, [])[:CUTOFF]]
    gains = [max(int(grades[document]), 0) for document in top if document in grades]
    ideal = _dcg(sorted((max(int(grade), 0) for grade in grades.values()), reverse=True)[:CUTOFF])
    return _dcg(gains) / ideal if gains and ideal else None


def _dcg(gains: list[int]) -> float:
    return float(np.sum(np.array(gains) / np.log2(np.arange(len(gains)) + 2.0)))


def describe_coverage(evaluations: Iterable[Evaluation], aspect: str) -> list[str]:
    """Return one line if all runs have the same coverage, else a line for each run."""
    texts = {
        evaluation.name: str(evaluation.coverage(aspect))
        for evaluation in evaluations
        if aspect in evaluation.qrels.grades or (aspect == STANCE and evaluation.qrels.stances)
    }
    if len(set(texts.values())) == 1:
        return list(texts.values())[:1]
    return [f"{name}: {text}" for name, text in texts.items()]


# A larger difference in the share of judged documents may decide a comparison of two runs.
_MAX_JUDGED_DIFFERENCE = 0.1


def compare_runs(
    baseline: Evaluation, others: Sequence[Evaluation]
) -> tuple[pd.DataFrame, list[str]]:
    """Compare runs with a baseline; all were measured with the same judgments and depth.

    Stances are compared over the documents with a label in both runs, except for `@5`, where the
    choice of documents counts too. judged@5 is no measure of a system, so it has no row.

    Returns:
        The rows of `significance.compare`, and notes on them. Additional columns: `judged` and
        `baseline_judged` (see `measures.estimate_judged`, over the topics of `value`).

    Raises:
        UsageError: The runs cannot be compared, see `significance.compare`.
    """
    common = {
        other.name: estimate_common_stances(other.run, baseline.run, other.qrels)
        for other in others
        if other.qrels.stances
    }
    runs = {
        evaluation.name: {
            name: each
            for name, each in evaluation.estimates.items()
            if not name.endswith(f" {JUDGED}")
        }
        for evaluation in (baseline, *others)
    }
    notes = []
    for other in others:
        for measure, (estimate, _) in common.get(other.name, {}).items():
            alone, theirs = other.estimates[measure].n, baseline.estimates[measure].n
            if estimate.n < max(alone, theirs):
                notes.append(
                    f"{other.name}: {measure}: compared over the {estimate.n:,} judged documents that both label; it "
                    f"labels {alone:,}, and {baseline.name} {theirs:,}"
                )
        notes += describe_judging(other, baseline)
    frame = compare(baseline.name, runs, common=common)
    by_name = {other.name: other for other in others}
    shares = []
    for name, measure in zip(frame["run"], frame["measure"], strict=True):
        other = by_name[name]
        pair = common.get(name, {}).get(measure) or (
            other.estimates[measure],
            baseline.estimates[measure],
        )
        topics = list_common_topics(*pair)
        shares.append(
            [
                estimate_judged(each.run, each.qrels, measure, topics).value
                for each in (other, baseline)
            ]
        )
    return frame.join(pd.DataFrame(shares, columns=["judged", "baseline_judged"])), notes


def describe_judging(run: Evaluation, baseline: Evaluation) -> list[str]:
    """Return a note for each aspect with a much larger share of judged top documents in one run than in the other.

    Unjudged documents count 0, which is why comparisons with BM25 on Touché 2020 were not fair
    (Thakur et al., SIGIR 2024, arXiv 2407.07790).
    """
    notes = []
    for aspect in run.qrels.grades:
        share, other_share = (
            evaluation.estimates[f"{aspect} {JUDGED}"].value for evaluation in (run, baseline)
        )
        if abs(share - other_share) > _MAX_JUDGED_DIFFERENCE:
            notes.append(
                f"{run.name}: {aspect} {JUDGED} is {share:.3f}, and {other_share:.3f} for {baseline.name}; part of the "
                "difference may come from the judging, since an unjudged document counts 0"
            )
    return notes
