"""Commands of the program in processes of their own, and the time and memory of functions and programs in such."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from benchmarks.figures import peak_gib

ResultT = TypeVar("ResultT")
ROOT = Path(__file__).parent.parent


def run_command(
    *arguments: Any, folder: Path = ROOT, tree: Path = ROOT, codes: Sequence[int] = (0,)
) -> str:
    """Run a command of the program of a checkout in a folder.

    Return its output, exit with it on another code.
    """
    command = [sys.executable, "-m", "touche_llm", *map(str, arguments)]
    variables = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    if done.returncode not in codes:
        raise SystemExit(done.stderr + done.stdout)
    return done.stdout


def read_stages(run: Path) -> dict[str, Any]:
    """Return what the metadata of a run says of its stages."""
    stages: dict[str, Any] = yaml.safe_load((run / "ir-metadata.yml").read_text())["stages"]
    return stages


@dataclass(frozen=True)
class Used:
    """Peak memory of a process and those it started, in GiB, and their processor seconds together."""

    peak: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.cpu:.1f} s of the cores, peak {self.peak:.2f} GiB"


@dataclass(frozen=True)
class Ended:
    """A program that ran to its end: its processor seconds with its children's, its peak MiB without theirs."""

    code: int
    output: str
    errors: str
    seconds: float
    cpu: float
    mib: float


def run_program(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    poll_seconds: float = 0.02,
) -> Ended:
    """Run a program in a folder with exactly these environment variables.

    The end is noticed, and the memory read, once in `poll_seconds`.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=output, stderr=errors)
        usage = _wait_for(process.pid, poll_seconds)
        seconds = time.perf_counter() - started
        # Popen must not wait for the process again.
        process.returncode = usage.code

        output.seek(0)
        errors.seek(0)
        return Ended(
            code=usage.code,
            output=output.read(),
            errors=errors.read(),
            seconds=seconds,
            cpu=usage.cpu,
            mib=usage.peak_kib / 1024,
        )


@dataclass(frozen=True)
class _Usage:
    """Exit code of a process, its processor seconds with its children's, its peak KiB without theirs."""

    code: int
    cpu: float
    peak_kib: int


def _wait_for(process: int, poll_seconds: float) -> _Usage:
    """Wait for the end of a process, and read its memory meanwhile."""
    peak_kib = 0
    ended, status, resources = os.wait4(process, os.WNOHANG)
    while not ended:
        # Not `ru_maxrss`: it includes the memory of the parent at the start of the process.
        with _ignoring_ended():
            memory = read_status(Path(f"/proc/{process}/status"))
            peak_kib = max(peak_kib, memory["VmHWM"])
        time.sleep(poll_seconds)
        ended, status, resources = os.wait4(process, os.WNOHANG)

    return _Usage(
        code=os.waitstatus_to_exitcode(status),
        cpu=resources.ru_utime + resources.ru_stime,
        peak_kib=peak_kib,
    )


def run_alone(function: Callable[..., ResultT], *arguments: Any) -> tuple[ResultT, Used]:
    """Run a function in a process of its own; return its result and what the process used."""
    peak = 0.0
    before = os.times()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        future = pool.submit(_run_with_peak, function, *arguments)
        (process,) = [child.pid for child in multiprocessing.active_children() if child.pid]
        while not future.done():
            peak = max(peak, _sum_kib(list_processes(process)) / 2**20)
            time.sleep(0.2)
        result, most = future.result()
    after = os.times()
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return result, Used(max(peak, most), cpu)


def _run_with_peak(function: Callable[..., ResultT], *arguments: Any) -> tuple[ResultT, float]:
    """Return the result, and the peak memory of this process or of one that it started, in GiB."""
    result = function(*arguments)
    # Not `ru_maxrss`: it includes the memory of the parent at the start of the process.
    most = read_status(Path("/proc/self/status"))["VmHWM"] / 2**20
    return result, max(most, peak_gib())


def list_processes(process: int) -> Iterator[int]:
    """Yield a process and those that it started, directly or not (Linux)."""
    yield process
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with _ignoring_ended():
            for child in children.read_text().split():
                yield from list_processes(int(child))


def _sum_kib(processes: Iterable[int]) -> int:
    """Return the KiB that processes hold themselves, with the largest mapping of files: all map the same files."""
    own, mapped = 0, [0]
    for process in processes:
        with _ignoring_ended():
            # Not the exact smaps_rollup: reading it stops the process while its pages are counted.
            held = read_status(Path(f"/proc/{process}/status"))
            own += held["RssAnon"] + held["RssShmem"]
            mapped.append(held["RssFile"])
    return own + max(mapped)


def read_status(path: Path) -> dict[str, int]:
    """Return the values in KiB of a `/proc/…/status` file, by name."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if words[-1] == "kB"}


@contextmanager
def _ignoring_ended() -> Iterator[None]:
    """Ignore that a process has ended meanwhile."""
    try:
        yield
    except (FileNotFoundError, ProcessLookupError, KeyError):
        pass
