"""Measures of runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import ir_measures
import pytrec_eval  # noqa: F401, ir_measures would hide why it cannot be loaded

from touche_llm.data.measure import CUTOFF, MACRO_F1, Measure, make_headline_ndcg
from touche_llm.data.records import Candidate
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import ExtensionError, UsageError
from touche_llm.evaluation.agreement import estimate_labels, estimate_stances
from touche_llm.evaluation.intervals import TIE
from touche_llm.evaluation.judged_share import estimate_judged
from touche_llm.evaluation.known_measures import KINDS
from touche_llm.evaluation.qrels import (
    STANCE,
    Coverage,
    Grades,
    Qrels,
    check_judged,
    describe_labels,
    describe_topics,
    select_topics,
)
from touche_llm.evaluation.registry import (
    RELEVANT,
    GradedTopic,
    MeasureKind,
    StandardMeasure,
    TopicMeasure,
)
from touche_llm.evaluation.significance import Estimate, compute_interval, estimate_mean

if TYPE_CHECKING:
    from ir_measures.measures import Measure as Metric
    from pandas import DataFrame


class MeasuredRow(NamedTuple):
    """Row of `Evaluation.summary`.

    Attributes:
        run: Name of the run.
        low: Lower end of the 95 % interval.
        high: Upper end of the 95 % interval.
        n: Number of topics, or of documents for the stance.
        topics: Number of judged topics that the run is measured on.
        missing: Number of these that the run lacks.
        judged_topics: Number of topics that the qrels file judges.
        judged: Share of judged documents among those that the measure looks at.
    """

    run: str
    measure: Measure
    value: float
    low: float
    high: float
    n: int
    topics: int
    missing: int
    judged_topics: int
    judged: float


class MeasuredTopicRow(NamedTuple):
    """Row of `Evaluation.per_topic`.

    Attributes:
        run: Name of the run.
        judged: Share of judged documents among those that the measure looks at.
    """

    run: str
    measure: Measure
    topic: str
    value: float
    judged: float


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
        """Return a row for each measure, with the columns of `MeasuredRow`."""
        # Imported here because pandas is slow to load, and the help of `evaluate` needs no frame.
        import pandas as pd

        estimates = self.estimates | self.labels
        rows = [self._summarize(measure, estimate) for measure, estimate in estimates.items()]
        return pd.DataFrame(rows, columns=MeasuredRow._fields)

    def per_topic(self) -> DataFrame:
        """Return a row for each measure and contributing topic, with the columns of `MeasuredTopicRow`.

        Topics are in the order of their numbers, since qrels files have them in any order. A stance
        measure is computed over the topic's own documents; the mean over topics is not the run's
        value.
        """
        # Imported here because pandas is slow to load, and the help of `evaluate` needs no frame.
        import pandas as pd

        rows: list[MeasuredTopicRow] = []
        for measure, estimate in self.estimates.items():
            rows += self._list_topics(measure, estimate)
        return pd.DataFrame(rows, columns=MeasuredTopicRow._fields)

    def _summarize(self, measure: Measure, estimate: Estimate) -> MeasuredRow:
        """Return the row of a measure for `summary`."""
        coverage = self.coverage(measure.aspect)
        low, high = compute_interval(estimate)
        judged = estimate_judged(self.run, self.qrels, measure, estimate.topics)
        return MeasuredRow(
            run=self.name,
            measure=measure,
            value=estimate.value,
            low=low,
            high=high,
            n=estimate.n,
            topics=len(coverage.topics),
            missing=len(coverage.missing),
            judged_topics=coverage.judged,
            judged=judged.value,
        )

    def _list_topics(self, measure: Measure, estimate: Estimate) -> list[MeasuredTopicRow]:
        """Return the rows of a measure for `per_topic`."""
        values = estimate.values_by_topic()
        judged = estimate_judged(self.run, self.qrels, measure, estimate.topics)
        judged_shares = judged.values_by_topic()
        # Most ids are numbers, of which 2 comes before 10.
        topics = sorted(estimate.topics, key=lambda topic: (len(topic), topic))

        rows: list[MeasuredTopicRow] = []
        for topic in topics:
            row = MeasuredTopicRow(
                run=self.name,
                measure=measure,
                topic=topic,
                value=values[topic],
                judged=judged_shares[topic],
            )
            rows.append(row)
        return rows


def list_headline(qrels: Qrels) -> list[Measure]:
    """Return the headline measures: nDCG@5 of each graded aspect, and macro-F1 of the stance."""
    headline = [make_headline_ndcg(aspect) for aspect in qrels.grades]
    if qrels.stances:
        headline.append(MACRO_F1)
    return headline


def evaluate_run(name: str, run: ParsedRun, qrels: Qrels, depth: int | None = None) -> Evaluation:
    """Measure a run on the topics that `select_topics` selects for it.

    Args:
        name: Name of the run.
        run: Run, in the order of its rank column.
        qrels: Judgments by assessors.
        depth: Cutoff of the recall; None for the length of the run's longest ranking.

    Raises:
        DataError: No document of the run is judged, or it has a stance that the task does not have.
        UsageError: The depth is below 1.
    """
    if depth is None:
        depth = max(len(ranking) for ranking in run.rankings.values())
    if depth < 1:
        raise UsageError(f"recall at {depth} documents: give a depth of 1 or more")
    selected = select_topics(qrels, [run])
    for aspect in selected.aspects:
        check_judged(run, selected, aspect)

    estimates: dict[Measure, Estimate] = {}
    for aspect, grades in selected.grades.items():
        estimates |= estimate_grades(run, aspect, grades, depth)

    # Precision and recall of each label are kept apart: they have no rows by topic, and runs are
    # not compared by them.
    label_estimates: dict[Measure, Estimate] = {}
    if selected.stances:
        estimates |= estimate_stances(run, selected, CUTOFF)
        label_estimates = estimate_labels(run, selected)

    return Evaluation(
        name=name,
        run=run,
        qrels=selected,
        estimates=estimates,
        labels=label_estimates,
        notes=_describe_aspects(run, selected),
    )


def _describe_aspects(run: ParsedRun, qrels: Qrels) -> list[str]:
    """Return the notes on a run, each with the aspects that it is true of.

    For example `relevance, quality: topics in the run, but not judged, …`.
    """
    aspects_by_note: dict[str, list[str]] = {}
    for aspect in qrels.aspects:
        notes = describe_topics(run, qrels, aspect)
        if aspect == STANCE:
            notes += describe_labels(run, qrels)
        for note in notes:
            aspects_by_note.setdefault(note, []).append(aspect)
    return [f"{', '.join(aspects)}: {note}" for note, aspects in aspects_by_note.items()]


def estimate_grades(
    run: ParsedRun, aspect: str, grades: Grades, depth: int
) -> dict[Measure, Estimate]:
    """Estimate all measures of one aspect's grades, each the mean over the judged topics.

    Args:
        run: Run to measure.
        aspect: Aspect of the grades.
        grades: Grades by topic and document.
        depth: Depth of the first stage, the cutoff of the recall.
    """
    # All in one call, which reads the rankings once; the loop puts them among the others in order.
    standard_estimates = _estimate_standard(run, aspect, grades, depth)

    estimates: dict[Measure, Estimate] = {}
    for kind in KINDS.values():
        for measure in kind.make_measures(aspect, depth):
            if isinstance(kind, StandardMeasure):
                estimates[measure] = standard_estimates[measure]
            elif isinstance(kind, TopicMeasure):
                estimates[measure] = _estimate_topics(kind, measure.cutoff, run, grades)
    return estimates


def _estimate_topics(
    kind: TopicMeasure, cutoff: int | None, run: ParsedRun, grades: Grades
) -> Estimate:
    """Estimate the mean of a measure over the topics that have a value."""
    values: dict[str, float] = {}
    for topic_id, judged in grades.items():
        ranking = run.rankings.get(topic_id, [])
        topic = GradedTopic(ranking=ranking, grades=judged, cutoff=cutoff)
        value = kind.compute(topic)
        if value is not None:
            values[topic_id] = value
    return _estimate_within_bounds(kind, values)


def _estimate_within_bounds(kind: MeasureKind, values: Mapping[str, float]) -> Estimate:
    """Estimate the mean of a measure's values by topic.

    Raises:
        ExtensionError: A value is outside the bounds that the measure declares.
    """
    bounds = kind.bounds
    if bounds is not None:
        for topic_id, value in values.items():
            if not bounds.lowest - TIE <= value <= bounds.highest + TIE:
                raise ExtensionError(
                    f"{kind.name}: topic {topic_id}: the value {value:g} is not from {bounds.lowest:g} to "
                    f"{bounds.highest:g}; declare the `bounds` of the measure, None if it has none"
                )
    return estimate_mean(values, bounds)


def _estimate_standard(
    run: ParsedRun, aspect: str, grades: Grades, depth: int
) -> dict[Measure, Estimate]:
    """Estimate the measures of an aspect that the library ir-measures computes, such as nDCG@5.

    Args:
        run: Run to measure.
        aspect: Aspect of the grades.
        grades: Grades by topic and document.
        depth: Depth of the first stage, the cutoff of the recall.
    """
    kinds = _list_standard_measures(aspect, depth)
    metrics = {measure: _make_metric(kind, measure.cutoff) for measure, kind in kinds.items()}
    values = _calculate(list(metrics.values()), run, grades)

    estimates: dict[Measure, Estimate] = {}
    for measure, metric in metrics.items():
        values_by_topic = {topic_id: values[metric, topic_id] for topic_id in grades}
        estimates[measure] = _estimate_within_bounds(kinds[measure], values_by_topic)
    return estimates


def _calculate(
    metrics: Sequence[Metric], run: ParsedRun, grades: Grades
) -> dict[tuple[Metric, str], float]:
    """Calculate measures of ir-measures; return their values by measure and topic id.

    One call calculates them all, since each call reads all rankings.
    """
    results = ir_measures.iter_calc(
        metrics,
        _convert_grades(grades),
        _convert_rankings(run, grades),
    )
    return {(result.measure, result.query_id): result.value for result in results}


def _list_standard_measures(aspect: str, depth: int) -> dict[Measure, StandardMeasure]:
    """Return the measures of an aspect that ir-measures computes, each with its kind."""
    kinds: dict[Measure, StandardMeasure] = {}
    for kind in KINDS.values():
        if isinstance(kind, StandardMeasure):
            for measure in kind.make_measures(aspect, depth):
                kinds[measure] = kind
    return kinds


def _make_metric(kind: StandardMeasure, cutoff: int | None) -> Metric:
    """Return the measure of ir-measures, at a cutoff if there is one."""
    metric = kind.make_metric()
    return metric if cutoff is None else metric @ cutoff


def _convert_grades(grades: Grades) -> dict[str, dict[str, int]]:
    """Return grades as whole numbers, since pytrec_eval takes no others; those below 0 become 0.

    A grade of 1 becomes `RELEVANT`, which is 1000, and a grade of 0.125 becomes 125. nDCG with
    linear gain does not change if all grades are multiplied.
    """
    converted: dict[str, dict[str, int]] = {}
    for topic_id, judged in grades.items():
        converted[topic_id] = {
            document_id: round(max(grade, 0.0) * RELEVANT) for document_id, grade in judged.items()
        }
    return converted


def _convert_rankings(run: ParsedRun, grades: Grades) -> dict[str, dict[str, float]]:
    """Return the scores of documents by topic, for the graded topics that the run has.

    Evaluators sort by score and then by id. A score is therefore made from the rank, so that no two
    documents of a topic have the same one.
    """
    scores: dict[str, dict[str, float]] = {}
    for topic_id, judged in grades.items():
        if topic_id not in run.rankings:
            continue

        scores_of_topic: dict[str, float] = {}
        for candidate in run.rankings[topic_id]:
            safe_id = _make_safe_id(candidate, judged)
            scores_of_topic[safe_id] = -float(candidate.rank)
        scores[topic_id] = scores_of_topic
    return scores


def _make_safe_id(candidate: Candidate, judged: Collection[str]) -> str:
    """Return the id of a judged document, or an invented one for an unjudged document.

    The id of an unjudged document may contain characters that end a string in C. For a measure, any
    other id is as good, as long as no judged document has it; no id in qrels contains a space.
    """
    if candidate.document_id in judged:
        return candidate.document_id
    return f" {candidate.rank}"


def describe_coverage(evaluations: Iterable[Evaluation], aspect: str) -> list[str]:
    """Return lines on the judged topics that runs are measured on.

    One line if it is the same for all runs, else one for each.
    """
    coverage_by_run: dict[str, str] = {}
    for evaluation in evaluations:
        if aspect in evaluation.qrels.aspects:
            coverage_by_run[evaluation.name] = str(evaluation.coverage(aspect))

    distinct = list(dict.fromkeys(coverage_by_run.values()))
    if len(distinct) == 1:
        return distinct
    return [f"{name}: {coverage}" for name, coverage in coverage_by_run.items()]


# A larger difference in the share of judged documents may decide a comparison of two runs.
_MAX_JUDGED_DIFFERENCE = 0.1


def describe_judging(run: Evaluation, baseline: Evaluation) -> list[str]:
    """Return a note for each aspect in which far more top documents of one run are judged.

    Unjudged documents count 0, which is why comparisons with BM25 on Touché 2020 were not fair
    (Thakur et al., SIGIR 2024, arXiv 2407.07790).
    """
    notes: list[str] = []
    for aspect in run.qrels.grades:
        judged_measure = make_headline_ndcg(aspect).judged
        share = run.estimates[judged_measure].value
        baseline_share = baseline.estimates[judged_measure].value
        if abs(share - baseline_share) > _MAX_JUDGED_DIFFERENCE:
            notes.append(
                f"{run.name}: {judged_measure} is {share:.3f}, and {baseline_share:.3f} for "
                f"{baseline.name}; part of the difference may come from the judging, since an "
                "unjudged document counts 0"
            )
    return notes
