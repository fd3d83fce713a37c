"""Measures of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ir_measures
import pytrec_eval  # noqa: F401, ir_measures would hide why it cannot be loaded

from touche_llm.data.measure import CUTOFF, MACRO_F1, Measure, MeasureName, make_headline_ndcg
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import UsageError
from touche_llm.evaluation.agreement import estimate_labels, estimate_stances
from touche_llm.evaluation.condensed_ndcg import compute_condensed_ndcg
from touche_llm.evaluation.judged_share import estimate_judged, estimate_share
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
from touche_llm.evaluation.significance import Estimate, compute_interval, estimate_mean

if TYPE_CHECKING:
    from pandas import DataFrame

_SUMMARY_COLUMNS = (
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
)
_TOPIC_COLUMNS = ("run", "measure", "topic", "value", "judged")
# pytrec_eval takes integers; nDCG with linear gain does not change if all grades are multiplied.
_UNIT = 10**GRADE_DECIMALS


def make_measure_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> DataFrame:
    """Return a frame of rows; also without rows it has the columns."""
    # Imported here because pandas is slow to load, and the help of `evaluate` needs no frame.
    import pandas as pd

    return pd.DataFrame(rows, columns=columns)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The measured values of a run.

    Attributes:
        estimates: Estimates of `estimate_grades` for each graded aspect, and of `estimate_stances`.
        labels: Estimates of `estimate_labels`.
        notes: Notes for readers, such as on missing topics, each with its aspects.
    """

    name: str
    run: ParsedRun
    qrels: Qrels
    estimates: dict[Measure, Estimate]
    labels: dict[Measure, Estimate]
    notes: list[str]

    def coverage(self, aspect: str) -> Coverage:
        """Return the judged topics of an aspect that the run is measured on."""
        return Coverage.of(self.run, self.qrels, aspect)

    def summary(self) -> DataFrame:
        """Return a row for each measure, with the columns that `evaluation.evaluate` names.

        The column `measure` has records.
        """
        estimates = self.estimates | self.labels
        rows = [self._summarize(measure, estimate) for measure, estimate in estimates.items()]
        return make_measure_frame(rows, _SUMMARY_COLUMNS)

    def per_topic(self) -> DataFrame:
        """Return a row for each measure and contributing topic: `run`, `measure`, `topic`, `value` and `judged`.

        The column `measure` has records. Topics are in the order of their numbers, since qrels
        files have them in any order. A stance measure is computed over the topic's own documents;
        the mean over topics is not the run's value.
        """
        rows: list[dict[str, Any]] = []
        for measure, estimate in self.estimates.items():
            rows += self._list_topics(measure, estimate)
        return make_measure_frame(rows, _TOPIC_COLUMNS)

    def _summarize(self, measure: Measure, estimate: Estimate) -> dict[str, Any]:
        """Return the row of a measure for `summary`."""
        covered = self.coverage(measure.aspect)
        low, high = compute_interval(estimate)
        judged = estimate_judged(self.run, self.qrels, measure, estimate.topics)
        return {
            "run": self.name,
            "measure": measure,
            "value": estimate.value,
            "low": low,
            "high": high,
            "n": estimate.n,
            "topics": len(covered.topics),
            "missing": len(covered.missing),
            "judged_topics": covered.judged,
            "judged": judged.value,
        }

    def _list_topics(self, measure: Measure, estimate: Estimate) -> list[dict[str, Any]]:
        """Return the rows of a measure for `per_topic`."""
        judged = estimate_judged(self.run, self.qrels, measure, estimate.topics)
        values = estimate.values_by_topic()
        shares = judged.values_by_topic()

        rows = []
        # Most ids are numbers, of which 2 comes before 10.
        for topic in sorted(estimate.topics, key=lambda topic: (len(topic), topic)):
            row = {
                "run": self.name,
                "measure": measure,
                "topic": topic,
                "value": values[topic],
                "judged": shares[topic],
            }
            rows.append(row)
        return rows


def list_headline(qrels: Qrels) -> list[Measure]:
    """Return the headline measures: nDCG@5 of each graded aspect, and macro-F1 of the stance."""
    headline = [make_headline_ndcg(aspect) for aspect in qrels.grades]
    if qrels.stances:
        headline.append(MACRO_F1)
    return headline


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
    for aspect in qrels.aspects:
        check_judged(run, qrels, aspect)

    estimates: dict[Measure, Estimate] = {}
    for aspect, grades in qrels.grades.items():
        estimates |= estimate_grades(run, aspect, grades, depth)
    labels: dict[Measure, Estimate] = {}
    if qrels.stances:
        estimates |= estimate_stances(run, qrels, CUTOFF)
        labels = estimate_labels(run, qrels)

    return Evaluation(
        name=name,
        run=run,
        qrels=qrels,
        estimates=estimates,
        labels=labels,
        notes=_describe_aspects(run, qrels),
    )


def _describe_aspects(run: ParsedRun, qrels: Qrels) -> list[str]:
    """Return the notes on all aspects; one that is true of several names them together."""
    aspects_of_note: dict[str, list[str]] = {}
    for aspect in qrels.aspects:
        notes = describe_topics(run, qrels, aspect)
        if aspect == STANCE:
            notes += describe_labels(run, qrels)
        for note in notes:
            aspects_of_note.setdefault(note, []).append(aspect)
    return [f"{', '.join(aspects)}: {note}" for note, aspects in aspects_of_note.items()]


def estimate_grades(
    run: ParsedRun, aspect: str, grades: Grades, depth: int
) -> dict[Measure, Estimate]:
    """Estimate the measures of one aspect's grades, each the mean over the judged topics.

    nDCG@5, nDCG@10: linear gain, discount log2(rank + 1), unjudged documents and grades below 0
    count 0, as in trec_eval. P@5, R@depth: a document is relevant from grade 1. These are computed
    by ir-measures, where a topic counts 0 if the run lacks it or it has no grade above 0, as in
    trec_eval with `-c`.

    judged@5: see `estimate_judged`.

    touche_nDCG@5: see `compute_condensed_ndcg`; only over the topics for which it is defined.
    """
    judged = make_headline_ndcg(aspect).judged
    touche_ndcg = Measure(aspect, MeasureName.TOUCHE_NDCG, CUTOFF)

    estimates = _estimate_by_ir_measures(run, aspect, grades, depth)
    estimates[judged] = estimate_share(run, grades, judged.cutoff)
    estimates[touche_ndcg] = _estimate_condensed_ndcg(run, grades)
    return estimates


def _estimate_by_ir_measures(
    run: ParsedRun, aspect: str, grades: Grades, depth: int
) -> dict[Measure, Estimate]:
    """Estimate the measures that ir-measures computes, with recall at `depth`."""
    calculated = {
        make_headline_ndcg(aspect): ir_measures.nDCG @ CUTOFF,
        Measure(aspect, MeasureName.NDCG, 10): ir_measures.nDCG @ 10,
        Measure(aspect, MeasureName.PRECISION, CUTOFF): ir_measures.P(rel=_UNIT) @ CUTOFF,
        Measure(aspect, MeasureName.RECALL, depth): ir_measures.R(rel=_UNIT) @ depth,
    }
    metrics = ir_measures.iter_calc(
        list(calculated.values()),
        _convert_grades(grades),
        _convert_rankings(run, grades),
    )
    values = {(metric.measure, metric.query_id): metric.value for metric in metrics}

    estimates: dict[Measure, Estimate] = {}
    for measure, calculator in calculated.items():
        estimates[measure] = estimate_mean({topic: values[calculator, topic] for topic in grades})
    return estimates


def _convert_grades(grades: Grades) -> dict[str, dict[str, int]]:
    """Return grades as multiples of `1 / _UNIT`, those below 0 as 0."""
    converted: dict[str, dict[str, int]] = {}
    for topic, judged in grades.items():
        converted[topic] = {
            document: round(max(grade, 0.0) * _UNIT) for document, grade in judged.items()
        }
    return converted


def _convert_rankings(run: ParsedRun, grades: Grades) -> dict[str, dict[str, float]]:
    """Return the scores of documents by topic, for the graded topics that the run has.

    Scores are made from ranks, since evaluators sort by score and then by id.
    """
    scores: dict[str, dict[str, float]] = {}
    for topic, judged in grades.items():
        if topic not in run.rankings:
            continue
        scores[topic] = {}
        for candidate in run.rankings[topic]:
            # The id of an unjudged document may contain characters that end a string in C, so it is
            # replaced; no id in qrels contains a space.
            is_judged = candidate.document_id in judged
            document_id = candidate.document_id if is_judged else f" {candidate.rank}"
            scores[topic][document_id] = -float(candidate.rank)
    return scores


def _estimate_condensed_ndcg(run: ParsedRun, grades: Grades) -> Estimate:
    """Estimate the mean of `compute_condensed_ndcg` over the topics for which it is defined."""
    values: dict[str, float] = {}
    for topic, judged in grades.items():
        value = compute_condensed_ndcg(run, topic, judged)
        if value is not None:
            values[topic] = value
    return estimate_mean(values)


def describe_coverage(evaluations: Iterable[Evaluation], aspect: str) -> list[str]:
    """Return one line if all runs have the same coverage, else a line for each run."""
    texts: dict[str, str] = {}
    for evaluation in evaluations:
        if aspect in evaluation.qrels.aspects:
            texts[evaluation.name] = str(evaluation.coverage(aspect))

    distinct_texts = list(dict.fromkeys(texts.values()))
    if len(distinct_texts) == 1:
        return distinct_texts
    return [f"{name}: {text}" for name, text in texts.items()]


# A larger difference in the share of judged documents may decide a comparison of two runs.
_MAX_JUDGED_DIFFERENCE = 0.1


def describe_judging(run: Evaluation, baseline: Evaluation) -> list[str]:
    """Return a note for each aspect with a much larger share of judged top documents in one run than in the other.

    Unjudged documents count 0, which is why comparisons with BM25 on Touché 2020 were not fair
    (Thakur et al., SIGIR 2024, arXiv 2407.07790).
    """
    notes: list[str] = []
    for aspect in run.qrels.grades:
        measure = make_headline_ndcg(aspect).judged
        share = run.estimates[measure].value
        baseline_share = baseline.estimates[measure].value
        if abs(share - baseline_share) > _MAX_JUDGED_DIFFERENCE:
            notes.append(
                f"{run.name}: {measure} is {share:.3f}, and {baseline_share:.3f} for {baseline.name}; part of the "
                "difference may come from the judging, since an unjudged document counts 0"
            )
    return notes
