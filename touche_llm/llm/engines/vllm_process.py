"""vLLM in a process of its own, which ends with this one."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from touche_llm.errors import EngineError
from touche_llm.llm.engines import server_guard

# Seconds between SIGTERM and SIGKILL, in which vLLM releases memory and semaphores.
_STOP_SECONDS = 30.0
_LAST_LINES, _LAST_BYTES = 15, 2**16


def find_vllm() -> str:
    """Return the path of the program `vllm`, beside this Python or on PATH.

    Raises:
        EngineError: It is not installed.
    """
    command = shutil.which("vllm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if command is None:
        raise EngineError("vllm: no such program beside this Python or on PATH; pip install 'touche-llm[vllm]'")
    return command


@asynccontextmanager
async def run_guarded(
    command: Sequence[str], log: Path, variables: Mapping[str, str]
) -> AsyncIterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """Run a command that ends with the block and with this process, whatever ends these (see `server_guard`).

    Args:
        command: The program and its arguments.
        log: File to which its output is appended.
        variables: Environment variables, unless the environment sets them already.

    Yields:
        The process, and a function that returns the last lines of its output.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        start = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-I", server_guard.__file__, str(_STOP_SECONDS), *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**variables, **os.environ},
            start_new_session=True,
        )
    try:
        yield process, partial(_read_end, log, start)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.to_thread(process.wait)


def to_flags(options: Mapping[str, Any]) -> list[str]:
    """Return options as command-line flags; options with the value None are left out."""
    found: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, Mapping | list | tuple):
            found.append(f"--{flag}={orjson.dumps(value).decode()}")
        elif value is not None:
            found.append(f"--{flag}={value}")
    return found


def _read_end(log: Path, start: int) -> str:
    """Return the last lines of a log that were written after its first `start` bytes."""
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(start, size - _LAST_BYTES))
        lines = stream.read(_LAST_BYTES).decode(errors="replace").splitlines()[-_LAST_LINES:]
    return "\n".join([f"the end of {log}:", *(line[:500] for line in lines)])
