"""A vLLM server that the program starts and stops itself."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from touche_llm.errors import EngineError
from touche_llm.llm import server_guard
from touche_llm.llm.vllm_common import model_name, start_options

_HOST = "127.0.0.1"
_ASK_EVERY = 0.5
# Between SIGTERM and SIGKILL, in seconds: vLLM gives memory and semaphores back meanwhile.
_STOP_SECONDS = 30.0
_LAST_LINES, _LAST_BYTES = 15, 2**16


@asynccontextmanager
async def serve(
    folder: Path, options: Mapping[str, Any], log: Path, *, context: int | None = None, ready_within: float = 3600.0
) -> AsyncIterator[str]:
    """Serve the model of a folder, under the folder's last name, on a free port of this machine.

    The server and its processes end with the block and with this process, whatever ends these (see `server_guard`).

    Args:
        folder: holds the model.
        options: further options of `vllm serve`, named and valued as for `vllm.LLM`: `{"enforce_eager": True}`.
        log: what the server writes is appended to it.
        context: in tokens; the model's own where None.
        ready_within: seconds that starting may take.

    Yields:
        the server's base URL, once it answers.

    Raises:
        EngineError: no vLLM, or it did not start; with the last lines of its log.
    """
    command = shutil.which("vllm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if command is None:
        raise EngineError("no `vllm` beside this Python or on PATH: pip install 'vllm>=0.32'")
    port = _free_port()
    arguments = start_options(options)
    arguments |= {"served_model_name": model_name(folder), "host": _HOST, "port": port}
    arguments |= {} if context is None else {"max_model_len": context}
    # Seconds; vLLM's default of 5 closes connections that the client is about to use again.
    environment = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120"} | os.environ
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        start = output.tell()
        process = subprocess.Popen(
            [
                *(sys.executable, "-I", server_guard.__file__, str(_STOP_SECONDS)),
                *(command, "serve", str(folder), "--disable-uvicorn-access-log", "--enable-prompt-tokens-details"),
                *_flags(arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    try:
        url = f"http://{_HOST}:{port}"
        await _wait_until_ready(process, f"{url}/health", partial(_end_of, log, start), ready_within)
        yield url
    finally:
        await _stop(process)


def _flags(options: Mapping[str, Any]) -> list[str]:
    """Options as command line flags; None leaves one out."""
    flags = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, Mapping | list | tuple):
            flags.append(f"--{flag}={orjson.dumps(value).decode()}")
        elif value is not None:
            flags.append(f"--{flag}={value}")
    return flags


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


async def _wait_until_ready(
    process: subprocess.Popen[bytes], health: str, end_of_log: Callable[[], str], seconds: float
) -> None:
    try:
        async with asyncio.timeout(seconds), aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while process.poll() is None:
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(health) as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(_ASK_EVERY)
    except TimeoutError as error:
        raise EngineError(f"vLLM did not start within {seconds:g} s; {end_of_log()}") from error
    raise EngineError(f"vLLM ended with code {process.returncode} before it was ready; {end_of_log()}")


def _end_of(log: Path, start: int) -> str:
    """The last lines of a log from the byte `start` on."""
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(start, size - _LAST_BYTES))
        lines = stream.read(_LAST_BYTES).decode(errors="replace").splitlines()[-_LAST_LINES:]
    return "\n".join([f"the end of {log}:", *(line[:500] for line in lines)])


async def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and all processes that it has started."""
    assert process.stdin is not None
    process.stdin.close()
    await asyncio.to_thread(process.wait)
