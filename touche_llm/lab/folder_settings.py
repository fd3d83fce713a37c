"""Settings of a run's folder that somebody else wrote, and the user's choice to use them.

The records are sent to the page as JSON; their attributes are the names that its scripts read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from touche_llm.errors import DataError
from touche_llm.lab.runs_of_lab import INPUTS, Workplace

# The definition of a task is read from the copy in the folder.
_NEVER_USED = ("task",)


@dataclass(frozen=True, slots=True)
class SettingEntry:
    """A setting with its value as text."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class FolderSettings:
    """Settings of a run's folder that are not used.

    Attributes:
        reason: Why they are not used; empty for a folder that was written here.
        inputs: Topics, corpus and dataset.
        others: Settings that start programs, send requests, or name other files.
        used: Names of the settings that the user chose.
        hash: SHA-256 of names and values, which a choice names.
    """

    reason: str
    inputs: list[SettingEntry]
    others: list[SettingEntry]
    used: list[str]
    hash: str


def describe_folder(lab: Workplace, *, run: str) -> FolderSettings:
    """Return the settings of a run's folder that are not used, since somebody else wrote it."""
    unused = lab.load(run).unused
    if unused is None:
        return FolderSettings(reason="", inputs=[], others=[], used=[], hash="")

    settings = _list_usable(unused.values)
    inputs: list[SettingEntry] = []
    others: list[SettingEntry] = []
    for name, value in settings.items():
        entries = inputs if name in INPUTS else others
        entries.append(_describe(name, value))
    return FolderSettings(
        reason=unused.explain(),
        inputs=inputs,
        others=others,
        used=list(lab.list_used(run)),
        hash=_hash(settings),
    )


def use_folder_settings(
    lab: Workplace, *, run: str, hash: str, are_all_used: bool
) -> FolderSettings:
    """Use the inputs of a run's folder, or all its settings, until the lab ends.

    Args:
        lab: Workplace of the lab.
        run: Name of the run.
        hash: Hash of the settings that the user saw.
        are_all_used: Whether all settings are used, or the inputs alone.

    Raises:
        DataError: The settings changed since the user saw them, or all were used before.
        UsageError: They are invalid, or let vLLM run code.
    """
    unused = lab.load(run).unused
    settings = {} if unused is None else _list_usable(unused.values)
    if hash != _hash(settings):
        raise DataError(f"{run}: its settings changed since this page showed them; look again")

    if not are_all_used:
        settings = {name: value for name, value in settings.items() if name in INPUTS}
    lab.use_settings(run, settings)
    return describe_folder(lab, run=run)


def _list_usable(values: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that a user can have used, by dotted name."""
    return {name: value for name, value in values.items() if name not in _NEVER_USED}


def _describe(name: str, value: object) -> SettingEntry:
    """Return a setting with its value as text."""
    text = value if isinstance(value, str) else _write(value).decode()
    return SettingEntry(name, text)


def _hash(settings: Mapping[str, object]) -> str:
    """Return the SHA-256 of names and values."""
    return hashlib.sha256(_write(settings)).hexdigest()


def _write(value: object) -> bytes:
    """Return a value of a configuration as JSON; of an unknown type, its text."""
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
