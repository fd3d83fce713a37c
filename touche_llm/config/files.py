"""Files of a configuration, read and written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from touche_llm.config.configuration import Config, flatten, is_one_of
from touche_llm.config.origins import ARGUMENT, LoadedConfig, OriginKind, Origins, ValueOrigin
from touche_llm.corpus.ir_dataset import dataset_index, topics_file
from touche_llm.data.files import open_atomic
from touche_llm.errors import UsageError, describe_first_problem
from touche_llm.kinds.known import KINDS, get_kind
from touche_llm.kinds.registry import Kind
from touche_llm.prompts.prompt import PromptsConfig
from touche_llm.retrieval.first_stages import RETRIEVERS, SECTIONS
from touche_llm.retrieval.registry import Retriever
from touche_llm.settings.section import set_values
from touche_llm.settings.yaml_text import read_yaml, to_yaml
from touche_llm.tasks import DEFAULT_TASK, find_dataset_task, get_task
from touche_llm.tasks.task import Task

# Names in the folder of a run.
CONFIG = "config.yaml"
METADATA = "ir-metadata.yml"


def _list_declared_paths() -> list[str]:
    """Return the settings of first stages and kinds of task that are files or folders."""
    sections = dict(SECTIONS)
    for kind in KINDS.values():
        sections.update(kind.sections)

    paths: list[str] = []
    for section, settings in sections.items():
        for name, field in settings.model_fields.items():
            if Path in (field.annotation, *get_args(field.annotation)):
                paths.append(f"{section}.{name}")
    return paths


# Settings that are files or folders. The folder of a task has a copy in the folder of a run.
_PATHS = (
    *(
        "topics",
        "corpus",
        "index",
        "candidates",
        "cache.file",
        "engine.tokenizer",
        "prompts.folder",
    ),
    *(f"prompts.{purpose}" for purpose in PromptsConfig.model_fields if purpose != "folder"),
    *_list_declared_paths(),
)


# Max characters of the name of a corpus in that of its index folder: at four bytes each, the folder's
# name stays below the 255 bytes that a name may have.
_MAX_INDEX_NAME = 60


def index_folder(corpus: Path) -> Path:
    """Return the default index folder of a corpus: below the current folder, one for each corpus file."""
    place = hashlib.sha256(os.fsencode(corpus.absolute())).hexdigest()[:8]
    title = corpus.name.split(".")[0][:_MAX_INDEX_NAME]
    return Path(".touche-llm/index") / f"{title}-{place}"


def load_config(file: Path | None, flags: Mapping[str, Any]) -> Config:
    """Load a configuration, or the defaults, overridden by flags: values by dotted name, None if not given.

    An error names the setting, and the file unless a flag set it.
    """
    return load_with_origins(file, flags).config


def load_with_origins(
    file: Path | None,
    flags: Mapping[str, Any],
    flag_origins: Mapping[str, ValueOrigin] | None = None,
    file_kind: OriginKind = OriginKind.FILE,
) -> LoadedConfig:
    """Load a configuration with the origins of its values.

    Args:
        file: Configuration file; None for the defaults.
        flags: Values that override those of the file, by dotted name; None if not given.
        flag_origins: Origins of these values, by dotted name; arguments in Python without one.
        file_kind: Origin of the values of the file; a file in the folder of a run is recognized.

    Raises:
        UsageError: The file cannot be read, or a value is invalid; the message names its origin.
    """
    values = read_yaml(file, error=UsageError) if file else {}
    if file is not None and _is_of_run(file):
        file_kind = OriginKind.FOLDER
        _map_paths(values, lambda path: _find_from_here(file.parent.resolve() / path))
    source = str(file or "options")
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    stored_objective = values.get("objective")
    _drop_outdated(values, flags)

    stored = _list_stored(values)
    set_values(values, given, source)
    given_origins = {name: (flag_origins or {}).get(name, ARGUMENT) for name in given}
    _complete_dataset(values, Origins(given_origins), file)
    _complete_first_stage(values, source)
    task = _find_task(values, Origins(given_origins), file)
    _complete_weights(values, given, task, stored_objective)
    _complete_sections(values, task)

    file_origin = ValueOrigin(file_kind, source)
    stored_origins = dict.fromkeys(_list_kept(stored, values, given), file_origin)
    origins = Origins({**stored_origins, **given_origins})
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problem = describe_first_problem(error, model=Config)
        raise UsageError(_locate_problem(problem, origins, file)) from error
    return LoadedConfig(config, origins)


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
    given: Collection[str],
) -> list[str]:
    """Return the names of the values of a file that nothing replaced, by dotted name.

    Args:
        stored: Values of the file, by dotted name.
        values: Final values, by section.
        given: Dotted names of the values that override those of the file.
    """
    final = flatten(values)
    return [
        name
        for name, value in stored.items()
        if not is_one_of(name, given) and name in final and final[name] == value
    ]


def _locate_problem(problem: str, origins: Origins, file: Path | None) -> str:
    """Return a problem of a setting with the origin of its value, or for a default with the file."""
    name = problem.partition(": ")[0]
    is_default = not origins.find_decisive(name.split(", "))
    if is_default and file is not None:
        return f"{file}: {problem}"
    return origins.locate(problem)


def _is_of_run(file: Path) -> bool:
    """Return whether a configuration is that of a run, whose relative paths start at its folder."""
    return file.name == CONFIG and (file.parent / METADATA).is_file()


def _map_paths(values: dict[str, Any], convert: Callable[[Path], Path]) -> None:
    """Convert the relative paths among the values of a configuration."""
    for name, value in flatten(values).items():
        is_name = (
            name.startswith("prompts.")
            and name != "prompts.folder"
            and not str(value).endswith(".jinja")
        )
        if (
            name in _PATHS
            and isinstance(value, str)
            and not is_name
            and not Path(value).is_absolute()
        ):
            set_values(values, {name: str(convert(Path(value)))}, CONFIG)


def _find_from_here(path: Path) -> Path:
    """Return an absolute path as relative to the current folder if it lies below."""
    plain, here = Path(os.path.normpath(path)), Path.cwd()
    return plain.relative_to(here) if plain.is_relative_to(here) else plain


def _drop_outdated(values: dict[str, Any], flags: Mapping[str, Any]) -> None:
    """Drop values of the file that belong to another value which a flag replaces."""
    default_index = str(index_folder(Path(str(values.get("corpus")))))
    if flags.get("corpus") is not None and values.get("index") == default_index:
        del values["index"]
    if flags.get("dataset") not in (None, values.get("dataset")):
        for name in ("topics", "corpus", "index"):
            values.pop(name, None)
    stance = values.get("stance")
    if (
        flags.get("stance.prompt") is not None
        and isinstance(stance, dict)
        and stance.get("depth") == 0
    ):
        del stance["depth"]  # for a prompt that was not used
    engine = values.get("engine")
    for name in ("model", "base_url"):
        given = flags.get(f"engine.{name}")
        if isinstance(engine, dict) and given and engine.get(name) not in (None, given):
            # The context length belongs to the other model or server.
            engine.pop("context", None)


def _complete_dataset(values: dict[str, Any], given_origins: Origins, file: Path | None) -> None:
    """Add the topics and the index of a dataset, and its task if the project has one for it."""
    dataset = values.get("dataset")
    if not isinstance(dataset, str):
        return
    topics = str(topics_file(dataset))
    given = str(values.get("topics") or topics)
    # The configuration of a run in another folder has the path of that folder's topics.
    if values.get("corpus") is not None or not given.endswith(topics):
        problem = f"dataset: {dataset:.200} has topics and documents; leave out topics and corpus"
        raise UsageError(_locate_problem(problem, given_origins, file))
    values["topics"] = given
    if not values.get("task"):
        values["task"] = find_dataset_task(dataset)


def _complete_first_stage(values: dict[str, Any], source: str) -> None:
    """Add what the chosen retriever needs: its section, its variant of BM25, and an index on disk.

    Raises:
        UsageError: There is no corpus, and the retriever has no documents of its own.
    """
    settings = values.get("retriever")
    chosen: Retriever | None = None
    if isinstance(settings, dict):
        name = settings.get("name")
        chosen = RETRIEVERS.get(name) if isinstance(name, str) else None
        if chosen is not None and chosen.bm25_method is not None:
            settings.setdefault("method", chosen.bm25_method)

    if chosen is not None and chosen.section is not None:
        section = chosen.section.name
        values[section] = values.get(section) or {}

    has_own_documents = chosen is not None and chosen.has_documents
    if not has_own_documents and not values.get("index"):
        values["index"] = _find_default_index(values, source)


def _find_default_index(values: Mapping[str, Any], source: str) -> Path:
    """Return the default folder of the index of a dataset or a corpus.

    Raises:
        UsageError: There is neither of them.
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
    values: dict[str, Any], given: Mapping[str, Any], task: Task, stored_objective: Any
) -> None:
    """Add the default weights of the objective, in place of written defaults of another objective."""
    weights = values.get("weights") or {}
    if not isinstance(weights, dict):
        return
    outdated = (
        _find_weights(task, stored_objective) if values.get("objective") != stored_objective else {}
    )
    kept = {
        name: weight
        for name, weight in weights.items()
        if f"weights.{name}" in given or outdated.get(name) != weight
    }
    values["weights"] = {**_find_weights(task, values.get("objective")), **kept}


def _complete_sections(values: dict[str, Any], task: Task) -> None:
    """Add the sections that the task has, and its maximum length of a ranking."""
    if task.no_stances:
        values["stance"] = values.get("stance") or {}
    kind = get_kind(task)
    for section in kind.sections:
        values[section] = values.get(section) or {}
    _complete_length(values, task, kind)


def _complete_length(values: dict[str, Any], task: Task, kind: Kind) -> None:
    """Add the maximum length of a ranking: the default, or the task's maximum if that is less."""
    section, _, name = kind.length_setting.rpartition(".")
    target = values
    settings: type[BaseModel] = Config
    if section:
        target = values[section]
        settings = kind.sections[section]
    # Another value than a section of names is an error when the configuration is made.
    if isinstance(target, dict) and target.get(name) is None:
        target[name] = min(settings.model_fields[name].default, task.documents_per_topic.max)


def _find_weights(task: Task, objective: Any) -> Mapping[str, float]:
    """Return the default weights of an objective; those of `both` if it is missing or unknown."""
    return next(
        (weights for name, weights in task.objectives.items() if name == objective),
        task.objectives["both"],
    )


def write_config(config: Config, path: Path) -> None:
    """Write all values, including defaults, in the form that `load_config` reads.

    The paths of a run from its folder.

    A folder of a run can then be read from any folder, and be moved with its tree.
    """
    values = config.model_dump(mode="json")
    if _is_of_run(path):
        folder = path.parent.resolve()
        _map_paths(values, lambda each: Path(os.path.relpath(each, folder)))
    with open_atomic(path) as stream:
        stream.write(to_yaml(values))
