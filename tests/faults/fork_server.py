"""A process that has everything imported and forks a child for each command, which then starts within milliseconds.

`python -m tests.faults.fork_server` reads a job (`Job`) a line from standard input and answers with
two lines: the number of the process when it starts, and how it ended.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import importlib
import os
import pkgutil
import re
import resource
import select
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import orjson

from touche_llm.interrupts import handle_signals

# What ends a command with exit code 130.
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Of a pipe: what a command prints is read when it has ended.
_PIPE_SIZE = 2**20
# A command of the samples takes about a second; one that takes this long hangs.
HANG_SECONDS = 120.0
_FILE_EVENTS = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.chmod",
    "os.link",
    "os.symlink",
}
# What tempfile and `open_scratch` add to a name.
_RANDOM = re.compile(r"^(\..*[.-])(?:[a-z0-9_]{8}|[0-9a-f]{16})$")
# The marker of a temporary folder names the host, on which trials must not depend.
_MARKER = re.compile(r"^lock-.*$")


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happens to a command.

    Attributes:
        event: The operation of this name (`Events`), when it comes the `count`th time, ...
        count: ... is not done: the process gets the signal before it, or,
        error: with an error number, this one and every later one fails so.
        size: Killed when a file would grow beyond so many bytes: the file ends there.
        after: The process gets the signal so many seconds after its start.
        signal: By default it is killed.
        limits: Soft limits by their names in `resource`; those of memory and open files beyond what
            is in use.
    """

    event: str = ""
    count: int = 1
    error: int = 0
    size: int = 0
    after: float = 0.0
    signal: int = signal.SIGKILL
    limits: dict[str, int] = {}

    def __str__(self) -> str:
        values = msgspec.to_builtins(self)
        return ", ".join(f"{name}={value!r}" for name, value in values.items())


class Job(msgspec.Struct, frozen=True):
    """A command line, where it runs, and how it is disturbed.

    The trace is what `Events` counted.
    """

    arguments: list[str]
    folder: str
    trace: str = ""
    fault: Fault | None = None


class Done(msgspec.Struct, frozen=True):
    """The exit code, or the signal that ended the process as a negative number, and what it printed."""

    code: int
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0

    @property
    def works(self) -> bool:
        """Whether the command did what it is for: 3 is a run with failures."""
        return self.code in (0, 3)

    @property
    def refuses(self) -> bool:
        """Whether the command ended with one line that says why, and no traceback."""
        errors = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        return (
            self.code in (1, 2)
            and len(errors) == 1
            and "Traceback" not in self.stderr + self.stdout
        )


class Events:
    """Counts file operations by event and name; kills this process before the chosen one.

    Audit events cover opening for writing, renaming, removing and the like; statements of SQLite
    and `fsync` have no audit events and are added here.
    """

    def __init__(self, fault: Fault | None) -> None:
        self.counts: Counter[str] = Counter()
        self.fault = fault
        self.fails = False
        self.folder = os.getcwd()
        sys.addaudithook(self._audit)
        fsync, connect = os.fsync, sqlite3.connect

        def counted_fsync(fd: Any) -> None:
            self.count("fsync")
            fsync(fd)

        def counted_connect(*arguments: Any, **named: Any) -> sqlite3.Connection:
            self.count("sqlite connect")
            connection: sqlite3.Connection = connect(*arguments, **named)
            connection.set_trace_callback(self._count_sql)
            return connection

        os.fsync = counted_fsync
        sqlite3.connect = counted_connect  # type: ignore[assignment]

    def count(self, event: str, path: str = "") -> None:
        """Count an operation that is about to happen."""
        self.counts[event] += 1
        if self.fault is None:
            return
        if event == self.fault.event and self.counts[event] == self.fault.count:
            if not self.fault.error:
                os.kill(os.getpid(), self.fault.signal)
                return
            self.fails = True
        # A full disk lets files be removed.
        removes = event.startswith(("os.remove", "os.rmdir"))
        if (
            self.fails
            and not (removes and self.fault.error == errno.ENOSPC)
            and event not in ("exit", "sqlite connect")
        ):
            raise OSError(self.fault.error, os.strerror(self.fault.error), path or None)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR):
                self._count_path("open", path)
        elif event in _FILE_EVENTS:
            self._count_path(event, arguments[1 if event == "os.rename" else 0])

    def _count_sql(self, statement: str) -> None:
        # An error here is lost in SQLite; a full disk and limits reach it themselves.
        with suppress(OSError):
            self.count(f"sqlite {' '.join(statement.split()[:2])}")

    def _count_path(self, event: str, path: Any) -> None:
        # Open descriptors are those of the output streams.
        if isinstance(path, int):
            return
        text = os.fsdecode(path)
        if not os.path.isabs(text) or text.startswith(self.folder):
            name = _RANDOM.sub(r"\1*", os.path.basename(text))
            name = _MARKER.sub("lock-*", name)
            self.count(f"{event} {name}", text)


def import_all() -> None:
    """Import every module of the program, and what its functions import when they are called."""
    package = importlib.import_module("touche_llm")
    for module in pkgutil.walk_packages(package.__path__, "touche_llm."):
        if module.name != "touche_llm.__main__":
            importlib.import_module(module.name)
    for name in ("scipy.stats", "bm25s", "ir_measures", "rank_bm25"):
        importlib.import_module(name)


def _run_child(job: Job, stdout: int, stderr: int) -> int:
    """Run the command line in this process, a fork; return its exit code."""
    from touche_llm.__main__ import main

    handle_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
    os.chdir(job.folder)
    for given, descriptor in ((os.open(os.devnull, os.O_RDONLY), 0), (stdout, 1), (stderr, 2)):
        os.dup2(given, descriptor)
        os.close(given)
    # The parent's may have been files, in which their streams would still seek.
    sys.stdout, sys.stderr = (
        open(descriptor, "w", encoding="utf-8", closefd=False) for descriptor in (1, 2)
    )
    sys.argv = ["touche-llm", *job.arguments]
    if job.fault is not None:
        _limit(job.fault)
    events = Events(job.fault)
    code: Any = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    events.count("exit")
    if job.trace:
        Path(job.trace).write_bytes(orjson.dumps(events.counts))
    return int(code)


def _limit(fault: Fault) -> None:
    if fault.size:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.size, fault.size))
    for name, value in fault.limits.items():
        used = 0
        if name == "RLIMIT_AS":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        elif name == "RLIMIT_NOFILE":
            used = len(os.listdir("/proc/self/fd"))
        number = getattr(resource, name)
        resource.setrlimit(number, (used + value, resource.getrlimit(number)[1]))


def _fork(job: Job, announce: Callable[[int], None]) -> Done:
    started = time.monotonic()
    (from_stdout, stdout), (from_stderr, stderr) = os.pipe(), os.pipe()
    for pipe in (stdout, stderr):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
    child = os.fork()
    if child == 0:
        os.close(from_stdout)
        os.close(from_stderr)
        code = 70
        try:
            code = _run_child(job, stdout, stderr)
        finally:
            os._exit(code)
    announce(child)
    os.close(stdout)
    os.close(stderr)
    watched = os.pidfd_open(child)
    if job.fault is not None and job.fault.after:
        _send_signal(child, watched, job.fault.signal, job.fault.after)
    _send_signal(child, watched, signal.SIGKILL, HANG_SECONDS)
    _, status = os.waitpid(child, 0)
    os.close(watched)
    texts = []
    for end in (from_stdout, from_stderr):
        with os.fdopen(end, "rb") as stream:
            texts.append(stream.read().decode())
    return Done(os.waitstatus_to_exitcode(status), texts[0], texts[1], time.monotonic() - started)


def _send_signal(child: int, watched: int, number: int, seconds: float) -> None:
    """Send a signal to a child after some seconds, unless it has ended before."""
    has_ended = bool(select.select([watched], [], [], seconds)[0])
    if not has_ended:
        os.kill(child, number)


def main() -> None:
    """Serve jobs until standard input ends."""
    # Undo what nohup does.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # A child unblocks them when it handles them.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    import_all()
    gc.collect()
    gc.freeze()
    replies = os.fdopen(os.dup(1), "wb", buffering=0)

    def write(reply: Any) -> None:
        replies.write(msgspec.json.encode(reply) + b"\n")

    for line in sys.stdin.buffer:
        write(_fork(msgspec.json.decode(line, type=Job), write))


class ForkServer:
    """The other end: starts the process, hands it jobs. A context manager."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._process.communicate()

    def run(self, job: Job) -> Done:
        """Run a job; raises RuntimeError where the process is gone."""
        self.start(job)
        return self.wait()

    def start(self, job: Job) -> int:
        """Start a job, and return the number of its process."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._read(), type=int)

    def wait(self) -> Done:
        """Wait until the job ends."""
        return msgspec.json.decode(self._read(), type=Done)

    def _read(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fork server ended with {self._process.wait()}")
        return line


if __name__ == "__main__":
    main()
