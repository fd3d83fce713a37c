"""Evaluation of runs with human judgments: measures, significance and comparisons."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import ToucheWarning, UsageError
from touche_llm.evaluation.qrels import Qrels, check_judged, format_notes
from touche_llm.evaluation.significance import describe_missing_intervals

if TYPE_CHECKING:
    from pandas import DataFrame


def evaluate(
    run: ParsedRun,
    qrels: Qrels,
    *,
    name: str = "run",
    depth: int | None = None,
    per_topic: bool = False,
    baseline: ParsedRun | None = None,
) -> DataFrame:
    """Evaluate a run.

    Args:
        run: Run to measure: a `Ranking`, or what `read_run` returns; by its chosen topics, else by all judged ones.
        qrels: Judgments to measure it with, see `read_qrels`.
        name: Name of the run, for the column `run`.
        depth: First-stage depth, for the recall; the length of the run's longest ranking if None.
        per_topic: Whether to return the values by topic instead of their means.
        baseline: Another run, such as the first stage: a loss against it that could come from unjudged documents alone
            gives a warning.

    Returns:
        A row for each measure, with the columns `run`, `measure`, `value`, `low` and `high` (95 % interval over topics,
        see `significance.compute_interval`), `n` (topics, or documents for the stance), `topics` (judged topics that
        the run is measured on), `missing` (number of these that the run lacks; each counts 0 for grades),
        `judged_topics` (of the qrels file; `Qrels.restrict_to` measures a run by some of them) and `judged` (judged@k:
        share of judged documents among the first k, the measure's cutoff, or in the whole ranking). A value that is not
        defined is NaN, as are the ends of an interval over too few topics. With `per_topic`, a row for each measure and
        topic, with the columns `run`, `measure`, `topic`, `value` and `judged`.

    Warns:
        ToucheWarning: Topics are missing, documents are unjudged, there are too few topics for an interval, and the
            like; or unjudged documents could explain the difference from the baseline, see
            `measures.describe_judging`.

    Raises:
        DataError: None of the run's topics is judged, or no document of the run and the baseline.
        UsageError: The depth is below 1.
    """
    if not isinstance(run, ParsedRun):
        raise UsageError(
            f"run: must be a Ranking or what read_run returns (of a Run: its ranking), not {type(run).__name__}"
        )
    check_judged(qrels, run, *([] if baseline is None else [baseline]))
    # Imported here because pandas is slow to load.
    from touche_llm.evaluation.measures import describe_judging, evaluate_run

    found = evaluate_run(name, run, qrels, depth)
    notes = [*qrels.notes, *format_notes({name: found.notes})]
    if baseline is not None:
        recall_depth = depth or max(map(len, run.rankings.values()))
        graded = replace(qrels, stances={})
        notes += describe_judging(found, evaluate_run("the baseline", baseline, graded, recall_depth))
    table = found.per_topic() if per_topic else found.summary()
    if not per_topic:
        notes += describe_missing_intervals(table.to_dict("records"))
    for note in notes:
        warnings.warn(note, ToucheWarning, stacklevel=2)
    return table
