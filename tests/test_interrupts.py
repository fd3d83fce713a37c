"""Interrupts of programs in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fake_server import FakeServer, good
from touche_llm.cli.demo import SAMPLES

SAMPLE = SAMPLES / "comparative"
DATA = ["--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl")]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
# Says that its work has begun, then computes or waits until an interrupt ends it.
PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from touche_llm.interrupts import handle_signals, run_until_interrupted, end_if_interrupted
from touche_llm.data.files import open_atomic

def compute():
    print("begun", flush=True)
    while True:
        try:
            time.sleep(0.001)
        except BaseException:
            pass

def write():
    with open_atomic(Path("output")) as stream:
        stream.write(b"half")
        compute()

async def write_meanwhile():
    write()

async def compute_in_a_thread():
    await asyncio.to_thread(compute)

async def wait():
    print("begun", flush=True)
    await asyncio.sleep(60)

async def close_slowly():
    try:
        await wait()
    finally:
        print("closing", flush=True)
        await asyncio.sleep(60)

async def fail_on_closing():
    try:
        await wait()
    finally:
        raise ValueError

async def return_on_closing():
    try:
        await wait()
    except asyncio.CancelledError:
        pass

handle_signals()
try:
    work = globals()[sys.argv[1]]()
    run_until_interrupted(work, "the note")
finally:
    end_if_interrupted()
"""


@pytest.fixture(autouse=True)
def _no_nohup() -> Iterator[None]:
    """Undo what nohup does to the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@contextmanager
def started(work: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the program, wait until its work has begun, and kill it at the end of the block."""
    command = [sys.executable, "-c", PROGRAM, work]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("ending", SIGNALS)
def test_a_signal_ends_a_program_that_swallows_exceptions_without_its_temporary_files(
    tmp_path: Path, ending: signal.Signals
) -> None:
    with started("write", tmp_path) as process:
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(ending)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "work",
    ["wait", "fail_on_closing", "return_on_closing", "write_meanwhile", "compute_in_a_thread"],
)
def test_a_signal_ends_a_coroutine_whatever_it_does(tmp_path: Path, work: str) -> None:
    with started(work, tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "interrupted; the note\n")
    assert list(tmp_path.iterdir()) == []


def test_a_second_signal_ends_a_program_that_still_closes(tmp_path: Path) -> None:
    with started("close_slowly", tmp_path) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "closing\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM


def test_two_signals_at_once_end_a_program_without_a_word_of_python(tmp_path: Path) -> None:
    with started("close_slowly", tmp_path) as process:
        # The program receives both at once when it continues.
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (-signal.SIGTERM, "")


def test_what_is_ignored_at_the_start_stays_ignored(tmp_path: Path) -> None:
    """As SIGHUP under nohup, or Ctrl-C in the background of a script."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with started("wait", tmp_path) as process:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


def test_a_signal_during_the_imports_ends_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "touche_llm", "--help"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        while not catches_sigterm(process.pid):
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "interrupted\n")


# Sends itself Ctrl-C when the program imports what handles signals.
INTERRUPTED_EARLY = """
import signal, sys

class Interrupter:
    def find_spec(self, name, path, target=None):
        if name == "touche_llm.interrupts":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
from touche_llm.__main__ import main
main()
"""


def test_ctrl_c_before_signals_are_handled_ends_the_program() -> None:
    command = [sys.executable, "-c", INTERRUPTED_EARLY, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


def catches_sigterm(number: int) -> bool:
    """Whether a process has a handler of SIGTERM."""
    status = Path(f"/proc/{number}/status").read_text()
    (caught,) = [line for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_ctrl_c_ends_a_run_and_says_where_its_answers_are(tmp_path: Path) -> None:
    async def interrupt(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        server.rest = good
        process.send_signal(signal.SIGINT)
        return await good(request, body)

    server = FakeServer(rest=interrupt)
    with server.in_thread():
        arguments = ["run", *DATA, "--out", "o", "--base-url", server.url]
        command = [sys.executable, "-m", "touche_llm", *arguments]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.count("interrupted") == 1 and ".touche-llm/answers.sqlite" in errors
    assert "Traceback" not in errors and "error:" not in errors
