"""Waiting for a prompt's files to be saved."""

from __future__ import annotations

import asyncio
from pathlib import Path

from touche_llm.prompts.catalog import list_files

_SECONDS = 0.3

# By file: what of it changes when it is saved; None where it is not there.
_State = dict[Path, tuple[int, int, int] | None]


class FileChanges:
    """An endless asynchronous iterator: a step each time that one of the files that make a prompt has been changed.

    What is changed between two steps is not missed. The files are looked at every 0.3 s: they are few, and a network
    disk tells nobody of changes.
    """

    def __init__(self, template: Path, seconds: float = _SECONDS) -> None:
        """Changes count from now on; `seconds` part one look from the next."""
        self._template, self._seconds = template, seconds
        self._before = _state(template)

    def __aiter__(self) -> FileChanges:
        return self

    async def __anext__(self) -> None:
        """Return once a change is complete: some editors empty a file before they write it."""
        now = self._before
        while True:
            before, now = now, _state(self._template)
            if now != self._before and now == before:
                self._before = now
                return
            await asyncio.sleep(self._seconds)


def _state(template: Path) -> _State:
    found: _State = {}
    for path in list_files(template):
        try:
            status = path.stat()
        except OSError:
            found[path] = None
        else:
            found[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found
