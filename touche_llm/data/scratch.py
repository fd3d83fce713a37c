"""Temporary files and folders beside outputs; a later run removes those of dead processes.

The process that creates one holds a lock on it. The system releases the lock when the process ends, for any reason.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

WRITING, BUILDING, RETIRED = "writing", "building", "retired"
_NAME = re.compile(r"\.(?P<output>.+)\.(?P<kind>writing|building|retired)-(?P<host>[0-9a-f]{8})-\d+-[0-9a-f]{8}")
# Max characters taken from the name of the output: at four bytes each, the temporary name stays within 255 bytes.
_MAX_NAME_CHARS = 40


@contextmanager
def open_scratch(path: Path, kind: str) -> Iterator[tuple[Path, int]]:
    """Create a temporary folder beside `path`, or a file if `kind` is `WRITING`; remove it after an error.

    Yields:
        Its path and its descriptor, which is locked until the end of the block and closed then.
    """
    place, number = _create(path, kind)
    try:
        yield place, number
    except BaseException:
        if kind == RETIRED:
            # Its content may be the only copy.
            with suppress(OSError):
                place.rmdir()
        else:
            _remove(place)
        raise
    finally:
        os.close(number)


def is_scratch(name: str) -> bool:
    """Return whether a name is that of a temporary file or folder of this program, from any machine."""
    return _NAME.fullmatch(name) is not None


def recover(folder: Path) -> None:
    """Restore the folders whose replacement was interrupted between its two renames."""
    for place, kind in _lock_abandoned(folder):
        if kind == RETIRED:
            # Without write permission it stays; the reader of the folder reports what is missing.
            with suppress(OSError):
                _restore(place)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files and folders of dead processes of this machine from a folder.

    Those of other machines stay, since not every shared file system shares locks. Retired folders are restored as by
    `recover`.
    """
    for place, kind in _lock_abandoned(folder):
        # What cannot be restored or removed stays.
        with suppress(OSError):
            if kind == RETIRED:
                _restore(place)
            _remove(place)


def _lock_abandoned(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield path and kind of each temporary file or folder of a dead process, holding its lock."""
    try:
        names = os.listdir(folder)
    except OSError:
        return  # Missing, or writable without being readable.
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None or found["host"] != _host():
            continue
        try:
            number = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # Removed meanwhile, or of another user.
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder / name, found["kind"]
        except OSError:
            pass  # Its process is alive, or the file system has no locks.
        finally:
            os.close(number)


def _restore(place: Path) -> None:
    """Move the content of a retired folder to its own name, unless the name is taken by now."""
    for held in place.iterdir() if place.is_dir() else ():
        if not os.path.lexists(place.parent / held.name):
            held.rename(place.parent / held.name)


def _create(path: Path, kind: str) -> tuple[Path, int]:
    while True:
        token = f"{kind}-{_host()}-{os.getpid()}-{secrets.token_hex(4)}"
        place = path.with_name(f".{path.name[:_MAX_NAME_CHARS]}.{token}")
        if kind == WRITING:
            number = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        else:
            place.mkdir(mode=0o700)
            try:
                number = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Before it was locked, another process may have removed it as abandoned.
            if place.exists():
                return place, number
        except BlockingIOError:
            pass  # Another process is about to remove it.
        except OSError:
            return place, number  # A file system without locks: no process can lock it, so none removes it.
        os.close(number)


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


@cache
def _host() -> str:
    """Return a short name for this machine that any file name may contain."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]
