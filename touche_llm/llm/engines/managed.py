"""Managed vLLM server, which the program starts and stops."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from touche_llm.errors import EngineError
from touche_llm.llm.engines.vllm_common import build_start_options, get_model_name
from touche_llm.llm.engines.vllm_process import find_vllm, run_guarded, to_flags

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
