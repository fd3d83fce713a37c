"""Settings by the stage that they affect, and comparison of configurations."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from touche_llm.config import Config
from touche_llm.errors import DataError, UsageError
from touche_llm.llm.settings import SECTIONS
from touche_llm.pipeline.task_copy import is_same_task
from touche_llm.tasks import get_task

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
    *("index", "cache", "actor", "energy"),
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
    "retrieve": (*OF_RETRIEVE, "elasticsearch", "depth", "tag", "prompts.folder", "engine", "cache", "energy"),
    "judge": (*INPUTS, *OF_JUDGE, "engine", "cache", "energy"),
    "rank": (*INPUTS, *OF_RANK, "engine", "cache", "energy"),
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
        before, after = dict(get_task(first).definition), dict(get_task(second).definition)
    except (DataError, UsageError):
        return ""
    changed = [key for key, value in after.items() if before[key] != value]
    return f" (changed: {', '.join(changed)})" if "name" not in changed else ""
