"""Detection of changes to a prompt's files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from touche_llm.prompts.catalog import list_files

_SECONDS = 0.3

# Modification time, size and inode by file; None if the file is missing.
_State = dict[Path, tuple[int, int, int] | None]


class FileChanges:
    """Endless asynchronous iterator that yields after each change to a prompt's files.

    Changes between two steps are not missed. The files are polled because they are few and network file systems do not
    report changes.
    """

    def __init__(self, template: Path, seconds: float = _SECONDS) -> None:
        """Detect changes from now on, polling every `seconds`."""
        self._template, self._seconds = template, seconds
        self._before = _state(template)

    def __aiter__(self) -> FileChanges:
        return self

    async def __anext__(self) -> None:
        """Return once a change is complete: some editors truncate a file before they write it."""
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
