"""Catalog of prompts: the project's own and those of a folder, each loaded for its purpose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from touche_llm.errors import PromptError, UsageError
from touche_llm.prompts.prompt import Prompt, Purpose, check_overlay, examples_path, read_header, template_path
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.prompts.templates import HEADER, read_text
from touche_llm.tasks.base import Task

_REFERENCE = re.compile(r"""\{%[-+]?\s*(?:extends|include|import|from)\s+["']([^"']+)["']""")
_MAX_FILES = 100


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A template with its purpose and prompt, or with the error that prevents loading it."""

    task: Task
    name: str
    path: Path
    loaded: tuple[Purpose, Prompt] | None
    error: str = ""

    @property
    def is_builtin(self) -> bool:
        """Whether the template is one of the project's own."""
        own = (self.task.folder,) if self.task.is_own else ()
        return self.path.parent in (*own, *self.task.shared_folders)


def find_prompt(task: Task, name: str, folder: Path | None = None) -> CatalogEntry:
    """Return the entry for a prompt's name or path; raise UsageError like `load_named`."""
    _check_folder(task, name, folder)
    return _make_entry(task, name, folder)


def find_prompts(task: Task, folder: Path | None = None) -> list[CatalogEntry]:
    """Return the entries of a task by name; templates of `folder` replace the project's own.

    A file without front matter that another file names is a part of that template, not a prompt.

    Raises:
        UsageError: The folder does not exist.
    """
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder}: no such folder of templates")
    places = [task.folder, *([] if folder is None else [folder / task.name])]
    names = {name for place in places for name in _list_prompts(place)}
    names |= {name for shared in task.shared_folders for name in _list_prompts(shared)} & set(purposes_of(task))
    return [_make_entry(task, name, folder) for name in sorted(names)]


def load_named(task: Task, name: str, folder: Path | None = None) -> tuple[Purpose, Prompt]:
    """Load the prompt with a name or path; return its purpose and the prompt.

    A prompt named like a purpose, such as `judge`, has that purpose; the others name theirs as `answer` in their
    front matter.

    Raises:
        PromptError: The prompt does not exist or is invalid.
        UsageError: The folder has no template of the task.
    """
    _check_folder(task, name, folder)
    return _load(task, name, folder)


def list_files(template: Path) -> set[Path]:
    """Return the files of a template, even if it does not load; some of them may not exist."""
    found: set[Path] = set()
    waiting = [template]
    while waiting and len(found) < _MAX_FILES:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [template.parent / name for name in _find_references(path)]
    return {*found, examples_path(template)}


def _check_folder(task: Task, name: str, folder: Path | None) -> None:
    """Raise UsageError if a name is looked up in a folder that has no template of the task."""
    if folder is not None and not name.endswith(".jinja"):
        names = {path.stem for path in (folder / task.name).glob("*.jinja")}
        check_overlay(folder, task.name, names or purposes_of(task))


def _make_entry(task: Task, name: str, folder: Path | None) -> CatalogEntry:
    path = template_path(task, name, folder)
    try:
        return CatalogEntry(task, name, path, _load(task, name, folder))
    except PromptError as error:
        return CatalogEntry(task, name, path, None, str(error))


def _load(task: Task, name: str, folder: Path | None) -> tuple[Purpose, Prompt]:
    purposes = purposes_of(task)
    path = template_path(task, name, folder)
    answer = name if name in purposes else _read_answer(path)
    if answer is not None and answer not in purposes:
        raise PromptError(
            f"{path}: front matter: {task.name} has no answer {answer!r:.40}; name one of {', '.join(purposes)}"
        )
    # If the front matter names no answer, loading the prompt for any purpose raises the error that explains it.
    purpose = purposes[answer or next(iter(purposes))]
    return purpose, load(task, purpose, name, folder)


def _list_prompts(folder: Path) -> Iterator[str]:
    files = sorted(folder.glob("*.jinja"))
    parts = {folder / name for file in files for name in _find_references(file)}
    for file in files:
        if file not in parts or HEADER.match(_read_text_or_empty(file)):
            yield file.stem


def _find_references(path: Path) -> list[str]:
    """Return the names of the files in its folder that a template file refers to."""
    names = _REFERENCE.findall(_read_text_or_empty(path))
    return [name for name in names if not Path(name).is_absolute() and ".." not in Path(name).parts]


def _read_answer(path: Path) -> str | None:
    """Return the answer that the front matter names, or None if it is unreadable; loading raises the error."""
    header = HEADER.match(_read_text_or_empty(path))
    try:
        return read_header(path, header.group(1)).answer if header else None
    except PromptError:
        return None


def _read_text_or_empty(path: Path) -> str:
    """Return the text of a file, or an empty text if it is unreadable; loading raises the error."""
    try:
        return read_text(path)
    except (OSError, PromptError):
        return ""
