"""Shared tasks by name."""

from __future__ import annotations

from touche_llm.errors import UsageError
from touche_llm.tasks.base import Task
from touche_llm.tasks.comparative import COMPARATIVE
from touche_llm.tasks.controversial import CONTROVERSIAL
from touche_llm.tasks.sentence_pairs import SENTENCE_PAIRS

TASKS: dict[str, Task] = {task.name: task for task in (COMPARATIVE, CONTROVERSIAL, SENTENCE_PAIRS)}


DEFAULT_TASK = COMPARATIVE.name


def get_task(name: str) -> Task:
    """Return the task of a name; raises UsageError if it is unknown."""
    if name not in TASKS:
        raise UsageError(f"no task {name!r}; known are {', '.join(TASKS)}")
    return TASKS[name]
