"""Copies of tasks beside runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from touche_llm.data.files import copy_file_of
from touche_llm.errors import DataError, UsageError
from touche_llm.prompts.few_shot import EXAMPLES_SUFFIX
from touche_llm.prompts.purposes import list_files
from touche_llm.settings.yaml_text import read_yaml
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.parts import TASK_FILE
from touche_llm.tasks.published import LEADERBOARD_FILE
from touche_llm.tasks.task import Task

# Folder of the copy of a task, in the folder of a run.
COPY = "task"


def copy_task(task: Task, folder: Path, used: Iterable[str] = ()) -> None:
    """Copy definition and templates of a task given as a folder into the folder of a run.

    The project's own tasks need no copy.

    Args:
        task: Task of the run.
        folder: Folder of the run.
        used: Names of templates with which outputs in the folder were made; copies of them stay as
            they are.
    """
    copy = folder / COPY
    is_copy_itself = copy.is_dir() and copy.samefile(task.folder)
    if task.is_own or is_copy_itself:
        return

    kept: set[Path] = set()
    for name in used:
        template = copy / f"{name}.jinja"
        if template.is_file():
            kept.update(list_files(template))

    for old_file in _list_copied_files(copy) - kept:
        old_file.unlink(missing_ok=True)
    for file in sorted(_list_task_files(task)):
        target = copy / file.relative_to(task.folder)
        if file.is_file() and target not in kept:
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file_of(task.folder, file, target)


def _list_task_files(task: Task) -> set[Path]:
    """Return the files of a task: its definition, its leaderboard, and all files of its templates."""
    files = {task.folder / TASK_FILE, task.folder / LEADERBOARD_FILE}
    for template in task.folder.glob("*.jinja"):
        files.update(list_files(template))
    return files


def _list_copied_files(copy: Path) -> set[Path]:
    """Return the files of an earlier copy that a new one may lack."""
    return {
        *copy.glob("*.jinja"),
        *copy.glob(f"*{EXAMPLES_SUFFIX}"),
        copy / LEADERBOARD_FILE,
    }


def find_task_folder(config_file: Path, base: Path | None = None) -> str | None:
    """Return the folder of a run's task: the one that its configuration names, or the run's copy.

    The copy is used if the named folder is missing, or its definition changed since the run.

    Args:
        config_file: Configuration of the run.
        base: Folder from which the configuration names the task's; None for the current folder.

    Returns:
        The folder; None if the run has no copy of its task.
    """
    copy = find_copy(config_file.parent)
    if copy is None:
        return None

    named = str(read_yaml(config_file).get("task"))
    if named in TASKS:
        return None
    folder = named if base is None else os.path.relpath(base / named)
    return folder if is_same_task(folder, copy) else copy


def is_same_task(first: str, second: str) -> bool:
    """Return whether two tasks have the same definition: a folder may have moved."""
    try:
        return get_task(first).model_dump() == get_task(second).model_dump()
    except (DataError, UsageError):
        return False


def find_copy(folder: Path) -> str | None:
    """Return the copy of a run's task in the run's folder, with the templates of the run.

    None if there is no copy, as for the project's own tasks.
    """
    copy = folder / COPY
    return str(copy) if (copy / TASK_FILE).is_file() else None


def is_copy(task: Task, folder: Path) -> bool:
    """Return whether a task was read from the copy in the folder of a run."""
    return not task.is_own and (folder / COPY).is_dir() and task.folder.samefile(folder / COPY)
