"""The settings of a run by the stage that goes by them, and what differs between two configurations."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from touche_llm.config import Config, load_config
from touche_llm.errors import UsageError
from touche_llm.run_files import CONFIG, OUTPUTS

# Settings that change neither an answer nor an output: where things are stored or served, how fast, in whose name.
# Every other setting counts, so that a new one is not forgotten.
INCIDENTAL = (
    *("index", "cache", "actor"),
    *(f"engine.{name}" for name in ("name", "base_url", "options", "concurrency", "request_timeout", "retry_for")),
    *(
        f"chatnoir.{name}"
        for name in ("base_url", "cache", "requests_per_second", "page_size", "request_timeout", "retry_for")
    ),
    *(f"elasticsearch.{name}" for name in ("url", "request_timeout", "retry_for")),
)
OF_RETRIEVE = (
    *("task", "topics", "corpus", "index", "candidates", "skip_bad_lines", "limit_topics", "topic", "retriever"),
    *("expansion", "prompts.queries", "sentences", "chatnoir", "elasticsearch.index", "elasticsearch.shards"),
)
OF_JUDGE = (
    *("depth", "pairs", "sampling", "stance.depth", "stance.both_orders"),
    *(f"prompts.{name}" for name in ("folder", "judge", "objects", "sentence", "stance")),
)
# The ranking may ask another model than the judgments came from.
OF_ENGINE = ("engine.model", "engine.revision", "engine.context")
_PATHS = ("topics", "corpus", "index", "candidates", "prompts")
_NOT_SET = "not set"


def is_one_of(name: str, places: Collection[str]) -> bool:
    """Whether a setting is one of these, or in a section that is."""
    return any(f"{name}.".startswith(f"{place}.") for place in places)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted name; lists and empty sections are values."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return found


def check_settings(folder: Path, config: Config, command: str, *, overwrite: bool) -> None:
    """Raise an error if a command would replace what was made with other settings, or by another program.

    A default that changed with the program is a difference, since the folder names every value; a setting that the
    program did not have then is none.

    Args:
        folder: The run's folder.
        config: What the command goes by; its model and context may still be unknown.
        command: run, retrieve or judge. Judging replaces no candidates: it may have its own settings until there are
            judgments.
        overwrite: Whether the user gave `--overwrite`.

    Raises:
        UsageError: Names each such setting with its old and its new value.
    """
    if overwrite:
        return
    stages = list(OUTPUTS)[command == "judge" :]
    if not (folder / CONFIG).exists():
        for name in (name for stage in stages for name in OUTPUTS[stage]):
            if os.path.lexists(folder / name):
                raise UsageError(
                    f"{folder / name}: without a {CONFIG} beside it, this file is of no run of this program; give "
                    "another folder with --out, or replace it with --overwrite"
                )
        return
    try:
        old = load_config(folder / CONFIG, {})
    except UsageError as error:
        raise UsageError(f"{error}; give another folder with --out, or replace it with --overwrite") from error
    lines = [f"  {line}" for line in _differences(old, config, _at_stake(folder, old, command))]
    if lines:
        raise UsageError(
            f"{folder}: holds a run with other settings; give another folder with --out, or replace what is there "
            "with --overwrite (answers stay in the cache):\n" + "\n".join(lines)
        )


def _at_stake(folder: Path, config: Config, command: str) -> tuple[str, ...] | None:
    """The settings that the files of a folder were made with; None for all settings."""
    made = {stage for stage, names in OUTPUTS.items() if any((folder / name).exists() for name in names)}
    if "rank" in made:
        return None
    if "judge" in made:
        return (*OF_RETRIEVE, *OF_JUDGE, *OF_ENGINE)
    if "retrieve" not in made:
        return ()
    if command == "judge":
        return OF_RETRIEVE
    expanded = ("sampling", "prompts.folder", *OF_ENGINE) if config.expansion.use else ()
    return (*OF_RETRIEVE, "depth", *expanded)


def _differences(old: Config, new: Config, at_stake: tuple[str, ...] | None) -> Iterator[str]:
    before, after = _values(old), _values(new)
    for name in dict.fromkeys((*before, *after)):
        first, second = before.get(name, _NOT_SET), after.get(name, _NOT_SET)
        # What is not named is the server's, which says it once it is reached.
        unknown = name in ("engine.model", "engine.context") and _NOT_SET in (first, second)
        if (at_stake is None or is_one_of(name, at_stake)) and not unknown and not _is_same(name, first, second):
            yield f"{name}: {first!s:.100} → {second!s:.100}"


def _values(config: Config) -> dict[str, Any]:
    """Every setting that counts and is set, by dotted name."""
    values = config.model_dump(mode="json")
    values["engine"]["model"] = config.engine.model_name
    counts = {name: value for name, value in flat(values).items() if not is_one_of(name, INCIDENTAL)}
    if config.corpus is None:
        counts["index"] = values["index"]  # here it is the corpus, not only where one is stored
    return {name: value for name, value in counts.items() if value is not None and value != {}}


def _is_same(name: str, first: Any, second: Any) -> bool:
    if first == second:
        return True
    paths = is_one_of(name, _PATHS) and _NOT_SET not in (first, second)
    return paths and os.path.realpath(first) == os.path.realpath(second)
