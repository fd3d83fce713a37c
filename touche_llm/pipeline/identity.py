"""Identity of a run: its settings and inputs, compared with those that would be used now."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from touche_llm.config import Config, find_settings, flatten, is_one_of
from touche_llm.corpus.store import hash_corpus
from touche_llm.data.io import sha256
from touche_llm.data.settings import Scope
from touche_llm.errors import UsageError
from touche_llm.llm.settings import SECTIONS
from touche_llm.pipeline.config_file import is_same_task
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.run_directory import OUTPUTS, RunDirectory

# Key of the file hashes in a stage's facts, by setting; the hash of the corpus is in its description.
INPUT_FILES = "input files"
# The index is a location, unless it is the corpus.
INCIDENTAL = ("index", *find_settings(Scope.DELIVERY))
OF_RETRIEVE, OF_JUDGE, OF_MODEL = map(find_settings, (Scope.RETRIEVE, Scope.JUDGE, Scope.MODEL))
# Settings whose values are the server's unless they are configured, and known only after connecting.
_OF_SERVER = tuple(f"{section}.{name}" for section in ("engine", *SECTIONS.values()) for name in ("model", "context"))
_PATHS = ("topics", "corpus", "index", "candidates", "prompts")
_NOT_SET = "not set"
Stages = Mapping[str, Mapping[str, Any]]


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
        unknown = name in _OF_SERVER and _NOT_SET in (first, second)
        if (at_stake is None or is_one_of(name, at_stake)) and not unknown and not _is_same(name, first, second):
            yield SettingChange(name, f"{first!s:.100}", f"{second!s:.100}")


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


def hash_inputs(config: Config) -> dict[str, str]:
    """Return the SHA-256 of the files that the first stage reads beside the corpus, by setting."""
    files = {"topics": config.topics, "candidates": config.candidates}
    return {name: sha256(file) for name, file in files.items() if file is not None and file.is_file()}


def check_settings(directory: RunDirectory, context: RunContext, command: str, *, overwrite: bool) -> None:
    """Raise an error if a command would replace outputs made with other settings or by another program.

    The same settings can name other inputs: prompts, corpus, topics and candidates are compared with what the finished
    stages recorded, and so is the model, since `rank` may use another one than judged. A default that changed with the
    program is a difference, since the folder names every value; a setting that the program did not have then is none.

    Args:
        directory: The run's folder.
        context: The command's context; its model and context length may still be unknown.
        command: run, retrieve or judge. Judging replaces no candidates: it may have its own settings until there are
            judgments.
        overwrite: Whether these outputs may be replaced.

    Raises:
        UsageError: Names each changed setting with its old and new value; if they may be replaced, each changed input.
        PromptError: A prompt of the run is missing or invalid.
    """
    folder, config = directory.path, context.config
    if overwrite:
        if command == "judge":  # It replaces no candidates.
            check_inputs(directory, config)
        return
    stages = list(OUTPUTS)[command == "judge" :]
    if not directory.config_file.exists():
        for name in (name for stage in stages for name in OUTPUTS[stage]):
            if os.path.lexists(folder / name):
                raise UsageError(
                    f"{folder / name}: without a {directory.config_file.name} beside it, this file was not written by "
                    "this program; give another folder, or replace it (`overwrite: true`)"
                )
        return
    try:
        old = directory.read_config()
    except UsageError as error:
        raise UsageError(f"{error}; give another folder, or replace it (`overwrite: true`)") from error
    recorded = directory.read_metadata().stages
    made = {
        name: recorded.get(name, {})
        for name, files in OUTPUTS.items()
        if any((folder / file).exists() for file in files)
    }
    replaced = {stage: made[stage] for stage in stages if stage in made}
    changes = list(compare_settings(old, config, _relevant_settings(made, old, command)))
    if any("model" in facts for facts in replaced.values()):
        changes = [each for each in changes if each.setting not in OF_MODEL]
        changes += [change for stage, facts in replaced.items() for change in _engine_changes(stage, facts, config)]
    changed = {each.setting for each in changes}
    changes += [*_input_changes(made, config, changed), *_prompt_changes(made, context, changed)]
    if changes:
        raise UsageError(
            f"{folder}: holds a run with other settings or inputs; give another folder, or replace it "
            "(`overwrite: true`; answers stay in the cache):\n" + _listed(changes)
        )


def check_inputs(directory: RunDirectory, config: Config) -> None:
    """Raise an error if topics or documents are not those of the candidates: the model must see what was retrieved.

    Raises:
        UsageError: Names the setting of each file that changed.
        DataError: The metadata cannot be read.
    """
    # The folder has its own copy of the candidates.
    changes = list(_input_changes(directory.read_metadata().stages, config, ("candidates",)))
    if changes:
        raise UsageError(
            f"{directory}: the model would see other inputs than the first stage had; restore these "
            "files, or repeat all stages with `touche-llm run --overwrite`:\n" + _listed(changes)
        )


def _listed(changes: Collection[SettingChange]) -> str:
    return "\n".join(f"  {name}: {before} → {now}" for name, before, now in changes)


def _relevant_settings(made: Collection[str], config: Config, command: str) -> tuple[str, ...] | None:
    """Return the settings that determine the files of these stages; None for all settings."""
    if "rank" in made:
        return None
    if "judge" in made:
        return (*OF_RETRIEVE, *OF_JUDGE, *OF_MODEL)
    if "retrieve" not in made:
        return ()
    if command == "judge":
        return OF_RETRIEVE
    expanded = ("sampling", "prompts.folder", *OF_MODEL) if config.expansion.use else ()
    return (*OF_RETRIEVE, "depth", *expanded)


def _input_changes(stages: Stages, config: Config, changed: Collection[str]) -> Iterator[SettingChange]:
    """Yield the settings whose files are not as the first stage found them; not `changed` ones, which name others."""
    before = _section(stages, "retrieve", INPUT_FILES)
    before |= {"corpus": hashed} if (hashed := _section(stages, "retrieve", "corpus").get("sha256")) else {}
    now = hash_inputs(config)
    if "corpus" in before and config.index is not None and not {"corpus", "index"} & set(changed):
        now |= {"corpus": hashed} if (hashed := hash_corpus(config.corpus, config.index)) is not None else {}
    for name, digest in before.items():
        if name in now and name not in changed and now[name] != digest:
            yield SettingChange(name, f"sha256 {digest!s:.12}", f"sha256 {now[name]:.12}")


def _engine_changes(stage: str, facts: Mapping[str, Any], config: Config) -> Iterator[SettingChange]:
    engine = config.engine
    for setting, now in zip(OF_MODEL, (engine.model_name, engine.revision, engine.context), strict=True):
        before = facts.get(setting.removeprefix("engine."))
        # A value that is not configured is the server's and known only after connecting.
        if None not in (before, now) and before != now:
            yield SettingChange(setting, f"{before!s:.100} ({stage})", f"{now!s:.100}")


def _prompt_changes(stages: Stages, context: RunContext, changed: Collection[str]) -> Iterator[SettingChange]:
    before = {purpose: label for stage in stages for purpose, label in _section(stages, stage, "prompts").items()}
    if "prompts.folder" in changed:
        return
    compared = [purpose for purpose in before if f"prompts.{purpose}" not in changed]
    if not compared:
        return
    for purpose, prompt in context.load_prompts(*compared).items():
        if prompt.label != before[purpose]:
            yield SettingChange(f"prompts.{purpose}", f"{before[purpose]!s:.100}", prompt.label)


def _section(stages: Stages, stage: str, name: str) -> dict[str, Any]:
    """Return a section of a stage's facts; empty if none was recorded."""
    section = stages.get(stage, {}).get(name)
    return dict(section) if isinstance(section, Mapping) else {}
