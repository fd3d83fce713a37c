"""The command line, called in this process: to start another takes longer than most of what these tests call."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from tests.cli.conftest import Done
from tests.vllm.server import finished_requests
from touche_llm.cli import main


def touche(*arguments: object, code: int = 0) -> Done:
    """Call `touche-llm` and return what it printed, after checking its exit code."""
    output, errors = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)
    )
    with redirect_stdout(output), redirect_stderr(errors):
        with patch.object(sys, "argv", ["touche-llm", *map(str, arguments)]):
            try:
                main()
                ended: int | str | None = 0
            except SystemExit as exit_:
                ended = exit_.code
    printed = [each.buffer.getvalue().decode() for each in (output, errors)]
    assert ended == code, "".join(printed)
    return Done(code, *printed)


def kill_half_way(url: str, requests: int, arguments: list[object]) -> None:
    """Start `touche-llm` as a process of its own, and kill it when the server has finished so many of its requests."""
    words = [sys.executable, "-m", "touche_llm", *map(str, arguments)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            start = finished_requests(url)
            while finished_requests(url) - start < requests:
                assert process.poll() is None, "the run ended before it could be killed"
                time.sleep(0.05)
        finally:
            process.kill()
    time.sleep(3)  # what the killed run had sent may still be finished by the server
