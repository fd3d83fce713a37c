"""Evaluation of runs with human judgments: measures, significance and comparisons."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import ToucheWarning, UsageError
from touche_llm.evaluation.qrels import Qrels

if TYPE_CHECKING:
    from pandas import DataFrame


def evaluate(
    run: ParsedRun, qrels: Qrels, *, name: str = "run", depth: int | None = None, per_topic: bool = False
) -> DataFrame:
    """Evaluate a run.

    Args:
        run: Run to measure: a `Ranking`, or what `read_run` returns.
        qrels: Judgments to measure it with, see `read_qrels`.
        name: Name of the run, for the column `run`.
        depth: First-stage depth, for the recall; the length of the run's longest ranking if None.
        per_topic: Whether to return the values by topic instead of their means.

    Returns:
        A row for each measure, with the columns `run`, `measure`, `value`, `low` and `high` (95 % bootstrap interval
        over topics), `n` (topics, or documents for the stance), `topics` (judged topics that the run is measured on),
        `missing` (number of these that the run lacks; each counts 0 for grades) and `judged_topics` (of the qrels file;
        `Qrels.only` measures a run by some of them). A value that is not defined is NaN. With `per_topic`, a row for
        each measure and topic, with the columns `run`, `measure`, `topic` and `value`.

    Warns:
        ToucheWarning: Topics are missing, documents are unjudged, and the like.

    Raises:
        DataError: None of the run's topics is judged.
        UsageError: The depth is below 1.
    """
    if not isinstance(run, ParsedRun):
        raise UsageError(
            f"run: must be a Ranking or what read_run returns (of a Run: its ranking), not {type(run).__name__}"
        )
    # Imported here because pandas is slow to load.
    from touche_llm.evaluation.measures import evaluate_run
    from touche_llm.evaluation.notes import format_notes

    found = evaluate_run(name, run, qrels, depth)
    for note in qrels.notes() + format_notes({name: found.notes}):
        warnings.warn(note, ToucheWarning, stacklevel=2)
    return found.per_topic() if per_topic else found.summary()
