"""Files of a configuration, read and written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from touche_llm.config.configuration import Config, flatten, is_one_of
from touche_llm.corpus.ir_dataset import dataset_index, topics_file
from touche_llm.data.files import open_atomic
from touche_llm.errors import UsageError, describe_first_problem
from touche_llm.pairs.settings import PairSettings
from touche_llm.prompts.prompt import PromptsConfig
from touche_llm.retrieval.first_stages import RETRIEVERS, SECTIONS
from touche_llm.settings.section import set_values
from touche_llm.settings.yaml_text import read_yaml, to_yaml
from touche_llm.tasks import DEFAULT_TASK, find_dataset_task, get_task
from touche_llm.tasks.task import Task

# Names in the folder of a run.
CONFIG = "config.yaml"
METADATA = "ir-metadata.yml"
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
    *(
        f"{section}.{name}"
        for section, settings in SECTIONS.items()
        for name, field in settings.model_fields.items()
        if Path in (field.annotation, *get_args(field.annotation))
    ),
)


def index_folder(corpus: Path) -> Path:
    """Return the default index folder of a corpus: below the current folder, one for each corpus file."""
    place = hashlib.sha256(os.fsencode(corpus.absolute())).hexdigest()[:8]
    return Path(".touche-llm/index") / f"{corpus.name.split('.')[0]}-{place}"


def load_config(file: Path | None, flags: Mapping[str, Any]) -> Config:
    """Load a configuration, or the defaults, overridden by flags: values by dotted name, None if not given.

    An error names the setting, and the file unless a flag set it.
    """
    values = read_yaml(file, error=UsageError) if file else {}
    if file is not None and _is_of_run(file):
        _map_paths(values, lambda path: _find_from_here(file.parent.resolve() / path))
    source = str(file or "options")
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    stored_objective = values.get("objective")
    _drop_outdated(values, flags)
    set_values(values, given, source)
    _complete_dataset(values, source)
    _complete_first_stage(values, source)
    try:
        task = get_task(str(values.setdefault("task", DEFAULT_TASK)))
    except UsageError as error:
        raise UsageError(f"{'task' if flags.get('task') else source}: {error}") from error
    _complete_weights(values, given, task, stored_objective)
    _complete_sections(values, task)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        problem = describe_first_problem(error, model=Config)
        names = problem.partition(": ")[0].split(", ")
        is_given = any(is_one_of(name, names) or is_one_of(names[0], (name,)) for name in given)
        raise UsageError(problem if file is None or is_given else f"{file}: {problem}") from error


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


def _complete_dataset(values: dict[str, Any], source: str) -> None:
    """Add the topics and the index of a dataset, and its task if the project has one for it."""
    dataset = values.get("dataset")
    if not isinstance(dataset, str):
        return
    topics = str(topics_file(dataset))
    given = str(values.get("topics") or topics)
    # The configuration of a run in another folder has the path of that folder's topics.
    if values.get("corpus") is not None or not given.endswith(topics):
        raise UsageError(
            f"{source}: `dataset: {dataset:.200}` has topics and documents; leave out topics and corpus"
        )
    values["topics"] = given
    if not values.get("task"):
        values["task"] = find_dataset_task(dataset)


def _complete_first_stage(values: dict[str, Any], source: str) -> None:
    """Add the settings of the chosen retriever, and the default index of a corpus that no search engine holds."""
    retriever = values.get("retriever")
    name = retriever.get("name") if isinstance(retriever, dict) else None
    chosen = RETRIEVERS.get(name) if isinstance(name, str) else None
    if chosen is not None and chosen.section:
        values[chosen.section] = values.get(chosen.section) or {}
    if isinstance(retriever, dict) and chosen is not None and chosen.bm25_method:
        retriever.setdefault("method", chosen.bm25_method)
    if not (chosen is not None and chosen.has_documents) and not values.get("index"):
        if isinstance(values.get("dataset"), str):
            values["index"] = dataset_index(values["dataset"])
            return
        if not values.get("corpus"):
            topics = "" if values.get("topics") else "the topics (`topics: FILE`), and "
            raise UsageError(
                f"{source}: give {topics}the corpus (`corpus: FILE`), an index of it (`index: FOLDER`) or, "
                "for web documents, `retriever.name: chatnoir`; or give `dataset: ID` for both"
            )
        values["index"] = index_folder(Path(str(values["corpus"])))


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
    """Add the sections that the task has, and the limits of a ranking that its own limit is below."""
    if task.no_stances:
        values["stance"] = values.get("stance") or {}
    if task.sentence_question is not None:
        for section in ("sentences", "pairs"):
            values[section] = values.get(section) or {}
        if isinstance(values["pairs"], dict):
            values["pairs"].setdefault(
                "most", min(PairSettings().most, task.documents_per_topic.max)
            )
    elif values.get("depth") is None:
        values["depth"] = min(Config.model_fields["depth"].default, task.documents_per_topic.max)


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
