"""Folders of runs that this user's program wrote.

A run's folder is shared: a colleague sends it, a repository or an artifact holds it. Texts and
figures in it are read from anybody. A setting that acts (`settings.section.Trust`) is used only if
the user wrote the folder's configuration here: its hash is recorded in the user's own state, where
nobody else writes, so that a run's folder may be moved.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from touche_llm.config.configuration import (
    Config,
    flatten,
    is_one_of,
    list_trust_declarations,
)
from touche_llm.config.task_copies import COPY
from touche_llm.data.files import read_bounded
from touche_llm.errors import DataError, describe_os_error
from touche_llm.settings.section import Trust
from touche_llm.settings.yaml_text import MAX_BYTES

_LOG = logging.getLogger(__name__)
# Stands in for topics and index of a folder that somebody else wrote.
NOT_USED = "not used"
# In a line about settings.
_MAX_NAMES = 6


@dataclass(frozen=True, slots=True)
class UnusedSettings:
    """Settings of a folder that somebody else wrote, which are not used.

    Attributes:
        file: Configuration of the folder.
        values: The values by dotted name, without those that are used all the same, as defaults.
        remedy: How the user has them used; empty for the option `--config`.
    """

    file: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    remedy: str = ""

    def describe(self) -> str:
        """Return a line that says which settings are not used and how to use them; empty if none.

        The line also gives the reason.
        """
        if not self.values:
            return ""
        return f"{self.file}: not used: {self._list_names()}; {self.explain()}"

    def describe_input(self, name: str) -> str:
        """Return why an input of the run is not read, and how to have it read.

        Args:
            name: Setting of the input.
        """
        return f"{name} of {self.file.parent}: not read: {self.explain()}"

    def explain(self) -> str:
        """Return the reason why settings are not used, and how to use them."""
        remedy = self.remedy or f"--config {self.file} uses them"
        return (
            "this run was not written here, so its settings start nothing, send nothing and read "
            f"no other file; {remedy}"
        )

    def _list_names(self) -> str:
        names = list(self.values)
        listed = ", ".join(names[:_MAX_NAMES])
        hidden = len(names) - _MAX_NAMES
        return listed if hidden <= 0 else f"{listed} and {hidden} more"


def record_configuration(file: Path, content: bytes) -> None:
    """Record that this user wrote a configuration into a run's folder.

    A user without a writable home can still make runs: the problem is logged, and later commands
    treat the folder as that of somebody else.

    Args:
        file: The configuration, for messages.
        content: Its content.
    """
    folder = _find_records()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / _hash(content)).touch(mode=0o600)
    except OSError as error:
        _LOG.warning("%s: not recorded as written here: %s", file, describe_os_error(error))


def is_own(file: Path) -> bool:
    """Return whether this user wrote the configuration of a run's folder; False if it is missing."""
    return file.is_file() and is_recorded(read_bounded(file, MAX_BYTES))


def is_recorded(content: bytes) -> bool:
    """Return whether this user wrote a configuration, here or where it was moved from."""
    return (_find_records() / _hash(content)).is_file()


def check_folder(file: Path) -> None:
    """Raise DataError if somebody else wrote a run's folder, and a link in it leads out of it.

    Args:
        file: Configuration of the folder, which may be missing.
    """
    if is_own(file):
        return

    root = file.parent.resolve()
    for path in _list_files(file.parent):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise DataError(
                f"{path}: is a link that leads out of the run's folder, and the run was not "
                "written here; put the file itself in its place"
            )


def _list_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a run, and those of the copy of its task with their folders."""
    if folder.is_dir():
        yield from folder.iterdir()
    for name, folders, files in os.walk(folder / COPY):
        for entry in (*folders, *files):
            yield Path(name, entry)


def take_acting_values(values: dict[str, Any], kept: Collection[str] = ()) -> dict[str, Any]:
    """Remove the settings that act from the values of a configuration, and return them.

    Those start a program, send a request or name a file. Values of unknown names stay, since they
    are reported as errors.

    Args:
        values: Values by section, which are changed.
        kept: Settings and sections that stay although they act.

    Returns:
        The removed values by dotted name.
    """
    declarations = list_trust_declarations()
    acting = {name for name, declared in declarations.items() if declared is not Trust.DATA}

    taken: dict[str, Any] = {}
    for name, value in flatten(values).items():
        # An empty section is a value, and may be written in place of one.
        holds_acting = any(is_one_of(setting, [name]) for setting in acting)
        is_acting = holds_acting or is_one_of(name, acting)
        if is_acting and not is_one_of(name, kept):
            taken[name] = value
            _remove(values, name)
    return taken


def list_unused(taken: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return the values that were taken from a configuration and differ from those now used.

    Args:
        taken: Removed values by dotted name.
        config: Configuration that is used.
    """
    used = flatten(config.model_dump(mode="json"))
    unused: dict[str, Any] = {}
    for name, value in taken.items():
        is_set = value not in (None, {}, [])
        if is_set and used.get(name) != value:
            unused[name] = value
    return unused


def _remove(values: dict[str, Any], name: str) -> None:
    """Remove a setting from the values of a configuration, and the sections that it leaves empty."""
    section, _, rest = name.partition(".")
    if not rest:
        del values[section]
        return

    _remove(values[section], rest)
    if not values[section]:
        del values[section]


def _find_records() -> Path:
    """Return the folder with a file for each recorded hash."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "touche-llm" / "configurations"


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
