"""The figures of a run beside those of its first stage, as a report shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from touche_llm.qrels import STANCE, Qrels
from touche_llm.runs import ReadRun

_RUN, _FIRST = "run", "first stage"


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
        notes: what to know of the judgments.
    """

    measures: list[Measure]
    headline: list[Measure]
    confusion: list[list[int]]
    labels: list[LabelScores]
    notes: list[str]


def measure(run: ReadRun, first_stage: ReadRun, qrels: Qrels, depth: int) -> Measured:
    """Measure a run and its first stage.

    Args:
        run: of the run.
        first_stage: has no stances.
        qrels: the judgments.
        depth: of the recall.

    Raises:
        DataError: none of the run's topics is judged.
    """
    # Only here, since they load pandas and scipy, which takes a second.
    from touche_llm.evaluation.certainty import compare
    from touche_llm.evaluation.measures import NDCG, evaluate_run
    from touche_llm.evaluation.stance_measures import by_label, confusion_matrix

    found = evaluate_run(_RUN, run, qrels, depth)
    before = evaluate_run(_FIRST, first_stage, replace(qrels, stances={}), depth)
    values, values_before = (
        {row["measure"]: row for row in each.summary().to_dict("records")} for each in (found, before)
    )
    compared = [f"{aspect} {NDCG}" for aspect in qrels.grades]
    differences: dict[str, Mapping[str, Any]] = {}
    if compared:
        sides = {each.name: {name: each.figures[name] for name in compared} for each in (found, before)}
        differences = {row["measure"]: row for row in compare(_FIRST, sides).to_dict("records")}
    measures = []
    for name, row in values.items():
        measured = Measure(name, _value(row), row["n"], _value(values_before[name]) if name in values_before else None)
        if name in differences:
            change = differences[name]
            bounds = found.bounds[found.bounds["measure"] == name]
            own, other = (
                dict(zip(each.figures[name].topics, each.figures[name].by_topic().tolist(), strict=True))
                for each in (found, before)
            )
            measured = replace(
                measured,
                difference=Value(change["difference"], change["low"], change["high"]),
                p=change["p"],
                unjudged=int(bounds["unjudged"].sum()),
                bounds=(float(bounds["lowest"].mean()), float(bounds["highest"].mean())),
                by_topic={topic: (value, other.get(topic)) for topic, value in own.items()},
            )
        measures.append(measured)
    headline = [each for each in measures if each.name in (*compared, f"{STANCE} macro-F1")]
    notes = qrels.notes() + found.notes
    if not qrels.stances:
        return Measured(measures, headline, [], [], notes)
    confusion = confusion_matrix(run, qrels)
    labels = [
        LabelScores(row["label"], row["precision"], row["recall"], row["F1"], row["true"], row["chosen"])
        for row in by_label(confusion).to_dict("records")
    ]
    return Measured(measures, headline, confusion.to_numpy().tolist(), labels, notes)


def _value(row: Mapping[str, Any]) -> Value:
    return Value(row["value"], row["low"], row["high"])
