"""Results for analysis: each run line with grades, stance and the source of the stance."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from touche_llm.data.files import open_atomic
from touche_llm.data.records import Judgment, StanceReading
from touche_llm.data.trec_runs import DECIMALS, NO_STANCE_COLUMN
from touche_llm.judging.stance import StanceSettings, choose_stance
from touche_llm.tasks.base import Task

# Source of a label: the judge prompt, the stance prompt, a threshold that overrode the most probable label, the
# sentences of a pair, or the task's label for an unknown stance; "none" if the task has no stances.
StanceSource = Literal["judge", "stance", "threshold", "inherited", "imputed", "none"]


class ChosenStance(NamedTuple):
    """The stance of a document, its source, and the probabilities of the labels, None if unknown."""

    label: str
    source: StanceSource
    probabilities: Mapping[str, float] | None


def choose_label(
    judgment: Judgment | None, reading: StanceReading | None, task: Task, settings: StanceSettings | None
) -> ChosenStance | None:
    """Choose the stance of a document by the stance prompt if it was used, else by the judge prompt.

    Returns:
        The stance; without an answer the task's label for an unknown stance, or None if it has no such label. `Q0` if
        the task has no stances.
    """
    if not task.stances:
        return ChosenStance(NO_STANCE_COLUMN, "none", None)
    if reading is not None:
        known = reading.probabilities if reading.source == "probabilities" else None
        if known is None:
            return ChosenStance(choose_stance(reading.probabilities, {}, task), "stance", None)
        thresholds = settings.thresholds if settings is not None else {}
        return _apply_thresholds(known, thresholds, task, "stance")
    if judgment is None:
        return None if task.unknown_stance is None else ChosenStance(task.unknown_stance, "imputed", None)
    if judgment.source == "inherited":
        return ChosenStance(judgment.stance, "inherited", None)
    probabilities = judgment.readings["stance"].probabilities if "stance" in judgment.readings else None
    # Thresholds belong to one prompt: the judge prompt only if the stance prompt is not used.
    if probabilities and settings is not None and not settings.prompt_depth and settings.thresholds:
        return _apply_thresholds(probabilities, settings.thresholds, task, "judge")
    return ChosenStance(judgment.stance, "judge", probabilities)


def _apply_thresholds(
    probabilities: Mapping[str, float], thresholds: Mapping[str, float], task: Task, source: StanceSource
) -> ChosenStance:
    label = choose_stance(probabilities, thresholds, task)
    changed = label != choose_stance(probabilities, {}, task)
    return ChosenStance(label, "threshold" if changed else source, probabilities)


def list_result_columns(task: Task) -> tuple[str, ...]:
    """Return the columns of `results.tsv`; those of the stance only if the task has stances."""
    stance = ("stance", "stance_source") if task.stances else ()
    probabilities = (f"p_{stance}" for stance in task.stances)
    return ("topic", "document", "rank", "score", *stance, *task.question.grades, *probabilities)


def write_results(path: Path, rows: Iterable[tuple[Any, ...]], task: Task) -> None:
    """Write a header and a tab-separated line for each line of the run, whole or not at all.

    Unknown values are empty; a document id with a quotation mark is quoted as CSV is, which pandas and R undo. The rows
    are those of `Ranking.list_rows`.
    """
    columns = list_result_columns(task)
    score = columns.index("score")
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(columns)
    writer.writerows((*row[:score], f"{row[score]:.{DECIMALS}f}", *row[score + 1 :]) for row in rows)
    with open_atomic(path) as stream:
        stream.write(text.getvalue().encode())
