"""Files of a configuration, read and written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import BaseModel, ValidationError

from touche_llm.config.configuration import Config, flatten, is_one_of
from touche_llm.config.origins import ARGUMENT, LoadedConfig, OriginKind, Origins, ValueOrigin
from touche_llm.config.own_folders import (
    NOT_USED,
    UnusedSettings,
    check_folder,
    is_recorded,
    list_unused,
    record_configuration,
    take_acting_values,
)
from touche_llm.config.task_copies import find_copy, find_task_folder
from touche_llm.corpus.ir_dataset import dataset_index, topics_file
from touche_llm.data.files import open_atomic, read_bounded
from touche_llm.engines.settings import CODE_OPTION
from touche_llm.errors import DataError, UsageError, describe_first_problem
from touche_llm.kinds.known import KINDS, get_kind
from touche_llm.kinds.registry import Kind
from touche_llm.prompts.prompt import PromptsConfig
from touche_llm.retrieval.first_stages import RETRIEVERS, SECTIONS
from touche_llm.retrieval.registry import Retriever
from touche_llm.settings.section import set_values
from touche_llm.settings.yaml_text import MAX_BYTES, read_yaml, to_yaml
from touche_llm.tasks import DEFAULT_TASK, TASKS, find_dataset_task, get_task
from touche_llm.tasks.task import Task

# Names in the folder of a run.
CONFIG = "config.yaml"
METADATA = "ir-metadata.yml"


def _list_declared_paths() -> list[str]:
    """Return the dotted names of the settings of first stages and kinds of task that are paths."""
    sections = dict(SECTIONS)
    for kind in KINDS.values():
        sections.update(kind.sections)

    paths: list[str] = []
    for section, settings in sections.items():
        for name, setting in settings.model_fields.items():
            # The type of a path that may be missing is `Path | None`.
            types = (setting.annotation, *get_args(setting.annotation))
            if Path in types:
                paths.append(f"{section}.{name}")
    return paths


# Settings that are the name of a prompt, or the path of its template.
_PROMPTS = tuple(
    f"prompts.{purpose}" for purpose in PromptsConfig.model_fields if purpose != "folder"
)
# Settings that are files or folders. The folder of a task has a copy in the folder of a run.
_PATHS = (
    "topics",
    "corpus",
    "index",
    "candidates",
    "cache.file",
    "engine.tokenizer",
    "prompts.folder",
    *_PROMPTS,
    *_list_declared_paths(),
)


# Max characters of the name of a corpus in that of its index folder: at four bytes each, the folder's
# name stays below the 255 bytes that a name may have.
_MAX_INDEX_NAME = 60


def index_folder(corpus: Path) -> Path:
    """Return the default index folder of a corpus file, below the current folder.

    It has the name of the corpus and a hash of its path, as `.touche-llm/index/passages-1f0c9a2b`,
    since two corpora can have the same name.
    """
    path_hash = hashlib.sha256(os.fsencode(corpus.absolute())).hexdigest()[:8]
    name = corpus.name.split(".")[0][:_MAX_INDEX_NAME]
    return Path(".touche-llm/index") / f"{name}-{path_hash}"


def load_config(file: Path | None, flags: Mapping[str, Any]) -> Config:
    """Load a configuration, or the defaults, overridden by flags: values by dotted name, None if not given.

    An error names the setting, and the file unless a flag set it.
    """
    return load_with_origins(file, flags).config


@dataclass(frozen=True, slots=True)
class _Overrides:
    """Values that replace those of a configuration file.

    Attributes:
        values: Values by dotted name, as `engine.model`.
        origins: Where each of them comes from.
    """

    values: Mapping[str, Any]
    origins: Origins

    @classmethod
    def from_flags(
        cls,
        flags: Mapping[str, Any],
        flag_origins: Mapping[str, ValueOrigin],
    ) -> Self:
        """Return the values of the flags that were given: not those that are None or empty.

        Args:
            flags: Values by dotted name.
            flag_origins: Origins by dotted name; arguments in Python have none.
        """
        values: dict[str, Any] = {}
        origins: dict[str, ValueOrigin] = {}
        for name, value in flags.items():
            if value is not None and value != ():
                values[name] = value
                origins[name] = flag_origins.get(name, ARGUMENT)
        return cls(values, Origins(origins))


def load_with_origins(
    file: Path | None,
    flags: Mapping[str, Any],
    flag_origins: Mapping[str, ValueOrigin] | None = None,
) -> LoadedConfig:
    """Load a configuration that the user names, or the defaults, with the origins of its values.

    Args:
        file: Configuration file, also that of a run; None for the defaults.
        flags: Values that override those of the file, by dotted name; None if not given.
        flag_origins: Origins of these values, by dotted name; arguments in Python without one.

    Raises:
        UsageError: The file cannot be read, or a value is invalid; the message names its origin.
    """
    values: dict[str, Any] = {}
    if file is not None:
        values = read_yaml(file, error=UsageError)
        if _is_of_run(file):
            _resolve_paths(values, file)

    overrides = _Overrides.from_flags(flags, flag_origins or {})
    return _complete(values, overrides, file, OriginKind.FILE)


@dataclass(frozen=True, slots=True)
class UserOptions:
    """What the user says about a run's folder on the command line, or by a click.

    Attributes:
        settings: Settings that override those of the folder, by dotted name.
        origins: Their origins.
        config: Configuration file that the user names: that of the folder is then used as if it
            were written here. None if none is named.
        remedy: How the user has the folder's settings used; empty for the option `--config`.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, ValueOrigin] = field(default_factory=dict)
    config: Path | None = None
    remedy: str = ""


NO_USER_OPTIONS = UserOptions()


def load_run_config(file: Path, user_options: UserOptions = NO_USER_OPTIONS) -> LoadedConfig:
    """Load the configuration that a run recorded, with the origins of its values.

    A run of somebody else is not trusted, unless the user names its configuration with `--config`:
    its settings that start a program, send a request or name another file are not used. They are
    defaults, and topics and index are files that do not exist, unless the user gives them.

    Args:
        file: Configuration in the folder of a run.
        user_options: Settings that the user gives, and whether the user trusts the folder.

    Raises:
        DataError: There is no such file, or a link of somebody else's folder leads out of it.
        UsageError: The file cannot be read, a value is invalid, or the user names the configuration
            of another folder; the message names the origin of the value.
    """
    if not file.is_file():
        raise DataError(f"{file}: no such file; give the folder of a run")
    _check_named_file(file, user_options)

    content = read_bounded(file, MAX_BYTES, UsageError)
    values = read_yaml(file, text=content, error=UsageError)
    _resolve_paths(values, file)

    is_trusted = user_options.config is not None or is_recorded(content)
    if is_trusted:
        return _complete_own_run(values, file, user_options)
    return _complete_foreign_run(values, file, user_options)


def _check_named_file(file: Path, user_options: UserOptions) -> None:
    """Raise UsageError if the user names another configuration than that of the run."""
    named = user_options.config
    if named is None:
        return
    if not named.exists() or not named.samefile(file):
        raise UsageError(f"--config {named}: not the configuration of this run; give {file}")


def _complete_own_run(
    values: dict[str, Any], file: Path, user_options: UserOptions
) -> LoadedConfig:
    """Return the configuration of a run that the user trusts, with all of its settings.

    Args:
        values: Values of the file, by section, which are changed.
        file: Configuration in the folder of the run.
        user_options: Settings that the user gives in place of those of the folder.
    """
    settings = dict(user_options.settings)
    origins = dict(user_options.origins)
    if settings.get("task") is None:
        # The file names the folder of the task. If that is gone or changed since the run, the copy of
        # the task in the folder of the run replaces it.
        settings["task"] = find_task_folder(file)
        origins["task"] = ValueOrigin(OriginKind.FOLDER, str(file))

    overrides = _Overrides.from_flags(settings, origins)
    return _complete(values, overrides, file, OriginKind.FOLDER)


def _complete_foreign_run(
    values: dict[str, Any], file: Path, user_options: UserOptions
) -> LoadedConfig:
    """Return the configuration of a run that somebody else wrote, without its acting settings.

    Acting settings start a program, send a request or name another file. The folder of a stranger
    must not make this program do so; the result lists these settings as unused.

    Args:
        values: Values of the file, by section, which are changed.
        file: Configuration in the folder of the run.
        user_options: Settings that the user gives in place of those of the folder.

    Raises:
        DataError: A link in the folder leads out of it.
        UsageError: A value is invalid.
    """
    check_folder(file)

    # A built-in task, or the copy of one in the folder itself, is safe to use again.
    recorded_task = values.get("task")
    acting_values = take_acting_values(values)
    is_built_in = isinstance(recorded_task, str) and recorded_task in TASKS
    values["task"] = recorded_task if is_built_in else find_copy(file.parent)
    _replace_inputs(values, user_options.settings, str(file.parent / NOT_USED))

    overrides = _Overrides.from_flags(user_options.settings, user_options.origins)
    loaded = _complete(values, overrides, file, OriginKind.FOLDER)

    # A removed value that is now the default, or that the user gives, counts as used.
    unused_values = list_unused(acting_values, loaded.config)
    unused = UnusedSettings(file, unused_values, user_options.remedy)
    return replace(loaded, unused=unused)


def _replace_inputs(
    values: dict[str, Any],
    user_settings: Mapping[str, Any],
    placeholder: str,
) -> None:
    """Set topics and index to a placeholder, unless the user gives inputs of this kind.

    A configuration is invalid without topics and index, although they are not read here.

    Args:
        values: Values of the configuration, by section, which are changed.
        user_settings: Settings that the user gives, by dotted name.
        placeholder: Path that no file has.
    """
    if not _has_any(user_settings, "topics", "dataset"):
        values["topics"] = placeholder
    if not _has_any(user_settings, "index", "corpus", "dataset", "retriever.name"):
        values["index"] = placeholder


def load_recorded_config(
    file: Path, given: Mapping[str, Any], kept: Collection[str]
) -> LoadedConfig:
    """Load the configuration of a recorded run for its replay.

    Settings that start a program, send a request or name another file are left out, but for the
    ones that a replay needs.

    Args:
        file: Configuration in the folder of a recorded run.
        given: Values that override those of the file, by dotted name.
        kept: Settings and sections that the replay needs.

    Raises:
        UsageError: The file cannot be read, or a value is invalid.
    """
    values = read_yaml(file, error=UsageError)
    take_acting_values(values, kept)
    return _complete(values, _Overrides.from_flags(given, {}), file, OriginKind.FOLDER)


def _has_any(given: Mapping[str, Any], *names: str) -> bool:
    """Return whether one of these settings is given."""
    return any(given.get(name) is not None for name in names)


def _complete(
    values: dict[str, Any],
    overrides: _Overrides,
    file: Path | None,
    file_kind: OriginKind,
) -> LoadedConfig:
    """Return the valid configuration of a file's values, overrides and defaults.

    Overrides replace values of the file. Defaults that depend on other values are added, such as
    the index folder of the corpus.

    Args:
        values: Values of the file, by section, which are changed.
        overrides: Values that replace those of the file.
        file: The file; None for the defaults.
        file_kind: Origin of the values of the file.

    Raises:
        UsageError: A value is invalid; the message names its origin.
    """
    source = str(file or "options")
    # The file's own values are read before the overrides replace them.
    stored_objective = values.get("objective")
    _drop_outdated(values, overrides.values)
    stored = _list_stored(values)

    # Defaults come last, since they depend on the values that are finally used.
    set_values(values, overrides.values, source)
    _add_dependent_defaults(values, overrides, file, stored_objective)

    # A stored value comes from the file unless an override or a default replaced it.
    kept = _list_kept(stored, values, overrides.values)
    file_origins = dict.fromkeys(kept, ValueOrigin(file_kind, source))
    origins = Origins({**file_origins, **overrides.origins.by_name})
    config = _validate(values, origins, file)
    _check_code_options(config, origins)
    return LoadedConfig(config, origins)


def _add_dependent_defaults(
    values: dict[str, Any],
    overrides: _Overrides,
    file: Path | None,
    stored_objective: Any,
) -> None:
    """Add the defaults that depend on other values: on dataset, retriever, task and objective.

    Args:
        values: Values of the configuration, by section, which are changed.
        overrides: Values that replaced values of the file; they are part of `values` already.
        file: File of the values; None if there is none.
        stored_objective: Objective that the file had before it was overridden.

    Raises:
        UsageError: A value is invalid, or the corpus is missing; the message names the origin.
    """
    source = str(file or "options")
    _complete_dataset(values, overrides.origins, file)
    _complete_first_stage(values, source)
    task = _find_task(values, overrides.origins, file)
    _complete_weights(values, overrides.values, task, stored_objective)
    _complete_sections(values, task)


def _validate(values: Mapping[str, Any], origins: Origins, file: Path | None) -> Config:
    """Return the configuration of complete values.

    Raises:
        UsageError: A value is invalid; the message names its origin.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        problem = describe_first_problem(error, model=Config)
        raise UsageError(_locate_problem(problem, origins, file)) from error


def _check_code_options(config: Config, origins: Origins) -> None:
    """Raise UsageError if an option with which vLLM loads code is not from the command line.

    A configuration file is passed on; that a model's folder may run code is the user's own word.
    """
    for name in config.engine.options:
        setting = f"engine.options.{name}"
        origin = origins.find(setting)
        if CODE_OPTION.search(name) and origin.kind is not OriginKind.OPTION:
            raise UsageError(
                f"{origin.place}: {setting}: lets vLLM run code from files; "
                f"give it on the command line alone: --set {setting}=VALUE"
            )


def _find_task(values: dict[str, Any], given_origins: Origins, file: Path | None) -> Task:
    """Return the task of a configuration, the default one if it names none.

    Raises:
        UsageError: There is no such task.
    """
    name = str(values.setdefault("task", DEFAULT_TASK))
    try:
        return get_task(name)
    except UsageError as error:
        raise UsageError(_locate_problem(f"task: {error}", given_origins, file)) from error


def _list_stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a file by dotted name, without empty ones and sections."""
    return {name: value for name, value in flatten(values).items() if value not in (None, {})}


def _list_kept(
    stored: Mapping[str, Any],
    values: Mapping[str, Any],
    overrides: Collection[str],
) -> list[str]:
    """Return the dotted names of the values of a file that the final configuration still has.

    Args:
        stored: Values of the file, by dotted name.
        values: Final values, by section.
        overrides: Dotted names of the values that override those of the file.
    """
    final = flatten(values)
    kept: list[str] = []
    for name, value in stored.items():
        is_overridden = is_one_of(name, overrides)
        is_unchanged = name in final and final[name] == value
        if is_unchanged and not is_overridden:
            kept.append(name)
    return kept


def _locate_problem(problem: str, origins: Origins, file: Path | None) -> str:
    """Return the message of a problem after the place where the wrong value was set.

    `depth: must be above 0` becomes `run.yaml: depth: must be above 0`, for example.

    Args:
        problem: Message that begins with settings, as `depth: ...` or `corpus, index: ...`.
        origins: Origins of the values.
        file: File of the configuration, which is the place if the value is a default; None if
            there is no file.
    """
    listed_settings = problem.partition(": ")[0]
    names = listed_settings.split(", ")
    is_default = len(origins.find_decisive(names)) == 0
    if is_default and file is not None:
        return f"{file}: {problem}"
    return origins.locate(problem)


def _is_of_run(file: Path) -> bool:
    """Return whether a configuration is that of a run, whose relative paths start at its folder."""
    return file.name == CONFIG and (file.parent / METADATA).is_file()


def _resolve_paths(values: dict[str, Any], file: Path) -> None:
    """Replace the paths in the configuration of a run, relative to its folder, by paths from here."""
    folder = file.parent.resolve()
    _map_paths(values, lambda path: _find_from_here(folder / path))


def _map_paths(values: dict[str, Any], convert: Callable[[Path], Path]) -> None:
    """Convert the relative paths among the values of a configuration, in place."""
    for name, value in flatten(values).items():
        if _is_relative_path(name, value):
            converted = convert(Path(value))
            set_values(values, {name: str(converted)}, CONFIG)


def _is_relative_path(name: str, value: object) -> bool:
    """Return whether the value of a setting is a relative path.

    Args:
        name: Dotted name of the setting.
        value: Its value, as it is written in a file.
    """
    if name not in _PATHS or not isinstance(value, str):
        return False
    # The value of a prompt is a name unless it ends in `.jinja`.
    if name in _PROMPTS and not value.endswith(".jinja"):
        return False
    return not Path(value).is_absolute()


def _find_from_here(path: Path) -> Path:
    """Return an absolute path as relative to the current folder if it lies below."""
    plain, here = Path(os.path.normpath(path)), Path.cwd()
    return plain.relative_to(here) if plain.is_relative_to(here) else plain


def _drop_outdated(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Drop values of a file that are only right for another value, which is overridden.

    These are: the default index of another corpus; topics, corpus and index of another dataset; a
    stance depth of 0, if a stance prompt is given; the context length of another model.

    Args:
        values: Values of the file, by section, which are changed.
        overrides: Values in place of those of the file, by dotted name.
    """
    if "corpus" in overrides:
        _drop_default_index(values)
    if "dataset" in overrides and overrides["dataset"] != values.get("dataset"):
        for name in ("topics", "corpus", "index"):
            values.pop(name, None)
    if "stance.prompt" in overrides:
        _drop_zero_stance_depth(values)
    _drop_context(values, overrides)


def _drop_default_index(values: dict[str, Any]) -> None:
    """Drop the index of a file's corpus, unless the index has a folder that the user chose."""
    corpus = Path(str(values.get("corpus")))
    if values.get("index") == str(index_folder(corpus)):
        del values["index"]


def _drop_zero_stance_depth(values: dict[str, Any]) -> None:
    """Drop the depth of a file's stance prompt if it is 0, so that the default applies.

    At 0 the stance prompt is not used, although the user gives one now.
    """
    stance = values.get("stance")
    if isinstance(stance, dict) and stance.get("depth") == 0:
        del stance["depth"]


def _drop_context(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Drop the context length of a file's model or server if another one is used."""
    engine = values.get("engine")
    if not isinstance(engine, dict):
        return

    for name in ("model", "base_url"):
        stored = engine.get(name)
        override = overrides.get(f"engine.{name}")
        if stored is not None and override and override != stored:
            engine.pop("context", None)


def _complete_dataset(values: dict[str, Any], origins: Origins, file: Path | None) -> None:
    """Add the topics of a dataset, and its task if the project has one for it.

    Raises:
        UsageError: Topics or a corpus are given beside the dataset.
    """
    dataset = values.get("dataset")
    if not isinstance(dataset, str):
        return

    dataset_topics = str(topics_file(dataset))
    topics = str(values.get("topics") or dataset_topics)
    # A run records the path of the dataset's topics from its own folder, so only its end is equal.
    has_other_topics = not topics.endswith(dataset_topics)
    has_corpus = values.get("corpus") is not None
    if has_other_topics or has_corpus:
        problem = f"dataset: {dataset:.200} has topics and documents; leave out topics and corpus"
        raise UsageError(_locate_problem(problem, origins, file))

    values["topics"] = topics
    if not values.get("task"):
        values["task"] = find_dataset_task(dataset)


def _complete_first_stage(values: dict[str, Any], source: str) -> None:
    """Add what the chosen retriever needs: its section, its variant of BM25, and an index on disk.

    Raises:
        UsageError: There is no corpus, and the retriever has no documents of its own.
    """
    retriever = _find_retriever(values)
    if retriever is not None:
        _add_retriever_settings(values, retriever)

    has_own_documents = retriever is not None and retriever.has_documents
    if not has_own_documents and not values.get("index"):
        values["index"] = _find_default_index(values, source)


def _add_retriever_settings(values: dict[str, Any], retriever: Retriever) -> None:
    """Add the section of a retriever and its variant of BM25, if it has them."""
    if retriever.bm25_method is not None:
        values["retriever"].setdefault("method", retriever.bm25_method)
    if retriever.section is not None:
        _ensure_section(values, retriever.section.name)


def _find_retriever(values: Mapping[str, Any]) -> Retriever | None:
    """Return the chosen first stage; None if none is named, or an unknown one."""
    settings = values.get("retriever")
    if not isinstance(settings, dict):
        return None

    name = settings.get("name")
    if not isinstance(name, str):
        return None
    return RETRIEVERS.get(name)


def _ensure_section(values: dict[str, Any], name: str) -> None:
    """Add an empty section, whose settings are the defaults, unless there is one."""
    if not values.get(name):
        values[name] = {}


def _find_default_index(values: Mapping[str, Any], source: str) -> Path:
    """Return the default folder of the index of a dataset or a corpus.

    Args:
        values: Values of the configuration, by section.
        source: File of the values, for messages.

    Raises:
        UsageError: The values name neither a dataset nor a corpus.
    """
    if isinstance(values.get("dataset"), str):
        return dataset_index(values["dataset"])
    if values.get("corpus"):
        return index_folder(Path(str(values["corpus"])))

    topics = "" if values.get("topics") else "the topics (`topics: FILE`), and "
    raise UsageError(
        f"{source}: give {topics}the corpus (`corpus: FILE`), an index of it (`index: FOLDER`) or, "
        "for web documents, `retriever.name: chatnoir`; or give `dataset: ID` for both"
    )


def _complete_weights(
    values: dict[str, Any],
    overrides: Collection[str],
    task: Task,
    stored_objective: Any,
) -> None:
    """Set all weights: those of the values, and the defaults of the objective for the others.

    A file contains all weights, most of which are the defaults of its objective. If another
    objective overrides that of the file, its defaults replace them.

    Args:
        values: Values of the configuration, by section, which are changed.
        overrides: Dotted names of the values that override those of the file.
        task: Task with the default weights by objective.
        stored_objective: Objective that the file had before it was overridden.
    """
    weights = values.get("weights") or {}
    if not isinstance(weights, dict):
        return

    objective = values.get("objective")
    outdated: Mapping[str, float] = {}
    if objective != stored_objective:
        outdated = _find_weights(task, stored_objective)

    chosen: dict[str, Any] = {}
    for name, weight in weights.items():
        is_override = f"weights.{name}" in overrides
        is_outdated_default = weight == outdated.get(name)
        if is_override or not is_outdated_default:
            chosen[name] = weight

    values["weights"] = {**_find_weights(task, objective), **chosen}


def _complete_sections(values: dict[str, Any], task: Task) -> None:
    """Add the sections that the task has, and the maximum length of its rankings."""
    if task.no_stances:
        _ensure_section(values, "stance")
    kind = get_kind(task)
    for section in kind.sections:
        _ensure_section(values, section)
    _complete_length(values, task, kind)


def _complete_length(values: dict[str, Any], task: Task, kind: Kind) -> None:
    """Set the maximum length of a ranking to its default, or to the task's maximum if that is less.

    The setting is `depth`, or one in a section of the kind of task, as `pairs.most`. A value that is
    set already stays.
    """
    section, _, name = kind.length_setting.rpartition(".")
    if section:
        settings = values[section]
        declaration: type[BaseModel] = kind.sections[section]
    else:
        # The setting is at the top level of the configuration.
        settings = values
        declaration = Config

    if not isinstance(settings, dict):
        # The section has a wrong type, which is reported when the configuration is validated.
        return
    if settings.get(name) is None:
        default = declaration.model_fields[name].default
        settings[name] = min(default, task.documents_per_topic.max)


def _find_weights(task: Task, objective: Any) -> Mapping[str, float]:
    """Return the default weights of an objective; those of `both` if it is missing or unknown."""
    for name, weights in task.objectives.items():
        if name == objective:
            return weights
    return task.objectives["both"]


def write_config(config: Config, path: Path) -> None:
    """Write all values of a configuration, including defaults, as `load_config` reads them.

    The paths of a run are written relative to its folder, which can then be read from any other
    folder, and be moved together with the files around it.
    """
    values = config.model_dump(mode="json")
    if _is_of_run(path):
        folder = path.parent.resolve()
        _map_paths(values, lambda used: Path(os.path.relpath(used, folder)))
    content = to_yaml(values)

    # Recorded before it is written: if the process is killed in between, the user's own folder is
    # still recognized as such.
    record_configuration(path, content)
    with open_atomic(path) as stream:
        stream.write(content)
