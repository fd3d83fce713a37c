"""Measures of a run and of its first stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from touche_llm.data.trec_runs import ParsedRun
from touche_llm.evaluation.qrels import STANCE, Qrels

if TYPE_CHECKING:
    from touche_llm.evaluation.measures import Evaluation

MACRO_F1 = f"{STANCE} macro-F1"
_RUN = "run"


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    """The value of a measure and its 95 % confidence interval; NaN where undefined."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RunMeasure:
    """One measure of a run and of its first stage. The fields from `difference` on are set for nDCG@5 only.

    Attributes:
        name: Name of the measure, as in `measures.evaluate_run`.
        run: Value of the run.
        n: Number of topics, or of documents for the stance.
        first: Value of the first stage; None where it has none.
        difference: Value of the run minus that of the first stage.
        p: p-value of the paired randomisation test.
        unjudged: Number of unjudged documents among the top 5 of all topics.
        bounds: Lowest and highest possible value if these were judged.
        first_unjudged: Like `unjudged`, for the first stage.
        first_bounds: Like `bounds`, for the first stage.
        by_topic: Values of the run and of the first stage, by topic; None where the first stage lacks the topic.
    """

    name: str
    run: MeasuredValue
    n: int
    first: MeasuredValue | None = None
    difference: MeasuredValue | None = None
    p: float | None = None
    unjudged: int = 0
    bounds: tuple[float, float] | None = None
    first_unjudged: int = 0
    first_bounds: tuple[float, float] | None = None
    by_topic: dict[str, tuple[float, float | None]] | None = None


@dataclass(frozen=True, slots=True)
class LabelMeasures:
    """Measures of one stance label; NaN where undefined, for lack of documents."""

    label: str
    precision: float
    recall: float
    f1: float
    true: int
    chosen: int


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The evaluation of a run.

    Attributes:
        measures: All measures.
        headline: nDCG@5 of each graded aspect, and macro-F1 of the stance.
        confusion: Number of documents by true label (rows) and label of the run (columns), in the order of the task;
            empty without stance qrels.
        labels: Measures of each label; empty without stance qrels.
        coverage: Number of evaluated topics out of the judged ones, a line for each aspect.
        notes: Limitations of the evaluation.
    """

    measures: list[RunMeasure]
    headline: list[RunMeasure]
    confusion: list[list[int]]
    labels: list[LabelMeasures]
    coverage: list[str]
    notes: list[str]


def measure_run(run: ParsedRun, first_stage: ParsedRun, qrels: Qrels, before: str) -> MeasuredRun:
    """Evaluate a run and its first stage, with recall at the depth of the first stage.

    Args:
        run: Run to evaluate.
        first_stage: Candidates, without stances.
        qrels: Judgments.
        before: Name of the first stage.

    Raises:
        DataError: None of the topics of the run is judged.
    """
    # Imported late: pandas and scipy load slowly.
    from touche_llm.evaluation.measures import describe_uneven_judging, evaluate_run
    from touche_llm.evaluation.significance import compare

    depth = max(map(len, first_stage.rankings.values()))
    found = evaluate_run(_RUN, run, qrels, depth)
    first = evaluate_run(before, first_stage, replace(qrels, stances={}), depth)
    values, values_before = (
        {row["measure"]: row for row in evaluation.summary().to_dict("records")} for evaluation in (found, first)
    )
    headlines = select_headline(qrels)
    compared = [name for name in headlines if name != MACRO_F1]
    differences: dict[str, Mapping[str, Any]] = {}
    if compared:
        sides = {
            evaluation.name: {name: evaluation.estimates[name] for name in compared} for evaluation in (found, first)
        }
        differences = {row["measure"]: row for row in compare(before, sides).to_dict("records")}
    measures = []
    for name, row in values.items():
        measured = RunMeasure(
            name, read_value(row), row["n"], read_value(values_before[name]) if name in values_before else None
        )
        if name in differences:
            change = differences[name]
            unjudged, bounds = get_unjudged(found, name)
            first_unjudged, first_bounds = get_unjudged(first, name)
            other = by_topic(first, name)
            measured = replace(
                measured,
                difference=MeasuredValue(change["difference"], change["low"], change["high"]),
                p=change["p"],
                unjudged=unjudged,
                bounds=bounds,
                first_unjudged=first_unjudged,
                first_bounds=first_bounds,
                by_topic={topic: (value, other.get(topic)) for topic, value in by_topic(found, name).items()},
            )
        measures.append(measured)
    headline = [measure for measure in measures if measure.name in headlines]
    notes = collect_notes([found]) + describe_uneven_judging(found, first)
    return MeasuredRun(measures, headline, *compute_confusion(run, qrels), describe_all_coverage([found]), notes)


def select_headline(qrels: Qrels) -> list[str]:
    """Return the headline measures: nDCG@5 of each graded aspect, and macro-F1 of the stance."""
    from touche_llm.evaluation.measures import NDCG

    return [*(f"{aspect} {NDCG}" for aspect in qrels.grades), *([MACRO_F1] if qrels.stances else [])]


def describe_all_coverage(evaluations: Sequence[Evaluation]) -> list[str]:
    """Describe how many of the judged topics are evaluated, a line for each aspect."""
    from touche_llm.evaluation.measures import describe_coverage

    aspects = dict.fromkeys(name.split(" ", 1)[0] for name in select_headline(evaluations[0].qrels))
    return [f"{aspect}: {line}" for aspect in aspects for line in describe_coverage(evaluations, aspect)]


def collect_notes(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the notes on evaluations by the same qrels, except those shown beside the headline measures."""
    from touche_llm.evaluation.notes import format_notes

    qrels = evaluations[0].qrels
    headlines = select_headline(qrels)
    notes = {
        evaluation.name: [note for note in evaluation.notes if note.aspect not in headlines]
        for evaluation in evaluations
    }
    return qrels.notes() + format_notes(notes)


def by_topic(evaluation: Evaluation, measure: str) -> dict[str, float]:
    """Return the values of a measure by topic."""
    estimate = evaluation.estimates[measure]
    return dict(zip(estimate.topics, estimate.by_topic().tolist(), strict=True))


def get_unjudged(evaluation: Evaluation, measure: str) -> tuple[int, tuple[float, float] | None]:
    """Return the number of unjudged documents above the cutoff, and the bounds of the value if they were judged.

    Measures without known bounds give 0 and None.
    """
    bounds = evaluation.bounds[evaluation.bounds["measure"] == measure]
    if bounds.empty:
        return 0, None
    return int(bounds["unjudged"].sum()), (float(bounds["lowest"].mean()), float(bounds["highest"].mean()))


def compute_confusion(run: ParsedRun, qrels: Qrels) -> tuple[list[list[int]], list[LabelMeasures]]:
    """Return the confusion matrix and the measures of each label, as in `MeasuredRun`; empty without stance qrels."""
    from touche_llm.evaluation.stance_measures import count_confusion, summarize_labels

    if not qrels.stances:
        return [], []
    confusion = count_confusion(run, qrels)
    labels = [
        LabelMeasures(row["label"], row["precision"], row["recall"], row["F1"], row["true"], row["chosen"])
        for row in summarize_labels(confusion).to_dict("records")
    ]
    return confusion.to_numpy().tolist(), labels


def read_value(row: Mapping[str, Any]) -> MeasuredValue:
    """Return the value and the interval in a row of a summary."""
    return MeasuredValue(row["value"], row["low"], row["high"])
