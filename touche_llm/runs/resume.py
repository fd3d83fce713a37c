"""Whether a folder holds the same run, so that it resumes: what a command continues and what it refuses.

Nothing records how far a stage has come: a stage is computed anew over the caches, so a run resumes
at the first request without a stored answer (`llm.model`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from touche_llm.config.configuration import Config
from touche_llm.config.files import CONFIG
from touche_llm.config.task_copies import is_same_task
from touche_llm.engines.settings import SECTIONS
from touche_llm.errors import UsageError
from touche_llm.runs.context import RunContext
from touche_llm.runs.directory import OUTPUTS, RunDirectory
from touche_llm.runs.inputs import (
    INPUT_SETTINGS,
    OF_JUDGE,
    OF_RETRIEVE,
    hash_inputs,
    list_deciding_settings,
)
from touche_llm.runs.record import STAGES, StageName, StageRecords

# Settings whose values are the server's unless they are configured, and known only after
# connecting.
_OF_SERVER = tuple(
    f"{section}.{name}" for section in SECTIONS.values() for name in ("model", "context")
)
# Characters of a hash and of another value that an error shows.
_HASH_CHARS = 12
_VALUE_CHARS = 100


def check_settings(
    directory: RunDirectory, context: RunContext, command: str, *, overwrite: bool
) -> None:
    """Raise an error if a command would replace outputs made with other settings or by another program.

    Prompts, inputs and model are compared with what the finished stages recorded, settings with the
    folder's. Judging replaces no candidates: it may have its own settings until there are
    judgments.

    Args:
        directory: Folder of the run.
        context: Context of the command, with its configuration.
        command: `run`, or the stage that begins.
        overwrite: Whether outputs may be replaced; then only the inputs of the candidates that are
            judged count.
    """
    if overwrite:
        # Judging replaces no candidates, so they must be those of these inputs.
        if command == "judge":
            check_inputs(directory, context.config)
        return

    made = [stage for stage in STAGES if _has_outputs(directory, stage)]
    replaced = made
    if command == "judge":
        replaced = [stage for stage in made if stage != "retrieve"]
    if not directory.config_file.exists():
        if replaced:
            raise UsageError(
                f"{directory}: has outputs of `{replaced[0]}` but no {CONFIG}, so this program did not write them; "
                "give another folder, or replace them (`overwrite: true`)"
            )
        return

    changes = _list_changes(directory, context, command, made, replaced)
    if changes:
        raise UsageError(
            f"{directory}: holds a run with other settings or inputs; give another folder, or replace it "
            "(`overwrite: true`; answers stay in the cache):\n" + "\n".join(changes)
        )


def _list_changes(
    directory: RunDirectory,
    context: RunContext,
    command: str,
    made: Collection[StageName],
    replaced: Collection[StageName],
) -> list[str]:
    """Return a line for each setting, model, prompt and input that is not that of the folder.

    Args:
        directory: Folder of the run.
        context: Context of the command.
        command: `run`, or the stage that begins.
        made: Stages that have outputs.
        replaced: Those whose outputs the command would replace.
    """
    loaded = directory.read_with_origins()
    recorded = {} if loaded.unused is None else loaded.unused.values
    # The folder's configuration has what is known of the models, too.
    new = context.recorded_config
    names = _list_relevant(made, loaded.config, command)
    records = directory.read_metadata().stages.select(made)
    return [
        *_compare_settings(loaded.config, recorded, new, names),
        *_compare_models(records.select(replaced), new),
        *_compare_prompts(records, context),
        *_compare_inputs(records, context.config, INPUT_SETTINGS),
    ]


def _has_outputs(directory: RunDirectory, stage: StageName) -> bool:
    """Return whether a folder has an output of a stage."""
    return any((directory.path / name).exists() for name in OUTPUTS[stage])


def check_inputs(directory: RunDirectory, config: Config) -> None:
    """Raise an error if topics or documents are not those of the candidates.

    The model must see what was retrieved.
    """
    records = directory.read_metadata().stages
    # The folder has its own copy of the candidates.
    changes = list(_compare_inputs(records, config, ("topics", "corpus")))
    if changes:
        raise UsageError(
            f"{directory}: the model would see other inputs than the first stage had; restore these "
            "files, or repeat all stages with `touche-llm run --overwrite`:\n" + "\n".join(changes)
        )


def _list_relevant(made: Collection[str], old: Config, command: str) -> tuple[str, ...]:
    """Return the settings that determine the outputs in a folder, and that a command may change.

    Args:
        made: Stages that have outputs.
        old: Configuration of the folder.
        command: `run`, or the stage that begins.
    """
    if "rank" in made:
        return tuple(Config.model_fields)
    if "judge" in made:
        return (*OF_RETRIEVE, *OF_JUDGE)
    if "retrieve" not in made:
        return ()
    if command == "judge":
        return OF_RETRIEVE
    if old.expansion.use:
        return (*OF_RETRIEVE, "depth", "sampling")
    return (*OF_RETRIEVE, "depth")


def _compare_settings(
    old: Config,
    recorded: Mapping[str, object],
    new: Config,
    names: Collection[str],
) -> Iterator[str]:
    """Compare the settings of these names and sections.

    Args:
        old: Configuration of the folder.
        recorded: Its settings that are not used, since somebody else wrote them.
        new: Configuration of the command.
        names: Settings and sections to compare.
    """
    before = list_deciding_settings(old, names)
    before |= {name: value for name, value in recorded.items() if name in before}
    now = list_deciding_settings(new, names)
    if "task" in before and is_same_task(old.task, new.task):
        now["task"] = old.task
    for name in dict.fromkeys((*before, *now)):
        is_configured = name in before and name in now
        if is_configured or name not in _OF_SERVER:
            yield from _compare(name, before.get(name), now.get(name))


def _compare_models(stages: StageRecords, config: Config) -> Iterator[str]:
    """Compare the model of a configuration with those that finished stages recorded."""
    models = [record.llm.model for record in stages.finished.values() if record.llm is not None]
    names = dict.fromkeys(model.name for model in models)
    revisions = dict.fromkeys(model.revision for model in models)
    contexts = dict.fromkeys(model.context for model in models)

    # A value that is not configured is the server's and known only after connecting.
    if config.engine.model_name is not None:
        for name in names:
            yield from _compare("engine.model", name, config.engine.model_name)
    for revision in revisions:
        yield from _compare("engine.revision", revision, config.engine.revision)
    if config.engine.context is not None:
        for context in contexts:
            yield from _compare("engine.context", context, config.engine.context)


def _compare_prompts(stages: StageRecords, context: RunContext) -> Iterator[str]:
    """Compare the prompts with those that finished stages recorded."""
    labels = stages.prompts
    # Without names, all prompts of the run would be loaded.
    if not labels:
        return
    for purpose, prompt in context.load_prompts(*labels).items():
        yield from _compare(f"prompts.{purpose}", labels[purpose], prompt.label)


def _compare_inputs(stages: StageRecords, config: Config, names: Collection[str]) -> Iterator[str]:
    """Compare the files of these settings with those that the first stage recorded."""
    if stages.retrieve is None or not stages.retrieve.inputs:
        return

    before = stages.retrieve.inputs
    now = hash_inputs(config)
    for name in names:
        # A file that is missing is an error of the stage that reads it.
        is_missing = name not in now and getattr(config, name) is not None
        if not is_missing:
            yield from _compare(name, before.get(name), now.get(name), _format_hash)


def _format_hash(value: object) -> str:
    return "not set" if value is None else f"sha256 {value!s:.{_HASH_CHARS}}"


def _format_value(value: object) -> str:
    return "not set" if value is None else f"{value!s:.{_VALUE_CHARS}}"


def _compare(
    name: str,
    before: object,
    now: object,
    format_side: Callable[[object], str] = _format_value,
) -> Iterator[str]:
    """Yield a line about a value if it has changed."""
    if before != now:
        yield f"  {name}: {format_side(before)} → {format_side(now)}"
