"""Temporary files and folders beside outputs, which a later run removes once their process has died.

The process that makes one holds a lock on it. The system releases the lock when the process ends, however it ends.
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
# Characters of the output's name, so that the longest possible name still fits with four bytes each.
_LONGEST = 40


@contextmanager
def open_scratch(path: Path, kind: str) -> Iterator[tuple[Path, int]]:
    """Make a temporary file, or a folder unless `kind` is `WRITING`, beside `path`; remove it after an error.

    Yields:
        Its path and its descriptor. It is locked until the block ends, which also closes the descriptor.
    """
    place, number = _make(path, kind)
    try:
        yield place, number
    except BaseException:
        if kind == RETIRED:
            # What it still holds may be the only copy.
            with suppress(OSError):
                place.rmdir()
        else:
            _remove(place)
        raise
    finally:
        os.close(number)


def is_scratch(name: str) -> bool:
    """Whether a file or folder of this name is a temporary one of this program, on any machine."""
    return _NAME.fullmatch(name) is not None


def recover(folder: Path) -> None:
    """Put back the folders whose replacement was interrupted between its two renames, by the death of the process."""
    for place, kind in _abandoned(folder):
        if kind == RETIRED:
            # In a folder that may not be changed it stays where it is; whoever needs it reports what is missing.
            with suppress(OSError):
                _put_back(place)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files and folders in a folder whose processes, of this machine, have died.

    Those of other machines stay: not every shared file system tells one machine about the locks of another. What
    `recover` puts back is put back.
    """
    for place, kind in _abandoned(folder):
        # What cannot be put back stays; so does all in a folder that may not be changed.
        with suppress(OSError):
            if kind == RETIRED:
                _put_back(place)
            _remove(place)


def _abandoned(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield path and kind of what dead processes left in a folder, locked meanwhile."""
    try:
        names = os.listdir(folder)
    except OSError:
        return  # Not there, or a folder that may be written and not listed.
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None or found["host"] != _host():
            continue
        try:
            number = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # Removed meanwhile, or somebody else's.
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder / name, found["kind"]
        except OSError:
            pass  # Its process lives, or the file system has no locks.
        finally:
            os.close(number)


def _put_back(place: Path) -> None:
    """Move what a retired folder holds to its own name, unless there is something by now."""
    for held in place.iterdir() if place.is_dir() else ():
        if not os.path.lexists(place.parent / held.name):
            held.rename(place.parent / held.name)


def _make(path: Path, kind: str) -> tuple[Path, int]:
    while True:
        token = f"{kind}-{_host()}-{os.getpid()}-{secrets.token_hex(4)}"
        place = path.with_name(f".{path.name[:_LONGEST]}.{token}")
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
            # Before that another process may have removed it as abandoned.
            if place.exists():
                return place, number
        except BlockingIOError:
            pass  # Another process is about to do so.
        except OSError:
            return place, number  # No locks in this file system: nobody can get one, so nobody removes it.
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
