"""The figures of a run beside those of its first stage, as a report shows them."""

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
class Value:
    """A figure with its 95 % interval; all of them NaN where it is not defined."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure of a run.

    Attributes:
        name: as `measures.evaluate_run` names it.
        run: of the run.
        n: topics, or documents for the stance.
        first: of the first stage; None where it has no such figure.
        difference: the run's less the first stage's; only of nDCG@5.
        p: of the paired randomisation test of the difference.
        unjudged: documents among the first 5 of all topics that nobody judged; only of nDCG@5.
        bounds: lowest and highest value that judging these could give.
        first_unjudged: the same of the first stage.
        first_bounds: the same of the first stage.
        by_topic: for each topic the run's value and the first stage's, if it has one; only of nDCG@5.
    """

    name: str
    run: Value
    n: int
    first: Value | None = None
    difference: Value | None = None
    p: float | None = None
    unjudged: int = 0
    bounds: tuple[float, float] | None = None
    first_unjudged: int = 0
    first_bounds: tuple[float, float] | None = None
    by_topic: dict[str, tuple[float, float | None]] | None = None


@dataclass(frozen=True, slots=True)
class LabelScores:
    """How well one label was chosen: shares are NaN where they are of no document."""

    label: str
    precision: float
    recall: float
    f1: float
    true: int
    chosen: int


@dataclass(frozen=True, slots=True)
class Measured:
    """All figures of a run.

    Attributes:
        measures: all of them.
        headline: nDCG@5 of each graded aspect, and the stance's macro-F1.
        confusion: documents by true label (rows) and chosen label, in the task's order; empty without stance qrels.
        labels: of each label; empty without stance qrels.
        coverage: How many of the judged topics the figures of each aspect are over.
        notes: what to know of the judgments.
    """

    measures: list[Measure]
    headline: list[Measure]
    confusion: list[list[int]]
    labels: list[LabelScores]
    coverage: list[str]
    notes: list[str]


def measure(run: ParsedRun, first_stage: ParsedRun, qrels: Qrels, before: str) -> Measured:
    """Measure a run and its first stage, with the recall at the first stage's depth.

    Args:
        run: of the run.
        first_stage: has no stances.
        qrels: the judgments.
        before: what the first stage is called.

    Raises:
        DataError: none of the run's topics is judged.
    """
    # Only here, since they load pandas and scipy, which takes a while.
    from touche_llm.evaluation.measures import describe_uneven_judging, evaluate_run
    from touche_llm.evaluation.significance import compare

    depth = max(map(len, first_stage.rankings.values()))
    found = evaluate_run(_RUN, run, qrels, depth)
    first = evaluate_run(before, first_stage, replace(qrels, stances={}), depth)
    values, values_before = (
        {row["measure"]: row for row in each.summary().to_dict("records")} for each in (found, first)
    )
    headlines = headline_of(qrels)
    compared = [name for name in headlines if name != MACRO_F1]
    differences: dict[str, Mapping[str, Any]] = {}
    if compared:
        sides = {each.name: {name: each.estimates[name] for name in compared} for each in (found, first)}
        differences = {row["measure"]: row for row in compare(before, sides).to_dict("records")}
    measures = []
    for name, row in values.items():
        measured = Measure(
            name, value_of(row), row["n"], value_of(values_before[name]) if name in values_before else None
        )
        if name in differences:
            change = differences[name]
            unjudged, bounds = unjudged_of(found, name)
            first_unjudged, first_bounds = unjudged_of(first, name)
            other = by_topic(first, name)
            measured = replace(
                measured,
                difference=Value(change["difference"], change["low"], change["high"]),
                p=change["p"],
                unjudged=unjudged,
                bounds=bounds,
                first_unjudged=first_unjudged,
                first_bounds=first_bounds,
                by_topic={topic: (value, other.get(topic)) for topic, value in by_topic(found, name).items()},
            )
        measures.append(measured)
    headline = [each for each in measures if each.name in headlines]
    notes = notes_of([found]) + describe_uneven_judging(found, first)
    return Measured(measures, headline, *confusion_of(run, qrels), coverage_lines([found]), notes)


def headline_of(qrels: Qrels) -> list[str]:
    """The measures that come first: nDCG@5 of each graded aspect, and the stance's macro-F1."""
    from touche_llm.evaluation.measures import NDCG

    return [*(f"{aspect} {NDCG}" for aspect in qrels.grades), *([MACRO_F1] if qrels.stances else [])]


def coverage_lines(evaluations: Sequence[Evaluation]) -> list[str]:
    """How many of the judged topics the figures are over, aspect by aspect."""
    from touche_llm.evaluation.measures import describe_coverage

    aspects = dict.fromkeys(name.split(" ", 1)[0] for name in headline_of(evaluations[0].qrels))
    return [f"{aspect}: {line}" for aspect in aspects for line in describe_coverage(evaluations, aspect)]


def notes_of(evaluations: Sequence[Evaluation]) -> list[str]:
    """What people should know of figures by the same judgments, but what is said beside the headline measures."""
    from touche_llm.evaluation.notes import format_notes

    qrels = evaluations[0].qrels
    headlines = headline_of(qrels)
    notes = {each.name: [note for note in each.notes if note.aspect not in headlines] for each in evaluations}
    return qrels.notes() + format_notes(notes)


def by_topic(evaluation: Evaluation, measure: str) -> dict[str, float]:
    """The value of a measure of each topic that takes part in it."""
    figure = evaluation.estimates[measure]
    return dict(zip(figure.topics, figure.by_topic().tolist(), strict=True))


def unjudged_of(evaluation: Evaluation, measure: str) -> tuple[int, tuple[float, float] | None]:
    """How many documents at the top nobody judged, and how low and how high the value could be if they were.

    0 and None of a measure for which that is not known.
    """
    bounds = evaluation.bounds[evaluation.bounds["measure"] == measure]
    if bounds.empty:
        return 0, None
    return int(bounds["unjudged"].sum()), (float(bounds["lowest"].mean()), float(bounds["highest"].mean()))


def confusion_of(run: ParsedRun, qrels: Qrels) -> tuple[list[list[int]], list[LabelScores]]:
    """The confusion matrix and what it says of each label, see `Measured`; both empty without stance qrels."""
    from touche_llm.evaluation.stance_measures import confusion_matrix, summarize_labels

    if not qrels.stances:
        return [], []
    confusion = confusion_matrix(run, qrels)
    labels = [
        LabelScores(row["label"], row["precision"], row["recall"], row["F1"], row["true"], row["chosen"])
        for row in summarize_labels(confusion).to_dict("records")
    ]
    return confusion.to_numpy().tolist(), labels


def value_of(row: Mapping[str, Any]) -> Value:
    """The value of a row of a summary, with its interval."""
    return Value(row["value"], row["low"], row["high"])
