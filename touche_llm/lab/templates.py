"""Templates on the bench: read with their drafts, and saved as the next version, never over a change by others."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime

from touche_llm.data.files import open_atomic, read_record, shorten_path, write_records
from touche_llm.data.records import Model
from touche_llm.errors import UsageError
from touche_llm.lab.bench import Bench, Benches
from touche_llm.lab.runs_of_lab import DRAFTS
from touche_llm.prompt_lab.holdout import access_log, read_accesses
from touche_llm.prompts.prompt import copy_prompt
from touche_llm.prompts.purposes import CatalogEntry
from touche_llm.prompts.templates import HEADER, read_text

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


def hash_text(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_version(text: str) -> int:
    """Return the version in the front matter of a template; 0 if it has none that can be read."""
    header = HEADER.match(text)
    found = header and _VERSION.search(header.group(0))
    return int(found[2]) if found else 0


def raise_version(text: str, saved: str) -> str:
    """Return a text with the version after that of the saved one, unless it has a later one already."""
    version = read_version(saved)
    header = HEADER.match(text)
    if header is None or read_version(text) > version:
        return text
    return _VERSION.sub(rf"\g<1>{version + 1}", header.group(0), count=1) + text[header.end() :]


def _draft_file(path: Path) -> Path:
    return DRAFTS / f"{path.stem}-{hash_text(str(path.resolve()))[:12]}.json"


def is_writable(bench: Bench, entry: CatalogEntry) -> bool:
    """Return whether a template is in the user's folder, so that it is saved in its place.

    Others are copied there.
    """
    return not entry.is_builtin and entry.path.resolve().is_relative_to(bench.prompts.resolve())


def describe_template(bench: Bench, name: str) -> dict[str, Any]:
    """Return a template with its draft."""
    entry = bench.find_prompt(name)
    text, file = read_text(entry.path), _draft_file(entry.path)
    label = "" if entry.loaded is None else entry.loaded[1].label
    accesses = read_accesses(access_log(bench.config.cache.file))
    draft = read_record(file, Draft, "a draft of the lab; delete it") if file.exists() else None
    return {
        "name": name,
        "path": f"{bench.context.task.name}/{entry.path.name}"
        if entry.is_builtin
        else shorten_path(entry.path),
        "text": text,
        "hash": hash_text(text),
        "version": read_version(text),
        "writable": is_writable(bench, entry),
        "confirmed": any(
            label in access.prompts for access in accesses if access.kind == "confirmation"
        ),
        "draft": draft
        and {"text": draft.text, "base": draft.base, "saved": draft.saved.isoformat()},
    }


def read_template(benches: Benches, *, run: str, name: str) -> dict[str, Any]:
    """Return a template with its draft."""
    return describe_template(benches.get(run), name)


def write_draft(
    benches: Benches, *, run: str, name: str, text: str | None, base: str
) -> dict[str, Any]:
    """Store the draft of a template, or delete it with None.

    Raises:
        UsageError: Another lab writes drafts here.
    """
    path = benches.get(run).find_prompt(name).path
    if text is None:
        _delete_draft(benches, path)
        return {}

    benches.lab.claim_drafts()
    now = datetime.now(UTC).replace(microsecond=0)
    draft = Draft(template=str(path), base=base, text=text, saved=now)
    write_records(_draft_file(path), [draft])
    return {}


def _delete_draft(benches: Benches, path: Path) -> None:
    """Delete the draft of a template, if there is one."""
    file = _draft_file(path)
    if file.exists():
        benches.lab.claim_drafts()
        file.unlink()


def save_template(
    benches: Benches, *, run: str, name: str, text: str, hash: str, file: str | None = None
) -> dict[str, Any]:
    """Save a text as the next version of its template, or as a template of the user's folder.

    Args:
        benches: Benches.
        run: Name of the run.
        name: Name of the template.
        text: Text to save.
        hash: SHA-256 of the text on disk that the user has seen.
        file: Name of a new template; None for the place of the template itself, or a free name if
            it is not the user's.

    Returns:
        The saved template; or, as `conflict`, why it was not saved, and the text that is on disk
        instead.

    Raises:
        PromptError: The text is no valid prompt.
        UsageError: The name is invalid, or a file has it.
    """
    bench = benches.get(run)
    entry = bench.find_prompt(name)
    disk = read_text(entry.path)
    text = raise_version(text, disk)
    prompt = bench.load(name, text)
    if file is None and is_writable(bench, entry):
        if hash_text(disk) != hash:
            problem = f"{entry.path}: changed on disk since it was read here; save yours under another name"
            return {"conflict": problem, "disk": disk, "hash": hash_text(disk)}
        with open_atomic(entry.path) as stream:
            stream.write(text.encode())
        saved = name
    else:
        target = bench.prompts / (_find_free_name(bench, entry) if file is None else file)
        if not _NAME.fullmatch(target.name) or target.parent != bench.prompts:
            raise UsageError(
                f"{file!r:.80}: no name of a template; write letters, digits and hyphens, then .jinja"
            )
        bench.prompts.mkdir(parents=True, exist_ok=True)
        copy_prompt(prompt, target, text)
        saved = str(target)
    _delete_draft(benches, entry.path)
    return describe_template(bench, saved)


def _find_free_name(bench: Bench, entry: CatalogEntry) -> str:
    names = [
        f"{entry.path.stem}-mine",
        *(f"{entry.path.stem}-mine-{number}" for number in range(2, 1000)),
    ]
    return next(f"{name}.jinja" for name in names if not (bench.prompts / f"{name}.jinja").exists())
