"""Identity of a run: its settings and inputs, compared with those that would be used now."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

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
INCIDENTAL = ("index", *find_settings(Scope.DELIVERY))
OF_RETRIEVE, OF_JUDGE, OF_MODEL = map(find_settings, (Scope.RETRIEVE, Scope.JUDGE, Scope.MODEL))
# Compared with the facts of the finished stages, whatever their names: by hash, version, or as the server reports them.
_INPUTS = ("topics", "corpus", "candidates")
_BY_FACTS = (*_INPUTS, "prompts", *OF_MODEL)
# Settings whose values are the server's unless they are configured, and known only after connecting.
_OF_SERVER = tuple(f"{section}.{name}" for section in SECTIONS.values() for name in ("model", "context"))
_NOT_SET = "not set"
Stages = Mapping[str, Mapping[str, Any]]


def hash_inputs(config: Config) -> dict[str, str]:
    """Return the SHA-256 of the files that the first stage reads beside the corpus, by setting."""
    files = {"topics": config.topics, "candidates": config.candidates}
    return {name: sha256(file) for name, file in files.items() if file is not None and file.is_file()}


def check_settings(directory: RunDirectory, context: RunContext, command: str, *, overwrite: bool) -> None:
    """Raise an error if a command would replace outputs made with other settings or by another program.

    Prompts, corpus, topics and candidates are compared by content with what the finished stages recorded, and so is the
    model, since `rank` may use another one than judged. A default that changed with the program is a difference, since
    the folder names every value; a setting that the program did not have then is none.

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
    replaced = list(OUTPUTS)[command == "judge" :]
    if not directory.config_file.exists():
        for name in (name for stage in replaced for name in OUTPUTS[stage]):
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
    facts = directory.read_metadata().stages
    made = {
        stage: facts.get(stage, {})
        for stage, files in OUTPUTS.items()
        if any((folder / file).exists() for file in files)
    }
    changes = [
        *_compare_settings(old, config, _list_relevant(made, old, command)),
        *(change for stage in replaced if stage in made for change in _compare_model(stage, made[stage], config)),
        *_compare_inputs(made, config, _INPUTS),
        *_compare_prompts(made, context),
    ]
    if changes:
        raise UsageError(
            f"{folder}: holds a run with other settings or inputs; give another folder, or replace it "
            "(`overwrite: true`; answers stay in the cache):\n" + "\n".join(changes)
        )


def check_inputs(directory: RunDirectory, config: Config) -> None:
    """Raise an error if topics or documents are not those of the candidates: the model must see what was retrieved.

    Raises:
        UsageError: Names the setting of each file that changed.
        DataError: The metadata cannot be read.
    """
    # The folder has its own copy of the candidates.
    changes = list(_compare_inputs(directory.read_metadata().stages, config, ("topics", "corpus")))
    if changes:
        raise UsageError(
            f"{directory}: the model would see other inputs than the first stage had; restore these "
            "files, or repeat all stages with `touche-llm run --overwrite`:\n" + "\n".join(changes)
        )


def _describe(name: str, before: object, now: object) -> str:
    return f"  {name}: {before!s:.100} → {now!s:.100}"


def _list_relevant(made: Collection[str], config: Config, command: str) -> tuple[str, ...] | None:
    """Return the settings that determine the files of these stages; None for all settings."""
    if "rank" in made:
        return None
    if "judge" in made:
        return (*OF_RETRIEVE, *OF_JUDGE)
    if "retrieve" not in made:
        return ()
    if command == "judge":
        return OF_RETRIEVE
    return (*OF_RETRIEVE, "depth", *(("sampling",) if config.expansion.use else ()))


def _compare_settings(old: Config, new: Config, relevant: tuple[str, ...] | None) -> Iterator[str]:
    before, now = (
        {
            name: value
            for name, value in flatten(config.model_dump(mode="json") | {"topic": sorted(config.topic)}).items()
            if value not in (None, {})
            and (relevant is None or is_one_of(name, relevant))
            and not is_one_of(name, (*INCIDENTAL, *_BY_FACTS))
        }
        for config in (old, new)
    )
    for name in dict.fromkeys((*before, *now)):
        first, second = before.get(name, _NOT_SET), now.get(name, _NOT_SET)
        is_unknown = name in _OF_SERVER and _NOT_SET in (first, second)
        if first != second and not is_unknown and not (name == "task" and is_same_task(first, second)):
            yield _describe(name, first, second)


def _compare_model(stage: str, facts: Mapping[str, Any], config: Config) -> Iterator[str]:
    engine = config.engine
    for setting, now in zip(OF_MODEL, (engine.model_name, engine.revision, engine.context), strict=True):
        before = facts.get(setting.removeprefix("engine."))
        # A value that is not configured is the server's and known only after connecting.
        if None not in (before, now) and before != now:
            yield _describe(setting, f"{before} ({stage})", now)


def _compare_inputs(stages: Stages, config: Config, names: Iterable[str]) -> Iterator[str]:
    """Compare the files of these settings with those that the first stage found."""
    before, now = _section(stages, "retrieve", INPUT_FILES), hash_inputs(config)
    if digest := _section(stages, "retrieve", "corpus").get("sha256"):
        before["corpus"] = digest
        if config.index is not None and (digest := hash_corpus(config.corpus, config.index)) is not None:
            now["corpus"] = digest
    for name in names:
        # A file that is gone is an error of the stage that reads it; a search engine keeps its documents.
        is_unknown = name not in now and (name == "corpus" or getattr(config, name) is not None)
        if before and not is_unknown and before.get(name) != now.get(name):
            yield _describe(name, *(f"sha256 {hashes.get(name, _NOT_SET)!s:.12}" for hashes in (before, now)))


def _compare_prompts(stages: Stages, context: RunContext) -> Iterator[str]:
    before = {purpose: label for stage in stages for purpose, label in _section(stages, stage, "prompts").items()}
    for purpose, prompt in (context.load_prompts(*before) if before else {}).items():
        if prompt.label != before[purpose]:
            yield _describe(f"prompts.{purpose}", before[purpose], prompt.label)


def _section(stages: Stages, stage: str, name: str) -> dict[str, Any]:
    """Return a section of a stage's facts; empty if none was recorded."""
    section = stages.get(stage, {}).get(name)
    return dict(section) if isinstance(section, Mapping) else {}
