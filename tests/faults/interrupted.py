"""Processes of the program that get signals, and what must hold when they have ended."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tests.faults.fork_server import Done, ForkServer, Job
from tests.faults.workplace import environment, is_temporary
from touche_llm.data.locks import LOCK

# Seconds in which an interrupted process ends.
LIMIT_SECONDS = 5.0
# Seconds after which a process that does not end is killed.
_HANG_SECONDS = 60.0
# The program, without what nohup does to it.
_PROGRAM = """
import runpy, signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)
runpy.run_module("touche_llm", run_name="__main__", alter_sys=True)
"""
_NOISE = re.compile(
    r"Traceback|Task was destroyed|never awaited|never retrieved|Exception ignored|Warning|^error: ",
    re.MULTILINE,
)
_LINE = re.compile(r"^interrupted\b.*$", re.MULTILINE)


class Process:
    """A process of the program that gets signals."""

    def __init__(
        self, number: int, has_ended: Callable[[], bool], wait: Callable[[], Done]
    ) -> None:
        """Initialise the process of this number with how it is watched and awaited."""
        self._number = number
        self._has_ended = has_ended
        self._wait = wait
        self._since = time.monotonic()

    def wait_for(self, is_reached: Callable[[], bool]) -> None:
        """Wait until a moment is reached, or the process has ended."""
        while not is_reached() and not self._has_ended():
            time.sleep(0.005)

    def wait_for_handler(self) -> None:
        """Wait until the process handles signals, a few milliseconds after its first line."""
        self.wait_for(lambda: catches(self._number, signal.SIGTERM))

    def send(self, ending: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        self._since = time.monotonic()
        if not self._has_ended():
            with suppress(ProcessLookupError):
                os.kill(self._number, ending)

    def wait(self) -> Done:
        """Wait until the process ends; the seconds are those since the last signal, or its start."""
        done = self._wait()
        return msgspec.structs.replace(done, seconds=time.monotonic() - self._since)


def start_program(arguments: Sequence[str], folder: Path) -> Process:
    """Start the program as a user does, with its imports."""
    log = folder / "errors.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )

    def wait() -> Done:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_HANG_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        printed = log.read_text(errors="replace")
        log.unlink()
        return Done(code, stderr=printed)

    return Process(process.pid, lambda: process.poll() is not None, wait)


def start_fork(forks: ForkServer, arguments: Sequence[str], folder: Path) -> Process:
    """Start the program in a process that has imported it."""
    number = forks.start(Job(list(arguments), str(folder)))
    return Process(number, lambda: not Path(f"/proc/{number}").exists(), forks.wait)


def catches(process: int, number: int) -> bool:
    """Return whether a process handles a signal."""
    with suppress(FileNotFoundError, ProcessLookupError):
        status = Path(f"/proc/{process}/status").read_text()
        caught = re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
        return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)
    return False


def is_interrupted(done: Done) -> bool:
    """Return whether a command ended by an interrupt: with exit code 130 and one line."""
    return done.code == 130 and len(_LINE.findall(done.stderr)) == 1


def check_interrupted(done: Done, folder: Path) -> Iterator[str]:
    """Yield what is wrong with a command that got one signal, which may have come after its work."""
    if not is_interrupted(done) and not done.works:
        yield f"ended with {done.code}"
    if done.works and _LINE.search(done.stderr):
        yield "went on after an interrupt"
    if done.seconds > LIMIT_SECONDS:
        yield f"ended after {done.seconds:.1f} s"
    if _NOISE.search(done.stderr):
        yield "is noisy"
    yield from find_left_over(folder)


def check_ended_twice(done: Done, second: int, folder: Path) -> Iterator[str]:
    """Yield what is wrong with a command that got two signals."""
    if not is_interrupted(done) and not done.works and done.code != -second:
        yield f"ended with {done.code}"
    if done.seconds > LIMIT_SECONDS:
        yield f"ended after {done.seconds:.1f} s"
    if _NOISE.search(done.stderr):
        yield "is noisy"
    yield from find_locks(folder)


def find_left_over(folder: Path) -> Iterator[str]:
    """Yield the temporary files, and the locks that are held, in a folder."""
    yield from find_locks(folder)
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name != LOCK and is_temporary(name):
            yield f"{name}: left over"


def find_locks(folder: Path) -> Iterator[str]:
    """Yield the locks that are held in a folder."""
    for path in sorted(folder.rglob(LOCK)):
        if _is_locked(path):
            yield f"{path.relative_to(folder)}: locked"


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
