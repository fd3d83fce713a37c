"""Which prompts there are: the project's own and those of a folder, each loaded for what it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from touche_llm.errors import PromptError, UsageError
from touche_llm.prompts.prompt import Prompt, check_overlay, examples_path, prompts_folder, read_header, template_path
from touche_llm.prompts.purposes import Purpose, load, purposes_of
from touche_llm.prompts.templates import HEADER, read_text
from touche_llm.tasks.base import Task

_REFERENCE = re.compile(r"""\{%[-+]?\s*(?:extends|include|import|from)\s+["']([^"']+)["']""")
_MOST_FILES = 100


@dataclass(frozen=True, slots=True)
class Found:
    """A template: its task and name, and either the prompt and what it is for, or the error that keeps it from loading.

    `name` is a prompt's name, or the path as it was given.
    """

    task: Task
    name: str
    path: Path
    loaded: tuple[Purpose, Prompt] | None
    error: str = ""

    @property
    def own(self) -> bool:
        """Whether it is one of the project's own."""
        return self.path.parent.parent == prompts_folder()


def find(task: Task, name: str, folder: Path | None = None) -> Found:
    """The prompt of this name or path, or why it does not load; raises UsageError as `load_named`."""
    _check_folder(task, name, folder)
    return _found(task, name, folder)


def find_all(task: Task, folder: Path | None = None) -> list[Found]:
    """All prompts of a task, by name: the project's own, and in place of them those of a folder.

    A file without front matter that another one names is a part of that, and no prompt.

    Raises:
        UsageError: no such folder.
    """
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder}: no such folder of templates")
    places = [prompts_folder() / task.name, *([] if folder is None else [folder / task.name])]
    names = {name for place in places for name in _prompts_in(place)}
    return [_found(task, name, folder) for name in sorted(names)]


def load_named(task: Task, name: str, folder: Path | None = None) -> tuple[Purpose, Prompt]:
    """The prompt of a name or path, and what it is for.

    A name that is a purpose's, as `judge`, is for that; what others are for is the answer that front matter names.

    Raises:
        PromptError: there is none, or it is not as it should be.
        UsageError: a folder without any template of the task.
    """
    _check_folder(task, name, folder)
    return _loaded(task, name, folder)


def files_of(template: Path) -> set[Path]:
    """The files that make a prompt, as far as that can be told where it does not load; some may not be there."""
    found: set[Path] = set()
    waiting = [template]
    while waiting and len(found) < _MOST_FILES:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [template.parent / name for name in _references(path)]
    return {*found, examples_path(template)}


def _check_folder(task: Task, name: str, folder: Path | None) -> None:
    """Raise UsageError where names are looked for in a folder that has no template of the task."""
    if folder is not None and not name.endswith(".jinja"):
        there = {path.stem for path in (folder / task.name).glob("*.jinja")}
        check_overlay(folder, task.name, there or purposes_of(task))


def _found(task: Task, name: str, folder: Path | None) -> Found:
    path = template_path(task.name, name, folder)
    try:
        return Found(task, name, path, _loaded(task, name, folder))
    except PromptError as error:
        return Found(task, name, path, None, str(error))


def _loaded(task: Task, name: str, folder: Path | None) -> tuple[Purpose, Prompt]:
    purposes = purposes_of(task)
    path = template_path(task.name, name, folder)
    answer = name if name in purposes else _answer(path)
    if answer is not None and answer not in purposes:
        raise PromptError(
            f"{path}: front matter: the answer {answer!r:.40} is none that {task.name} asks for: {', '.join(purposes)}"
        )
    # Where the front matter does not say what it is for, loading it for anything tells why.
    purpose = purposes[answer or next(iter(purposes))]
    return purpose, load(task, purpose, name, folder)


def _prompts_in(folder: Path) -> Iterator[str]:
    files = sorted(folder.glob("*.jinja"))
    parts = {folder / name for file in files for name in _references(file)}
    for file in files:
        if file not in parts or HEADER.match(_text(file)):
            yield file.stem


def _references(path: Path) -> list[str]:
    """The names of the files that a file names as parts of it, within its folder."""
    names = _REFERENCE.findall(_text(path))
    return [name for name in names if not Path(name).is_absolute() and ".." not in Path(name).parts]


def _answer(path: Path) -> str | None:
    """The answer that the front matter names; None where that cannot be told, and loading it tells why."""
    header = HEADER.match(_text(path))
    try:
        return read_header(path, header.group(1)).answer if header else None
    except PromptError:
        return None


def _text(path: Path) -> str:
    """The text of a file, empty where it cannot be read: loading it tells why."""
    try:
        return read_text(path)
    except (OSError, PromptError):
        return ""
