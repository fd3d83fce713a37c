"""The folder of a recorded run: its files, and the configuration of its replay."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import ValidationError

from touche_llm.config import Config, flatten, is_one_of
from touche_llm.data.io import open_atomic, read_bounded, recover, remove_abandoned, shorten_path
from touche_llm.data.records import Model
from touche_llm.errors import DataError, UsageError, describe_first_problem
from touche_llm.evaluation.qrels import Qrels, find_qrels, read_qrels
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.settings import CacheConfig
from touche_llm.pipeline.config_file import CONFIG, COPY, find_task_folder, load_config
from touche_llm.pipeline.provenance import INCIDENTAL
from touche_llm.pipeline.run_directory import CANDIDATES, RECORDED, RUN, SENTENCES, RunDirectory
from touche_llm.prompts.templates import read_text
from touche_llm.tasks import get_task
from touche_llm.tasks.task import Task

TOPICS = "topics.jsonl"
CASSETTE = "cassette.jsonl"
PROMPTS = "prompts"
DOCUMENTS = "documents.jsonl"
ARGUMENTS = "arguments.csv"
# A folder with any of these files is a recorded run, though perhaps a damaged one.
_MARKERS = (RECORDED, CONFIG, TOPICS, CASSETTE, DOCUMENTS, ARGUMENTS, CANDIDATES, SENTENCES, RUN)
# All files that this program writes there; a file included by a template can have any name.
SNAPSHOT_FILES = (*_MARKERS, "qrels-*.txt", f"{PROMPTS}/*/*", f"{COPY}/*", f"{COPY}/*/*")
QUERIES = "queries"
_MAX_BYTES = 2**20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
# Settings that determine the run after the first stage, in the order of a configuration.
DECISIVE = (
    *("depth", "judge_per", "sampling", "objective", "weights", "rank", "ranking"),
    *("stance", "sentences", "pairs", "tag", "engine"),
)


class Manifest(Model):
    """Settings that determine a recorded run, by dotted name, and the template file of each purpose."""

    format: Literal[1] = 1
    settings: dict[str, Any]
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

        These are the project's own or those that the recorded configuration names, relative to the recorded folder.
        """
        config = _read_config(self.folder)
        templates: dict[str, Any] = {
            name: shorten_path(self.folder / value)
            for name, value in config.prompts
            if isinstance(value, str) and value.endswith(".jinja")
        }
        if config.prompts.folder is not None:
            templates["folder"] = Path(shorten_path(self.folder / config.prompts.folder))
        return config.model_copy(
            update={
                "topics": self.folder / TOPICS,
                "corpus": self.folder / corpus_file(self.task),
                "prompts": config.prompts.model_copy(update=templates),
                "cache": CacheConfig(file=self.folder / CASSETTE, mode=CacheMode.REPLAY),
            }
        )

    def read_templates(self) -> dict[str, dict[str, str]]:
        """Return the texts of the recorded files of the prompts, by purpose and name."""
        folders = {purpose: self.folder / PROMPTS / purpose for purpose in self.manifest.templates}
        return {
            purpose: {str(path.relative_to(folder)): read_text(path) for path in folder.rglob("*") if path.is_file()}
            for purpose, folder in folders.items()
        }

    def with_recorded_templates(self, config: Config) -> Config:
        """Return the configuration with the recorded templates."""
        own = {
            purpose: str(self.folder / PROMPTS / purpose / file) for purpose, file in self.manifest.templates.items()
        }
        return config.model_copy(update={"prompts": config.prompts.model_copy(update={"folder": None, **own})})

    def qrels(self) -> Qrels | None:
        """Read the recorded judgments; return None if there are none."""
        files = find_qrels(self.folder, self.task)
        return read_qrels(files, self.task) if files else None


def corpus_file(task: Task) -> str:
    """Return the name of the corpus file, which has the format of the task's reader."""
    return ARGUMENTS if task.reads_arguments else DOCUMENTS


def run_settings(config: Config) -> dict[str, Any]:
    """Return every setting that determines a run after the first stage, by dotted name."""
    dumped = config.model_dump(mode="json")
    values = {name: dumped[name] for name in DECISIVE if dumped[name] is not None}
    values["engine"]["model"] = config.engine.model_name
    return {name: value for name, value in flatten(values).items() if not is_one_of(name, INCIDENTAL)}


def find_snapshots(root: Path, names: list[str]) -> list[Path]:
    """Find the recorded runs in a folder: those with the given names, or all.

    A folder with any file of a recorded run counts as one; `open_snapshot` reports missing files. Hidden folders are
    skipped: a run is recorded in one.
    """
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder; `touche-llm regress record RUN --dir {root}` makes it")
    remove_abandoned(root)
    for old in root.glob(".*.old"):
        recover(root / old.name[1 : -len(".old")])
    available = sorted(
        path.name
        for path in root.iterdir()
        if not path.name.startswith(".") and any(os.path.lexists(path / name) for name in _MARKERS)
    )
    for name in names:
        if name not in available:
            check_name(name)
            known = ", ".join(available) or "none"
            raise UsageError(f"{root / name}: no such recorded run; available: {known}")
    if not available:
        raise UsageError(f"{root}: no recorded run; `touche-llm regress record RUN --dir {root}` makes one")
    return [root / name for name in names or available]


def check_name(name: str) -> str:
    """Return the name of a recorded run; raise UsageError if it is not a plain folder name."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r:.80}: the name of a recorded run is one word of letters, digits, `.`, `_` and `-`")
    return name


def open_snapshot(folder: Path) -> Snapshot:
    """Open a recorded run; raise DataError if a file is missing or is not as this program wrote it."""
    path = folder / RECORDED
    try:
        manifest = Manifest.model_validate_json(read_bounded(path, _MAX_BYTES))
    except OSError as error:
        raise DataError(f"{path}: cannot read the recorded run: {error.strerror}") from error
    except ValidationError as error:
        problem = describe_first_problem(error)
        raise DataError(f"{path}: not a manifest of this program: {problem}; record the run again") from error
    if not (folder / CONFIG).is_file():
        raise DataError(f"{folder / CONFIG}: no such file; record the run again")
    task = get_task(_read_config(folder).task)
    templates = [f"{PROMPTS}/{purpose}/{file}" for purpose, file in manifest.templates.items()]
    first_stage = RunDirectory(folder).first_stage_file(task).name
    for name in (TOPICS, first_stage, corpus_file(task), CASSETTE, RUN, *templates):
        if not (folder / name).is_file():
            raise DataError(f"{folder / name}: no such file; record the run again")
    return Snapshot(folder, task, manifest)


def _read_config(folder: Path) -> Config:
    """Return the recorded configuration; a task given as a folder is found from the recorded folder, or is its copy."""
    file = folder / CONFIG
    return load_config(file, {"task": find_task_folder(file, base=folder)})
