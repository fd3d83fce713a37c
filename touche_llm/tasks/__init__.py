"""Tasks by name, or as folders with a `task.yaml` and templates."""

from __future__ import annotations

from pathlib import Path

from touche_llm.errors import DataError, UsageError
from touche_llm.tasks.parts import TASK_FILE
from touche_llm.tasks.task import Task, load_task
from touche_llm.tasks.task import prompts_folder as prompts_folder

DEFAULT_TASK = "comparative"
# The project's own tasks by name.
TASKS: dict[str, Task] = {
    file.parent.name: load_task(file.parent)
    for file in sorted(prompts_folder().glob(f"*/{TASK_FILE}"))
}
# Help of the options that take a task.
TASK_HELP = f"Task, by its name (`touche-llm tasks list`) or as a folder with a {TASK_FILE}"


def get_task(name: str) -> Task:
    """Return the task with this name, or of this folder with a `task.yaml` and templates.

    Raises:
        UsageError: There is no task and no folder of this name.
        DataError: The folder has no valid `task.yaml`, or lacks a template; names file, key and
            allowed values.
    """
    if name in TASKS:
        return TASKS[name]

    folder = Path(name)
    if not folder.is_dir():
        raise UsageError(
            f"no task {name!r}; known are {', '.join(TASKS)}; or give a folder with a {TASK_FILE}"
        )
    task = load_task(folder)
    if task.name not in TASKS:
        return task

    own = TASKS[task.name]
    if not own.folder.samefile(folder):
        raise DataError(
            f"{folder / TASK_FILE}: name: {own.name!r} is a task of the project; give another name than "
            f"{', '.join(TASKS)}"
        )
    return own


def find_dataset_task(dataset: str) -> str:
    """Return the name of the task of a dataset of ir_datasets.

    Raises:
        UsageError: No task of the project names the dataset, so that the task has to be given.
    """
    for task in TASKS.values():
        if dataset in task.corpus.datasets:
            return task.name
    raise UsageError(
        f"dataset: the task of {dataset!r:.200} is not known; name it (`task: NAME`; see `touche-llm tasks list`)"
    )
