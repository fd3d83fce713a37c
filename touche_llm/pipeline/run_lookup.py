"""Runs and their tasks, found by the path of a folder or of a run file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from touche_llm.data import trec_runs
from touche_llm.data.recognition import require_kind
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import DataError, UsageError
from touche_llm.pipeline import run_files
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.tasks import find_dataset_task, get_task
from touche_llm.tasks.base import Task


def find_run_directory(path: Path) -> RunDirectory | None:
    """Return the folder of a run of this program, given as the folder or as its run file; None for other run files.

    Raises:
        DataError: The folder has no run, or its last stage did not finish.
    """
    directory = RunDirectory(path if path.is_dir() else path.parent)
    if path != directory.path and (path.name != run_files.RUN or not directory.config_file.exists()):
        return None
    directory.check_finished("rank")
    if not directory.run_file.exists():
        raise DataError(
            f"{directory}: no {run_files.RUN} in this folder; run `touche-llm rank` for it, or name a run file"
        )
    return directory


def find_run_file(path: Path) -> Path:
    """Return the run file of a run's folder, or the file that was given; see `find_run_directory` for errors."""
    directory = find_run_directory(path) if path.is_dir() else None
    return path if directory is None else directory.run_file


def read_run(path: Path | str, labels: Collection[str] | None = None) -> ParsedRun:
    """Read the run of a folder, given as the folder or as its run file, or the run file of any tool, with its stances.

    A file has columns that are separated by any white space; a `rerank.jsonl` of TIRA has no stances. Only the run of a
    folder has chosen topics (`--topic`, `--limit-topics`).

    Args:
        path: Folder or file.
        labels: Valid stances beside `Q0`; None accepts any word.

    Raises:
        DataError: A line is no run line, a topic repeats a document, scores grow along the ranks, or a stance is not
            one of the labels; for a folder also as `find_run_directory`.
    """
    directory = find_run_directory(Path(path))
    return trec_runs.read_run(path, labels) if directory is None else directory.read_run(labels)


def find_task(name: str | None, runs: Collection[Path], dataset: str | None = None) -> Task:
    """Return the task of this name, or without a name the task of the first run that is a folder of this program.

    Raises:
        UsageError: There is no such task, or no run says which it is.
        DataError: A file is no run; or see `find_run_directory`.
    """
    for path in runs:
        if path.is_file():
            require_kind(path, "run", "rerank")
    if name is not None:
        return get_task(name)
    for path in runs:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; give a run file or the folder of a run")
        if (directory := find_run_directory(path)) is not None:
            return directory.read_task()
    if dataset is not None:
        return get_task(find_dataset_task(dataset))
    raise UsageError(
        "no run says of which task it is; name the task or its folder (`task: NAME`; see `touche-llm tasks list`)"
    )
