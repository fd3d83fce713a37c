"""Locks on folders in which one process at a time may write."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from touche_llm.errors import UsageError, Warn

# Locked by the process that writes; the file remains.
LOCK = ".touche-llm.lock"
# Bytes of a lock file that an error shows; a file of this program is shorter.
_MAX_HOLDER = 500


@contextmanager
def lock_folder(folder: Path, command: str, warn: Warn) -> Iterator[None]:
    """Hold the lock on a folder while the block runs.

    The system releases it when the process dies, however it dies; the lock file stays and names the
    last holder and its command, for example `judge`. A file system without locks gives a warning.

    Raises:
        UsageError: Another process holds the lock.
    """
    with (folder / LOCK).open("a+b", buffering=0) as file:
        _acquire(folder, file, warn)
        file.truncate(0)
        file.write(_name_holder(command).encode())
        yield


def _acquire(folder: Path, file: BinaryIO, warn: Warn) -> None:
    """Acquire the lock on an open lock file; raise UsageError if another process holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.readline(_MAX_HOLDER).decode(errors="replace").strip()
        raise UsageError(
            f"{folder}: {holder or 'another process'} is writing there; wait until it ends, or use another folder"
        ) from error
    except OSError as error:
        warn(
            f"{folder}: its file system has no locks ({error.strerror}); let one command write there at a time"
        )


def _name_holder(command: str) -> str:
    """Return the line of a lock file: command, process and host that hold the lock, and since when."""
    now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    host = socket.gethostname()
    return f"touche-llm {command}, process {os.getpid()} on {host} since {now}\n"
