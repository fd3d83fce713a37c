"""vLLM in processes that end with this one: any of its commands, and a server for a model."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from touche_llm.errors import EngineError
from touche_llm.llm import server_guard
from touche_llm.llm.settings import get_model_name

# With white space allowed between tokens, weak models write it endlessly. Only this backend has the switch, and all
# requests must use the same backend.
_STRUCTURED_OUTPUTS = {"backend": "xgrammar", "disable_any_whitespace": True}
# Seconds between SIGTERM and SIGKILL, in which vLLM releases memory and semaphores.
_STOP_SECONDS = 30.0
_LAST_LINES, _LAST_BYTES = 15, 2**16


def build_start_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options to start vLLM with: those that the program needs, overridden by those of the user.

    If the environment switches torch.compile off, vLLM does not start without `enforce_eager`.
    """
    eager = {"enforce_eager": True} if os.environ.get("TORCHDYNAMO_DISABLE") == "1" else {}
    return {"structured_outputs_config": _STRUCTURED_OUTPUTS, **eager, **options}


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


_HOST = "127.0.0.1"
# In seconds.
_POLL_INTERVAL = 0.5


@asynccontextmanager
async def serve(
    folder: Path, options: Mapping[str, Any], log: Path, *, context: int | None = None, ready_within: float = 3600.0
) -> AsyncIterator[str]:
    """Serve the model of a folder, under the folder's last name, on a free port of this machine.

    The server and its processes end with the block and with this process (see `run_guarded`).

    Args:
        folder: Folder of the model.
        options: Additional options of `vllm serve`, named and valued as for `vllm.LLM`: `{"enforce_eager": True}`.
        log: File to which the server's output is appended.
        context: Context in tokens; the model's own if None.
        ready_within: Seconds that starting may take.

    Yields:
        The server's base URL, once it answers.

    Raises:
        EngineError: vLLM is not installed, or it did not start; with the last lines of its log.
    """
    port = _free_port()
    arguments = build_start_options(options)
    arguments |= {"served_model_name": get_model_name(folder), "host": _HOST, "port": port}
    arguments |= {} if context is None else {"max_model_len": context}
    command = [find_vllm(), "serve", str(folder), "--disable-uvicorn-access-log", "--enable-prompt-tokens-details"]
    # In seconds; with vLLM's default of 5 it closes connections that the client is about to reuse.
    variables = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120"}
    async with run_guarded([*command, *to_flags(arguments)], log, variables) as (process, end_of_log):
        url = f"http://{_HOST}:{port}"
        await _wait_until_ready(process, f"{url}/health", end_of_log, ready_within)
        yield url


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


async def _wait_until_ready(
    process: subprocess.Popen[bytes], health: str, end_of_log: Callable[[], str], seconds: float
) -> None:
    import aiohttp  # takes a while to load

    try:
        async with asyncio.timeout(seconds), aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while process.poll() is None:
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(health) as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(_POLL_INTERVAL)
    except TimeoutError as error:
        raise EngineError(f"vllm serve: not ready within {seconds:g} s; {end_of_log()}") from error
    raise EngineError(f"vllm serve: ended with code {process.returncode} before it was ready; {end_of_log()}")
