"""Processes that are still there, from proc(5)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def left_in_session(session: int) -> list[int]:
    """Return the living processes of a session that remain; killed ones have some time to end."""
    return _left(lambda: [pid for pid in _living() if _stat(pid)[3:4] == [str(session)]])


def left_in_folder(folder: Path) -> list[int]:
    """Return the living processes that remain with `folder` as current one, which children inherit."""

    def works_there(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/cwd").resolve() == folder.resolve()
        except OSError:
            return False

    return _left(lambda: [pid for pid in _living() if works_there(pid)])


def processes_of(argument: str) -> list[int]:
    """Return the living processes whose command line has this argument."""
    return [pid for pid in _living() if argument.encode() in _read(pid, "cmdline").split(b"\0")]


def _left(find: Callable[[], list[int]]) -> list[int]:
    end = time.monotonic() + 20
    while found := find():
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return found


def _living() -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if (_stat(pid) or ["Z"])[0] != "Z"]


def _stat(pid: int) -> list[str]:
    """Return state, parent, group, session and so on; nothing if the process has ended."""
    return _read(pid, "stat").rpartition(b")")[2].decode().split()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
