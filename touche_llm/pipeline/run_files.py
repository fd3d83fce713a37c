"""Results for analysis: each run line with grades, stance and the source of the stance."""

from __future__ import annotations

import csv
import fcntl
import io
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from touche_llm.data.io import open_atomic
from touche_llm.data.records import Judgment, StanceReading
from touche_llm.data.trec_runs import DECIMALS, NO_STANCE_COLUMN
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.labels import StanceSettings, choose_stance
from touche_llm.tasks.task import Task

CONFIG = "config.yaml"
METADATA = "ir-metadata.yml"
# Locked by the process that writes; the file remains.
LOCK = ".touche-llm.lock"
CANDIDATES = "candidates.run.txt"
# Candidates of the first stage if pairs are made.
SENTENCES = "sentences.run.txt"
SENTENCE_JUDGMENTS = "sentence_judgments.jsonl"
# Only if topics name no objects.
OBJECTS = "objects.jsonl"
JUDGMENTS = "judgments.jsonl"
# Answers to the stance prompt.
STANCES = "stances.jsonl"
FAILURES = "failures.jsonl"
# Only with query expansion.
QUERIES = "queries.jsonl"
QUERY_FAILURES = "query_failures.jsonl"
# Only if the ranking compares documents.
COMPARISONS = "comparisons.jsonl"
COMPARISON_FAILURES = "comparison_failures.jsonl"
RUN = "run.txt"
# Run lines with grades and stances, for analysis.
RESULTS = "results.tsv"
# Only with `touche-llm report`; outdated as soon as a stage runs again.
REPORT = "report.html"
# Only with `touche-llm evaluate`; it names the run file that it measured by its hash, and so survives later stages.
EVALUATION = "evaluation.yaml"
# Only with `touche-llm batch`: the last export.
BATCH = "batch.json"
# Only in a recorded run, which has some files of a run's folder, but is none.
RECORDED = "recorded.json"
OF_RETRIEVE = (CANDIDATES, SENTENCES, QUERIES, QUERY_FAILURES)
# Judging pairs replaces the candidates too, but does not remove them.
OF_JUDGE = (JUDGMENTS, OBJECTS, STANCES, SENTENCE_JUDGMENTS, FAILURES)
# The run comes first so that an interrupted removal never leaves a run without its inputs.
OF_RANK = (RUN, RESULTS, COMPARISONS, COMPARISON_FAILURES)
ALL_FAILURES = (QUERY_FAILURES, FAILURES, COMPARISON_FAILURES)
# Outputs of each stage, in the order of the stages.
OUTPUTS: Mapping[str, tuple[str, ...]] = {"retrieve": OF_RETRIEVE, "judge": OF_JUDGE, "rank": OF_RANK}
STAGES = tuple(OUTPUTS)


# Bytes of a lock file that an error shows; a file of this program is shorter.
_MAX_HOLDER = 500


@contextmanager
def lock_run(folder: Path, command: str, warn: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock on a run's folder while the block runs.

    The system releases it when the process dies, however it dies; the file stays and names the last holder and its
    command, for example `judge`. A file system without locks gives a warning.

    Raises:
        UsageError: Another process holds the lock; the message names it.
        DataError: The folder does not exist, or the lock file cannot be opened.
    """
    path = folder / LOCK
    try:
        # A symbolic link could make this overwrite another file.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; run `touche-llm retrieve --out {folder}` first") from error
        raise DataError(
            f"{path}: cannot open the lock file: {error.strerror}; make it a file that you may write, or remove it"
        ) from error
    with open(descriptor, "r+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = file.read(_MAX_HOLDER).decode(errors="replace").strip() or "another process"
            raise UsageError(
                f"{folder}: {holder} is writing there; wait until it ends, or use another folder"
            ) from error
        except OSError as error:
            warn(
                f"{folder}: its file system has no locks ({error.strerror}); let no two commands write there at a time"
            )
        now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
        file.truncate()
        file.write(f"touche-llm {command}, process {os.getpid()} on {socket.gethostname()} since {now}\n".encode())
        yield


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
