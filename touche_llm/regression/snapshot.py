"""The folder of a recorded run: its files, and the configuration of its replay."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from touche_llm.config.configuration import Config
from touche_llm.config.files import CONFIG, load_recorded_config
from touche_llm.config.own_folders import is_own
from touche_llm.config.task_copies import COPY, find_task_folder
from touche_llm.data.files import open_atomic, read_bounded, recover, shorten_path
from touche_llm.data.records import Malformed, Model
from touche_llm.errors import DataError, UsageError
from touche_llm.kinds.known import KINDS
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.settings import CacheConfig
from touche_llm.prompts.prompt import PromptsConfig
from touche_llm.prompts.template_text import read_text
from touche_llm.runs.directory import CANDIDATES, RECORDED, RUN, SENTENCES, RunDirectory
from touche_llm.settings.yaml_text import read_yaml
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.task import Task

TOPICS = "topics.jsonl"
CASSETTE = "cassette.jsonl"
PROMPTS = "prompts"
DOCUMENTS = "documents.jsonl"
ARGUMENTS = "arguments.csv"
# A folder with any of these files is a recorded run, though perhaps a damaged one.
_MARKERS = (RECORDED, CONFIG, TOPICS, CASSETTE, DOCUMENTS, ARGUMENTS, CANDIDATES, SENTENCES, RUN)
# All files that this program writes there; a file included by a template can have any name.
SNAPSHOT_FILES = (*_MARKERS, f"{PROMPTS}/*/*", f"{COPY}/*", f"{COPY}/*/*")
QUERIES = "queries"
_MAX_BYTES = 2**20
# Settings that determine the run after the first stage, in the order of a configuration.
DECISIVE = (
    *("depth", "judge_per", "sampling", "objective", "weights", "rank", "ranking"),
    "stance",
    *(section for kind in KINDS.values() for section in kind.sections),
    *("tag", "engine"),
)


# Settings that act of which a replay has those of the recorded run: templates, and names of models,
# which are in the keys of answers.
_REPLAYED = (
    *("task", "prompts", "engine.model", "engine.revision", "engine.context"),
    "ranking.cross_encoder",
)


class Manifest(Model):
    """Manifest of a recorded run.

    Attributes:
        templates: Names of the template files, by purpose of the prompt.
    """

    format: Literal[2] = 2
    templates: dict[str, str]

    def write(self, folder: Path) -> None:
        """Write the manifest, the same bytes for the same values."""
        with open_atomic(folder / RECORDED) as stream:
            options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
            stream.write(orjson.dumps(self.model_dump(mode="json"), option=options))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A recorded run, opened with `open_snapshot`."""

    folder: Path
    task: Task
    manifest: Manifest

    @property
    def name(self) -> str:
        """Return the name of the recorded run."""
        return self.folder.name

    @property
    def first_stage(self) -> Path:
        """Return the path of the first stage."""
        return RunDirectory(self.folder).first_stage_file(self.task)

    @property
    def run(self) -> Path:
        """Return the path of the expected run."""
        return self.folder / RUN

    def config(self) -> Config:
        """Return the configuration of a replay with the current templates.

        The templates are the project's own, or those that the recorded configuration names relative
        to the recorded folder. Topics, documents and the cache are the recorded files.
        """
        config = _read_config(self.folder)
        updates = {
            "topics": self.folder / TOPICS,
            "corpus": self.folder / corpus_file(self.task),
            "prompts": self._locate_templates(config.prompts),
            "cache": CacheConfig(file=self.folder / CASSETTE, mode=CacheMode.REPLAY),
        }
        return config.model_copy(update=updates)

    def _locate_templates(self, prompts: PromptsConfig) -> PromptsConfig:
        """Return prompts whose paths of templates are relative to the current folder.

        The recorded ones are relative to the folder of the recorded run. Names of templates stay.
        """
        templates: dict[str, Any] = {}
        for purpose, value in prompts:
            if isinstance(value, str) and value.endswith(".jinja"):
                templates[purpose] = shorten_path(self.folder / value)
        if prompts.folder is not None:
            templates["folder"] = Path(shorten_path(self.folder / prompts.folder))
        return prompts.model_copy(update=templates)

    def read_template(self, purpose: str) -> dict[str, str]:
        """Return the texts of the recorded files of a prompt by name; none if it is not recorded."""
        folder = self.folder / PROMPTS / purpose
        texts: dict[str, str] = {}
        for path in folder.rglob("*"):
            if path.is_file():
                texts[str(path.relative_to(folder))] = read_text(path)
        return texts

    def list_files(self) -> list[Path]:
        """Return the files that a replay reads, beside manifest and configuration."""
        names = (TOPICS, corpus_file(self.task), CASSETTE, RUN)
        templates = self.manifest.templates.items()
        return [
            self.first_stage,
            *(self.folder / PROMPTS / purpose / file for purpose, file in templates),
            *(self.folder / name for name in names),
        ]

    def with_recorded_templates(self, config: Config) -> Config:
        """Return the configuration with the recorded templates."""
        templates = {
            purpose: str(self.folder / PROMPTS / purpose / file)
            for purpose, file in self.manifest.templates.items()
        }
        prompts = config.prompts.model_copy(update={"folder": None, **templates})
        return config.model_copy(update={"prompts": prompts})


def corpus_file(task: Task) -> str:
    """Return the name of the corpus file, which has the format of the task's reader."""
    return ARGUMENTS if task.reads_arguments else DOCUMENTS


def find_snapshots(root: Path, names: list[str]) -> list[Path]:
    """Return the folders of the recorded runs in a folder.

    Args:
        root: Folder of recorded runs, each in a folder of its own.
        names: Names of the runs; all if empty.

    Raises:
        UsageError: There is no such folder or run.
    """
    if not root.is_dir():
        raise UsageError(
            f"{root}: no such folder; `touche-llm regress record RUN --dir {root}` makes it"
        )
    recover(root)
    available = sorted(path.name for path in root.iterdir() if _is_snapshot(path))
    if not available:
        raise UsageError(
            f"{root}: no recorded run; `touche-llm regress record RUN --dir {root}` makes one"
        )

    unknown = [name for name in names if name not in available]
    if unknown:
        raise UsageError(
            f"{root / unknown[0]}: no such recorded run; available: {', '.join(available)}"
        )
    return [root / name for name in names or available]


def _is_snapshot(folder: Path) -> bool:
    """Return whether a folder has any file of a recorded run; `open_snapshot` reports missing ones."""
    # A run is recorded in a hidden folder, which is renamed at the end.
    if folder.name.startswith("."):
        return False
    return any(os.path.lexists(folder / name) for name in _MARKERS)


def open_snapshot(folder: Path) -> Snapshot:
    """Open a recorded run.

    Raises:
        DataError: A file is missing, or is not as this program wrote it.
    """
    path = folder / RECORDED
    try:
        manifest = Manifest.from_json(read_bounded(path, _MAX_BYTES))
    except (OSError, Malformed) as error:
        raise DataError(
            f"{path}: no manifest of a recorded run: {error}; record the run again"
        ) from error

    task = get_task(_read_config(folder).task)
    snapshot = Snapshot(folder, task, manifest)
    for file in snapshot.list_files():
        if not file.is_file():
            raise DataError(f"{file}: no such file; record the run again")
    return snapshot


def _read_config(folder: Path) -> Config:
    """Return the recorded configuration of a run, with its topics and documents.

    A task that is a folder is read from the path that the configuration names, relative to the
    recorded folder, or else from its copy there.

    Raises:
        UsageError: A value is invalid, or the run was recorded elsewhere and names a template that
            is not near.
    """
    file = folder / CONFIG
    # If somebody else wrote the configuration, it could name templates anywhere on this machine.
    if not is_own(file):
        for path in _list_templates(read_yaml(file)):
            _check_is_near(folder / path, folder)

    given = {
        "task": find_task_folder(file, base=folder),
        "topics": folder / TOPICS,
        "corpus": folder / DOCUMENTS,
    }
    return load_recorded_config(file, given, _REPLAYED).config


def _list_templates(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the folders and files with templates that a configuration names, as it names them.

    Args:
        values: Values of the configuration, by section.
    """
    task = values.get("task")
    if isinstance(task, str) and task not in TASKS:
        yield task

    prompts = values.get("prompts")
    if not isinstance(prompts, dict):
        return
    for name, value in prompts.items():
        # Other values are names of templates in the folder of the task.
        is_path = name == "folder" or str(value).endswith(".jinja")
        if is_path and isinstance(value, str):
            yield value


def _check_is_near(path: Path, folder: Path) -> None:
    """Raise UsageError if a path leads out of the current folder and that of a recorded run."""
    resolved = path.resolve()
    if resolved.is_relative_to(Path.cwd()) or resolved.is_relative_to(folder.resolve()):
        return
    raise UsageError(
        f"{folder / CONFIG}: names {shorten_path(resolved)}, and this run was not recorded here, so "
        "only templates below the current folder are used; call the program in a folder above both"
    )
