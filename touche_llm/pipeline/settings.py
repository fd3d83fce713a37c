"""Settings by the stage that they affect, and comparison of configurations."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from touche_llm.config import Config
from touche_llm.data.settings import read_yaml
from touche_llm.errors import DataError, UsageError
from touche_llm.llm.settings import SECTIONS
from touche_llm.prompts.few_shot import EXAMPLES_SUFFIX
from touche_llm.prompts.purposes import list_files
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.definition import TASK_FILE
from touche_llm.tasks.published import LEADERBOARD_FILE
from touche_llm.tasks.task import Task

COPY = "task"


def copy_task(task: Task, folder: Path, used: Iterable[str] = ()) -> None:
    """Copy definition and templates of a task given as a folder into `folder`; the project's own need no copy.

    Args:
        task: The task.
        folder: Folder of the run.
        used: Names of the templates that the outputs in the folder were made with; their copies stay as they are.
    """
    target = folder / COPY
    if task.is_own or (target.is_dir() and target.samefile(task.folder)):
        return
    templates = [target / f"{name}.jinja" for name in used]
    kept = {file for template in templates if template.is_file() for file in list_files(template)}
    files = {task.folder / TASK_FILE, task.folder / LEADERBOARD_FILE}
    for template in task.folder.glob("*.jinja"):
        files |= list_files(template)
    for old in {*target.glob("*.jinja"), *target.glob(f"*{EXAMPLES_SUFFIX}"), target / LEADERBOARD_FILE} - kept:
        old.unlink(missing_ok=True)
    for file in sorted(files):
        copy = target / file.relative_to(task.folder)
        if file.is_file() and copy not in kept:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def find_task_folder(config_file: Path, base: Path | None = None) -> str | None:
    """Return the folder of the task of a configuration with a copy beside it; None if there is no copy.

    That is the folder that the configuration names, or the copy if it is missing there or its definition changed.

    Args:
        config_file: Configuration in the folder of a run.
        base: Folder that the path of the task is relative to; None for the current folder.
    """
    copy = find_copy(config_file.parent)
    if copy is None:
        return None
    try:
        given = str(read_yaml(config_file)["task"])
    except (DataError, KeyError):
        return None  # reading the configuration raises the error
    if given in TASKS:
        return None
    found = given if base is None else os.path.relpath(base / given)
    return found if is_same_task(found, copy) else copy


def is_same_task(first: str, second: str) -> bool:
    """Return whether two tasks have the same definition: a folder may have moved."""
    try:
        return get_task(first).has_same_definition(get_task(second))
    except (DataError, UsageError):
        return False


def find_copy(folder: Path) -> str | None:
    """Return the copy of the task in the folder of a run, whose templates are those of the run; None if there is none.

    The project's own tasks have no copy.
    """
    copy = folder / COPY
    return str(copy) if (copy / TASK_FILE).is_file() else None


def is_copy(task: Task, folder: Path) -> bool:
    """Return whether a task was read from the copy in the folder of a run."""
    return not task.is_own and (folder / COPY).is_dir() and task.folder.samefile(folder / COPY)


# How requests reach the engine.
DELIVERY = (
    *(f"engine.{name}" for name in ("name", "runner", "base_url", "options")),
    *(f"engine.{name}" for name in ("tokenizer", "concurrency", "request_timeout", "retry_for")),
)
# The same for pooling models, within their sections.
POOLING_DELIVERY = ("url", "batch", "concurrency", "request_timeout", "retry_for")
# Settings that change neither an answer nor an output: locations, speed, names of people.
# All other settings are compared, so a new setting is compared unless it is listed here.
INCIDENTAL = (
    *("index", "cache", "actor"),
    *DELIVERY,
    *(
        f"chatnoir.{name}"
        for name in ("base_url", "cache", "requests_per_second", "page_size", "request_timeout", "retry_for")
    ),
    *(f"elasticsearch.{name}" for name in ("url", "request_timeout", "retry_for")),
    *(f"{section}.{name}" for section in SECTIONS.values() for name in POOLING_DELIVERY),
)
# Purposes of the prompts that a stage may use. Those of the ranking depend on its steps.
PURPOSES: Mapping[str, tuple[str, ...]] = {
    "retrieve": ("queries",),
    "judge": ("judge", "objects", "sentence", "stance"),
}
INPUTS = ("task", "dataset", "topics", "corpus", "index")
OF_RETRIEVE = (
    *INPUTS,
    *("candidates", "skip_bad_lines", "limit_topics", "topic", "retriever"),
    *("expansion", "prompts.queries", "sentences", "dense", "chatnoir", "elasticsearch.index", "elasticsearch.shards"),
)
OF_JUDGE = (
    *("depth", "pairs", "sampling", "stance.prompt", "stance.depth"),
    *(f"prompts.{name}" for name in ("folder", *PURPOSES["judge"])),
)
OF_RANK = ("rank", "objective", "weights", "ranking", "stance.thresholds", "tag")
# Settings that a stage can take from the command line; it may run with another server, or where files have moved.
OF_STAGE: Mapping[str, tuple[str, ...]] = {
    "retrieve": (*OF_RETRIEVE, "elasticsearch", "depth", "tag", "prompts.folder", "engine", "cache"),
    "judge": (*INPUTS, *OF_JUDGE, "engine", "cache"),
    "rank": (*INPUTS, *OF_RANK, "engine", "cache"),
}
# Settings whose values are the server's unless they are configured, and known only after connecting.
OF_SERVER = tuple(f"{section}.{name}" for section in ("engine", *SECTIONS.values()) for name in ("model", "context"))
# The ranking may use another model than the judgments.
OF_ENGINE = ("engine.model", "engine.revision", "engine.context")
_PATHS = ("topics", "corpus", "index", "candidates", "prompts")
_NOT_SET = "not set"


def is_one_of(name: str, places: Collection[str]) -> bool:
    """Return whether a setting or one of its sections is among these names."""
    return any(f"{name}.".startswith(f"{place}.") for place in places)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested values to dotted names; lists and empty sections are values."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flatten(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return found


class SettingChange(NamedTuple):
    """A changed setting or input; the values are shown as text."""

    setting: str
    before: str
    now: str


def compare_settings(old: Config, new: Config, at_stake: tuple[str, ...] | None) -> Iterator[SettingChange]:
    """Yield the differences of two configurations in the settings `at_stake`, or in all that matter if it is None."""
    before, after = _values(old), _values(new)
    for name in dict.fromkeys((*before, *after)):
        first, second = before.get(name, _NOT_SET), after.get(name, _NOT_SET)
        unknown = name in OF_SERVER and _NOT_SET in (first, second)
        if (at_stake is None or is_one_of(name, at_stake)) and not unknown and not _is_same(name, first, second):
            other = _list_other_keys(str(first), str(second)) if name == "task" else ""
            yield SettingChange(name, f"{first!s:.100}", f"{second!s:.100}{other}")


def _values(config: Config) -> dict[str, Any]:
    """Return every setting that matters and is set, by dotted name."""
    values = config.model_dump(mode="json")
    values["engine"]["model"] = config.engine.model_name
    counts = {name: value for name, value in flatten(values).items() if not is_one_of(name, INCIDENTAL)}
    if config.corpus is None and config.dataset is None:
        counts["index"] = values["index"]  # the index is the corpus here, not just a location
    return {name: value for name, value in counts.items() if value is not None and value != {}}


def _is_same(name: str, first: Any, second: Any) -> bool:
    if first == second:
        return True
    if name == "task":
        return is_same_task(str(first), str(second))
    if name == "topic":
        # Topics are in the order of their file.
        return set(first) == set(second)
    paths = is_one_of(name, _PATHS) and _NOT_SET not in (first, second)
    return paths and os.path.realpath(first) == os.path.realpath(second)


def _list_other_keys(first: str, second: str) -> str:
    """Return which keys of a task changed, if both have its name; empty if one cannot be read."""
    try:
        before, after = get_task(first).model_dump(), get_task(second).model_dump()
    except (DataError, UsageError):
        return ""
    changed = [key for key, value in after.items() if before[key] != value]
    return f" (changed: {', '.join(changed)})" if "name" not in changed else ""
