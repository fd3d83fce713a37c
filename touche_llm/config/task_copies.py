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
    """Copy definition and templates of a task given as a folder into `folder`.

    The project's own need no copy.

    Copies of the templates `used`, which the outputs in the folder were made with, stay as they
    are.
    """
    target = folder / COPY
    if task.is_own or (target.is_dir() and target.samefile(task.folder)):
        return
    templates = [target / f"{name}.jinja" for name in used]
    kept = {file for template in templates if template.is_file() for file in list_files(template)}
    files = {task.folder / TASK_FILE, task.folder / LEADERBOARD_FILE}
    for template in task.folder.glob("*.jinja"):
        files |= list_files(template)
    for old in {
        *target.glob("*.jinja"),
        *target.glob(f"*{EXAMPLES_SUFFIX}"),
        target / LEADERBOARD_FILE,
    } - kept:
        old.unlink(missing_ok=True)
    for file in sorted(files):
        copy = target / file.relative_to(task.folder)
        if file.is_file() and copy not in kept:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy_file_of(task.folder, file, copy)


def find_task_folder(config_file: Path, base: Path | None = None) -> str | None:
    """Return the folder of the task of a configuration with a copy beside it.

    None if there is no copy.

    That is the folder that the configuration names, from `base` if given, or the copy if it is
    missing there or its definition changed.
    """
    copy = find_copy(config_file.parent)
    if copy is None:
        return None
    given = str(read_yaml(config_file).get("task"))
    if given in TASKS:
        return None
    found = given if base is None else os.path.relpath(base / given)
    return found if is_same_task(found, copy) else copy


def is_same_task(first: str, second: str) -> bool:
    """Return whether two tasks have the same definition: a folder may have moved."""
    try:
        return get_task(first).model_dump() == get_task(second).model_dump()
    except (DataError, UsageError):
        return False


def find_copy(folder: Path) -> str | None:
    """Return the copy of the task in the folder of a run, whose templates are those of the run.

    None if there is none.

    The project's own tasks have no copy.
    """
    copy = folder / COPY
    return str(copy) if (copy / TASK_FILE).is_file() else None


def is_copy(task: Task, folder: Path) -> bool:
    """Return whether a task was read from the copy in the folder of a run."""
    return not task.is_own and (folder / COPY).is_dir() and task.folder.samefile(folder / COPY)
