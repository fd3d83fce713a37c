"""Evaluation of runs with human judgments: measures, significance and comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from touche_llm.data.trec_runs import ParsedRun
from touche_llm.evaluation.qrels import Qrels

if TYPE_CHECKING:
    from pandas import DataFrame


def evaluate(run: ParsedRun, qrels: Qrels, *, name: str = "run", depth: int | None = None) -> DataFrame:
    """Evaluate a run; `measures.evaluate_run` also gives values by topic and notes.

    Args:
        run: see `runs.read_run`.
        qrels: see `qrels.read_qrels`.
        name: Name of the run, for the column `run`.
        depth: First-stage depth, for the recall; the length of the run's longest ranking if None.

    Returns:
        A row for each measure, with the columns `run`, `measure`, `value`, `low` and `high` (95 % bootstrap interval
        over topics), `n` (topics, or documents for the stance), `topics` (judged topics that the run is measured on),
        `missing` (number of these that the run lacks; each counts 0 for grades) and `judged_topics` (of the qrels file;
        `Qrels.only` measures a run by some of them). A value that is not defined is NaN. What should be known of the
        figures, as topics that are missing and documents that nobody judged, is in `attrs["notes"]`.

    Raises:
        DataError: None of the run's topics is judged.
        UsageError: The depth is below 1.
    """
    # Deferred, since importing pandas is slow.
    from touche_llm.evaluation.measures import evaluate_run
    from touche_llm.evaluation.notes import format_notes

    found = evaluate_run(name, run, qrels, depth)
    table = found.summary()
    table.attrs["notes"] = qrels.notes() + format_notes({name: found.notes})
    return table
