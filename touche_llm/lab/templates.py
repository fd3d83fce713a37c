"""Templates on the bench: read with drafts, and never saved over others' changes.

The records of templates are sent to the page as JSON; their attributes are the names that its
scripts read.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime

from touche_llm.data.files import open_atomic, read_record, shorten_path, write_records
from touche_llm.data.records import Model
from touche_llm.errors import UsageError
from touche_llm.lab.bench import Bench, Benches
from touche_llm.lab.runs_of_lab import DRAFTS
from touche_llm.prompt_lab.holdout import access_log, read_accesses
from touche_llm.prompts.prompt import copy_prompt
from touche_llm.prompts.purposes import CatalogEntry
from touche_llm.prompts.template_text import HEADER, read_text

_VERSION = re.compile(r"^(version:[ \t]*)(\d+)", re.MULTILINE)
# Name of a template that the user chooses.
_NAME = re.compile(r"\w[\w-]{0,80}\.jinja")


class Draft(Model):
    """An unsaved text of a template.

    Attributes:
        template: Path of the template.
        base: SHA-256 of the template's text that the draft began with.
        text: The text.
        saved: When it was stored.
    """

    template: str
    base: str
    text: str
    saved: AwareDatetime


@dataclass(frozen=True, slots=True)
class DraftText:
    """An unsaved text.

    `base` is the SHA-256 of the template that it began with, `saved` when it was stored.
    """

    text: str
    base: str
    saved: str


@dataclass(frozen=True, slots=True)
class TemplateView:
    """A template with its draft.

    Attributes:
        name: Name of the prompt, or path of the template.
        path: Path that the page shows.
        text: Text on disk.
        hash: SHA-256 of the text.
        version: Version in its front matter; 0 if it has none that can be read.
        writable: Whether it is saved in its place; else it is copied.
        confirmed: Whether held-out topics were judged with it.
        draft: Unsaved text; None if there is none.
    """

    name: str
    path: str
    text: str
    hash: str
    version: int
    writable: bool
    confirmed: bool
    draft: DraftText | None


@dataclass(frozen=True, slots=True)
class SaveConflict:
    """A template that was not saved.

    Attributes:
        conflict: Why it was not saved.
        disk: Text on disk.
        hash: SHA-256 of that text.
    """

    conflict: str
    disk: str
    hash: str


def hash_text(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_version(text: str) -> int:
    """Return the version in the front matter of a template.

    0 if it has none that can be read.
    """
    header = HEADER.match(text)
    if header is None:
        return 0
    version = _VERSION.search(header.group(0))
    return 0 if version is None else int(version[2])


def raise_version(text: str, saved: str) -> str:
    """Return a text with the next version in its front matter, unless it has a later one already.

    Args:
        text: Text to save.
        saved: Text on disk.
    """
    saved_version = read_version(saved)
    header = HEADER.match(text)
    if header is None or read_version(text) > saved_version:
        return text

    next_version = saved_version + 1
    new_header = _VERSION.sub(rf"\g<1>{next_version}", header.group(0), count=1)
    body = text[header.end() :]
    return new_header + body


def _draft_file(path: Path) -> Path:
    """Return the file of the draft of a template."""
    path_hash = hash_text(str(path.resolve()))
    return DRAFTS / f"{path.stem}-{path_hash[:12]}.json"


def is_writable(bench: Bench, entry: CatalogEntry) -> bool:
    """Return whether a template is in the user's folder, and saved in its place.

    Others are copied there.
    """
    return not entry.is_builtin and entry.path.resolve().is_relative_to(bench.prompts.resolve())


def describe_template(bench: Bench, name: str) -> TemplateView:
    """Return a template with its draft."""
    entry = bench.find_prompt(name)
    text = read_text(entry.path)
    path = shorten_path(entry.path)
    if entry.is_builtin:
        path = f"{bench.context.task.name}/{entry.path.name}"
    return TemplateView(
        name=name,
        path=path,
        text=text,
        hash=hash_text(text),
        version=read_version(text),
        writable=is_writable(bench, entry),
        confirmed=_is_confirmed(bench, entry),
        draft=_read_draft(entry.path),
    )


def _is_confirmed(bench: Bench, entry: CatalogEntry) -> bool:
    """Return whether a prompt was confirmed on held-out topics, by the log of accesses to them."""
    if entry.loaded is None:
        return False
    _, prompt = entry.loaded
    accesses = read_accesses(access_log(bench.config.cache.file))
    confirmations = [access for access in accesses if access.kind == "confirmation"]
    return any(prompt.label in access.prompts for access in confirmations)


def _read_draft(path: Path) -> DraftText | None:
    """Return the draft of a template; None if there is none."""
    file = _draft_file(path)
    if not file.exists():
        return None
    draft = read_record(file, Draft, "a draft of the lab; delete it")
    return DraftText(text=draft.text, base=draft.base, saved=draft.saved.isoformat())


def read_template(benches: Benches, *, run: str, name: str) -> TemplateView:
    """Return a template with its draft."""
    return describe_template(benches.get(run), name)


def write_draft(benches: Benches, *, run: str, name: str, text: str | None, base: str) -> None:
    """Store the draft of a template, or delete it with None.

    Raises:
        UsageError: Another lab writes drafts here.
    """
    path = benches.get(run).find_prompt(name).path
    if text is None:
        _delete_draft(benches, path)
        return

    benches.lab.claim_drafts()
    now = datetime.now(UTC).replace(microsecond=0)
    draft = Draft(template=str(path), base=base, text=text, saved=now)
    write_records(_draft_file(path), [draft])


def _delete_draft(benches: Benches, path: Path) -> None:
    """Delete the draft of a template, if there is one."""
    file = _draft_file(path)
    if file.exists():
        benches.lab.claim_drafts()
        file.unlink()


def save_template(
    benches: Benches, *, run: str, name: str, text: str, hash: str, file: str | None = None
) -> TemplateView | SaveConflict:
    """Save a text as the next version of its template, or as a new template.

    Args:
        benches: Benches.
        run: Name of the run.
        name: Name of the template.
        text: Text to save.
        hash: SHA-256 of the text on disk that the user has seen.
        file: Name of a new template; None for the place of the template itself, or a free name if
            it is not the user's.

    Returns:
        Saved template; or why it was not saved, with the text on disk.

    Raises:
        PromptError: The text is no valid prompt.
        UsageError: The name is invalid, or a file has it.
    """
    # The parameters are named as in the page's request.
    seen_hash = hash
    bench = benches.get(run)
    entry = bench.find_prompt(name)
    text_on_disk = read_text(entry.path)
    new_text = raise_version(text, text_on_disk)
    # Raises an error before anything is written.
    prompt = bench.load(name, new_text)

    is_copy = file is not None or not is_writable(bench, entry)
    if is_copy:
        target = _find_target(bench, entry, file)
        bench.prompts.mkdir(parents=True, exist_ok=True)
        copy_prompt(prompt, target, new_text)
        saved_name = str(target)
    else:
        if hash_text(text_on_disk) != seen_hash:
            return _describe_conflict(entry.path, text_on_disk)
        with open_atomic(entry.path) as stream:
            stream.write(new_text.encode())
        saved_name = name

    _delete_draft(benches, entry.path)
    return describe_template(bench, saved_name)


def _describe_conflict(path: Path, disk: str) -> SaveConflict:
    """Return why a template is not saved that somebody else changed.

    Args:
        path: Path of the template.
        disk: Its text on disk.
    """
    problem = f"{path}: changed on disk since it was read here"
    return SaveConflict(
        conflict=f"{problem}; save yours under another name",
        disk=disk,
        hash=hash_text(disk),
    )


def _find_target(bench: Bench, entry: CatalogEntry, file: str | None) -> Path:
    """Return the path of a new template in the user's folder.

    Args:
        bench: Bench of the prompts.
        entry: Template that is copied.
        file: Name that the user chose; None for a free one.

    Raises:
        UsageError: The name is invalid.
    """
    name = _find_free_name(bench, entry) if file is None else file
    target = bench.prompts / name
    # A name with a slash would lead to another folder.
    is_valid_name = target.parent == bench.prompts and bool(_NAME.fullmatch(target.name))
    if not is_valid_name:
        problem = f"{file!r:.80}: no name of a template"
        raise UsageError(f"{problem}; write letters, digits and hyphens, then .jinja")
    return target


def _find_free_name(bench: Bench, entry: CatalogEntry) -> str:
    """Return a name for a copy of a template that no file in the user's folder has."""
    name = f"{entry.path.stem}-mine.jinja"
    number = 1
    while (bench.prompts / name).exists():
        number += 1
        name = f"{entry.path.stem}-mine-{number}.jinja"
    return name
