"""Evaluation of runs, as a program calls it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import ToucheWarning
from touche_llm.evaluation.qrels import Qrels
from touche_llm.evaluation.significance import describe_intervals

if TYPE_CHECKING:
    from pandas import DataFrame


def evaluate(
    run: ParsedRun,
    qrels: Qrels,
    *,
    name: str = "run",
    depth: int | None = None,
    per_topic: bool = False,
) -> DataFrame:
    """Evaluate a run.

    Args:
        run: Run to measure: a `Ranking`, or what `read_run` returns; by its chosen topics, else by
            all judged ones.
        qrels: Judgments to measure it with, see `read_qrels`.
        name: Name of the run, for the column `run`.
        depth: First-stage depth, for the recall; the length of the run's longest ranking if None.
        per_topic: Whether to return the values by topic instead of their means.

    Returns:
        A row for each measure, with the columns `run`, `measure` (text, such as `relevance nDCG@5`),
        `value`, `low` and `high` (95 % interval over topics, see `significance.compute_interval`),
        `n` (topics, or documents for the stance), `topics` (judged topics that the run is measured
        on), `missing` (number of these that the run lacks; each counts 0 for grades),
        `judged_topics` (of the qrels file; `Qrels.restrict_to` measures a run by some of them) and
        `judged` (judged@k: share of judged documents among the first k, the measure's cutoff, or in
        the whole ranking). A value that is not defined is NaN, as are the ends of an interval over
        too few topics. With `per_topic`, a row for each measure and topic, with the columns `run`,
        `measure`, `topic`, `value` and `judged`.

    Warns:
        ToucheWarning: Topics are missing, documents have no label, there are too few topics for an
            interval, and the like.

    Raises:
        DataError: No document of the run is judged.
        UsageError: The depth is below 1.
    """
    # Imported here because pandas is slow to load.
    from touche_llm.evaluation.measures import evaluate_run

    evaluation = evaluate_run(name, run, qrels, depth)
    notes = list(evaluation.notes)
    if per_topic:
        table = evaluation.per_topic()
    else:
        table = evaluation.summary()
        notes += describe_intervals(table.to_dict("records"))
    table["measure"] = [str(measure) for measure in table["measure"]]

    for note in notes:
        warnings.warn(note, ToucheWarning, stacklevel=2)
    return table
