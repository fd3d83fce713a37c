"""All kinds of task."""

from __future__ import annotations

from collections.abc import Mapping

from touche_llm.errors import DataError
from touche_llm.extensions import load_extensions

# Imported because each registers a kind.
from touche_llm.kinds import documents, registry  # noqa: F401
from touche_llm.kinds.pairs import kind as pairs  # noqa: F401
from touche_llm.kinds.registry import Kind
from touche_llm.tasks.parts import TASK_FILE
from touche_llm.tasks.task import Task


def _list_kinds() -> list[Kind]:
    """Return all kinds in their order, after which none can be registered.

    Raises:
        ExtensionError: A package with a kind cannot be imported.
    """
    load_extensions()
    registry.KINDS.close()
    return sorted(registry.KINDS.by_name.values(), key=lambda kind: (kind.order, kind.name))


KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _list_kinds()}


def get_kind(task: Task) -> Kind:
    """Return the kind of a task.

    Raises:
        DataError: No such kind is registered, or the task lacks what its kind needs; names file,
            key and allowed values.
    """
    file = task.folder / TASK_FILE
    kind = KINDS.get(task.kind)
    if kind is None:
        raise DataError(
            f"{file}: kind: {task.kind!r} is not registered; it must be {', '.join(KINDS)}, or install the "
            "package that registers it"
        )

    problem = kind.find_task_problem(task)
    if problem is not None:
        raise DataError(f"{file}: {problem}")
    return kind
