"""The folder of a recorded run: what lies in it, and the configuration that replays it.

It is read with suspicion, since it comes out of somebody's repository: only files of known names are opened, and none
through a symbolic link.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from touche_llm.config import CacheConfig, Config, PromptsConfig, RetrieverConfig, load_config
from touche_llm.data.files import open_atomic
from touche_llm.data.scratch import remove_abandoned
from touche_llm.data.setting_problems import describe_problem
from touche_llm.errors import DataError, UsageError
from touche_llm.evaluation.qrels import STANCE, Qrels, read_qrels
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.request import Request
from touche_llm.pipeline.common import first_stage_file
from touche_llm.pipeline.run_files import CANDIDATES, CONFIG, RUN, SENTENCES
from touche_llm.pipeline.settings import INCIDENTAL, flat, is_one_of
from touche_llm.prompts.purposes import purposes_of
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task

MANIFEST = "recorded.json"
TOPICS = "topics.jsonl"
CASSETTE = "cassette.jsonl"
PROMPTS = "prompts"
DOCUMENTS = "documents.jsonl"
ARGUMENTS = "arguments.csv"
# A folder with any of them is a recorded run, if perhaps a damaged one.
_OURS = (MANIFEST, CONFIG, TOPICS, CASSETTE, PROMPTS, DOCUMENTS, ARGUMENTS, CANDIDATES, SENTENCES, RUN)
# All that this program writes there; what a template pulls in can have any name.
RECORDED_FILES = (
    *(name for name in _OURS if name != PROMPTS),
    *(f"qrels-{aspect}.txt" for aspect in ("relevance", "quality", "coherence", STANCE)),
    f"{PROMPTS}/*/*",
)
QUERIES = "queries"
QUERIES_UNSEEN = f"the first stage is kept as it was found, so no check sees a change of the prompt `{QUERIES}`"
# The whole of a manifest is an example of each prompt, of which the longest shows twenty documents.
_MOST_BYTES = 4 * 2**20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
# What decides the run once the first stage is there, in the order in which a configuration names it.
DECIDE = ("depth", "sampling", "aim", "weights", "rank", "ranking", "stance", "sentences", "pairs", "tag", "engine")


class Example(BaseModel):
    """One request as it was sent: what a prompt asked about one document (or topic) when the run was recorded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic: str
    document: str | None
    messages: list[tuple[str, str]]
    parameters: dict[str, Any]

    @classmethod
    def of(cls, request: Request) -> Example:
        """A request, to be kept."""
        return cls(
            topic=request.origin.topic_id,
            document=request.origin.document_id,
            messages=[(message.role, message.content) for message in request.messages],
            parameters=parameters_of(request),
        )


class Manifest(BaseModel):
    """What a recorded run was made with.

    Attributes:
        format: of the folder.
        settings: every value that decides the run, by dotted name, defaults included.
        templates: the template file of each purpose, in the folder `prompts/PURPOSE`.
        examples: by purpose, the first request that was made for it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    settings: dict[str, Any]
    templates: dict[str, str]
    examples: dict[str, Example] = Field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the manifest, the same bytes for the same values."""
        with open_atomic(folder / MANIFEST) as stream:
            options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
            stream.write(orjson.dumps(self.model_dump(mode="json"), option=options))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded run, opened with `open_recorded`."""

    folder: Path
    task: Task
    manifest: Manifest

    @property
    def name(self) -> str:
        """What it is called."""
        return self.folder.name

    @property
    def first_stage(self) -> Path:
        """The candidates of the first stage."""
        return self.folder / first_stage_file(self.task)

    @property
    def run(self) -> Path:
        """The run that is expected."""
        return self.folder / RUN

    def config(self, prompts: Path | None = None) -> Config:
        """The configuration of a replay with the current templates.

        Those are the project's own, or what the recorded configuration names; `prompts` is a folder that goes before
        them, also before a path: what it has under the name of a purpose is taken for that purpose. Paths of templates
        are relative to the recorded folder, all others are fixed.
        """
        config = load_config(self.folder / CONFIG, {"prompts.folder": prompts and str(prompts.absolute())})
        of_templates: dict[str, Any] = {
            name: str(_shortly(self.folder / value))
            for name, value in config.prompts
            if isinstance(value, str) and value.endswith(".jinja")
        }
        if config.prompts.folder is not None:
            of_templates["folder"] = _shortly(self.folder / config.prompts.folder)
        if prompts is not None:
            of_templates |= self._named_in(prompts, config.prompts)
        return config.model_copy(
            update={
                "topics": self.folder / TOPICS,
                "corpus": self.folder / corpus_file(self.task),
                "candidates": None,
                "chatnoir": None,
                "elasticsearch": None,
                "skip_bad_lines": False,
                "topic": (),
                "limit_topics": None,
                "retriever": RetrieverConfig(),
                "prompts": config.prompts.model_copy(update=of_templates),
                "cache": CacheConfig(file=self.folder / CASSETTE, mode=CacheMode.REPLAY),
            }
        )

    def _named_in(self, prompts: Path, settings: PromptsConfig) -> dict[str, str]:
        """The name of the template that a folder has for a purpose: that of the configuration, else the purpose's."""
        found = {}
        for purpose in purposes_of(self.task):
            for name in (purpose, getattr(settings, purpose)):
                if not name.endswith(".jinja") and os.path.lexists(prompts / self.task.name / f"{name}.jinja"):
                    found[purpose] = name
        return found

    def unseen(self, prompts: Path | None = None) -> str:
        """What a check cannot see, where the run or a folder of templates has it; else nothing."""
        given = prompts is not None and os.path.lexists(prompts / self.task.name / f"{QUERIES}.jinja")
        return QUERIES_UNSEEN if given or load_config(self.folder / CONFIG, {}).expansion.use else ""

    def as_recorded(self, config: Config) -> Config:
        """The same configuration with the templates that were recorded."""
        own = {
            purpose: str(self.folder / PROMPTS / purpose / file) for purpose, file in self.manifest.templates.items()
        }
        return config.model_copy(update={"prompts": config.prompts.model_copy(update={"folder": None, **own})})

    def qrels_files(self) -> dict[str, Path]:
        """The judgments that were recorded, by aspect."""
        aspects = (*self.task.question.grades, STANCE)
        return {each: path for each in aspects if (path := self.folder / qrels_file(each)).is_file()}

    def qrels(self) -> Qrels | None:
        """The recorded judgments; None where there are none."""
        files = self.qrels_files()
        return read_qrels(files, self.task) if files else None


def corpus_file(task: Task) -> str:
    """The name of the file with the documents of a recorded run, in the form that the task's reader reads."""
    return DOCUMENTS if task.sentence_question is None else ARGUMENTS


def qrels_file(aspect: str) -> str:
    """The name of the file with the judgments of an aspect."""
    return f"qrels-{aspect}.txt"


def settings_of(config: Config) -> dict[str, Any]:
    """Every value of a configuration that decides a run once the first stage is there, by dotted name."""
    dumped = config.model_dump(mode="json")
    values = {name: dumped[name] for name in DECIDE if dumped[name] is not None}
    values["engine"]["model"] = config.engine.model_name
    return {name: value for name, value in flat(values).items() if not is_one_of(name, INCIDENTAL)}


def parameters_of(request: Request) -> dict[str, Any]:
    """What a request asks for beside its messages, by dotted name."""
    sampling = request.sampling
    return flat(
        {
            "schema": request.schema,
            "sampling": {
                "temperature": sampling.temperature,
                "seed": sampling.seed,
                "max_tokens": sampling.max_tokens,
                "top_logprobs": sampling.top_logprobs,
            },
            "model": request.model,
            "revision": request.revision,
            "chat_template_kwargs": request.chat_template_kwargs,
        }
    )


def find_recorded(root: Path, names: list[str]) -> list[Path]:
    """The folders of recorded runs below a folder: those of these names, or all.

    Whatever holds one of a recorded run's files is one, also where others are gone; opening it tells. Hidden folders
    are what is being recorded, or nobody's.

    Raises:
        UsageError: no such folder, no recorded run in it, or a name that is none.
    """
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder; `touche-llm regress record RUN_DIR --dir {root}` makes it")
    remove_abandoned(root)
    there = sorted(
        path.name
        for path in root.iterdir()
        if not path.name.startswith(".") and any(os.path.lexists(path / name) for name in _OURS)
    )
    for name in names:
        if name not in there:
            check_name(name)
            known = ", ".join(there) or "none"
            raise UsageError(f"{root / name}: no recorded run; there: {known}")
    if not there:
        raise UsageError(f"{root}: no recorded run; `touche-llm regress record RUN_DIR --dir {root}` makes one")
    return [root / name for name in names or there]


def templates_for(runs: Sequence[Recorded], prompts: Path | None) -> list[Path | None]:
    """For each run a folder of templates, if it has a folder for the run's task; else None.

    Raises:
        UsageError: it has none for any of the runs.
    """
    if prompts is None:
        return [None for _ in runs]
    if not prompts.is_dir():
        raise UsageError(f"{prompts}: no such folder of templates")
    found = [prompts if os.path.lexists(prompts / run.task.name) else None for run in runs]
    if runs and not any(found):
        wanted = ", ".join(dict.fromkeys(f"{run.task.name}/NAME.jinja" for run in runs))
        raise UsageError(f"{prompts}: no templates for these runs; theirs would be {wanted}")
    return found


def check_name(name: str) -> str:
    """A name that is one folder and nothing else; raises UsageError for any other."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r:.80}: the name of a recorded run is one word of letters, digits, `.`, `_` and `-`")
    return name


def open_recorded(folder: Path) -> Recorded:
    """Open a recorded run.

    Raises:
        UsageError: its configuration cannot be read.
        DataError: a file is not there, is a symbolic link, or not as this program wrote it; names the file.
    """
    _refuse_links(folder)
    manifest = _manifest(folder / MANIFEST)
    if not (folder / CONFIG).is_file():
        raise DataError(f"{folder / CONFIG}: not there; record the run again")
    task = get_task(load_config(folder / CONFIG, {}).task)
    templates = [f"{PROMPTS}/{purpose}/{file}" for purpose, file in manifest.templates.items()]
    for name in (TOPICS, first_stage_file(task), corpus_file(task), CASSETTE, RUN, *templates):
        if not (folder / name).is_file():
            raise DataError(f"{folder / name}: not there; record the run again")
    return Recorded(folder, task, manifest)


def _shortly(path: Path) -> Path:
    """A path as people would write it from here."""
    whole = os.path.abspath(path)
    return Path(min(whole, os.path.relpath(whole), key=len))


def _refuse_links(folder: Path) -> None:
    for root, folders, files in os.walk(folder):
        for each in (Path(root), *(Path(root) / name for name in (*folders, *files))):
            if each.is_symlink():
                raise DataError(f"{each}: a symbolic link; a recorded run holds its own files alone")


def _manifest(path: Path) -> Manifest:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"{path}: larger than {_MOST_BYTES:,} bytes; record the run again")
        manifest = Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot read the recorded run: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise DataError(f"{path}: not as this program records a run: {where}: {describe_problem(first)}") from error
    for purpose, file in manifest.templates.items():
        a_file = file.endswith(".jinja") and file.isprintable() and Path(file).name == file and "\\" not in file
        if purpose not in PromptsConfig.model_fields or purpose == "folder" or not a_file:
            raise DataError(f"{path}: templates.{purpose}: {file!r:.80} is no name of a template in this folder")
    return manifest
