"""The lock on the folder of a run: one process at a time writes there."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from touche_llm.errors import DataError, UsageError
from touche_llm.pipeline.run_files import LOCK

# Bytes of a lock file that an error shows; a file of this program is shorter.
_MAX_HOLDER = 500


@contextmanager
def lock_run(folder: Path, command: str, warn: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock on a run's folder while the block runs.

    The system releases it when the process dies, however it dies; the file stays and names the last holder and its
    command, for example `judge`. A file system without locks gives a warning.

    Raises:
        UsageError: Another process holds the lock; the message names it.
        DataError: The folder does not exist, or the lock file cannot be opened.
    """
    path = folder / LOCK
    try:
        # A symbolic link could make this overwrite another file.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; run `touche-llm retrieve --out {folder}` first") from error
        raise DataError(
            f"{path}: cannot open the lock file: {error.strerror}; make it a file that you may write, or remove it"
        ) from error
    with open(descriptor, "r+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = file.read(_MAX_HOLDER).decode(errors="replace").strip() or "another process"
            raise UsageError(
                f"{folder}: {holder} is writing there; wait until it ends, or use another folder"
            ) from error
        except OSError as error:
            warn(
                f"{folder}: its file system has no locks ({error.strerror}); let no two commands write there at a time"
            )
        now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
        file.truncate()
        file.write(f"touche-llm {command}, process {os.getpid()} on {socket.gethostname()} since {now}\n".encode())
        yield
