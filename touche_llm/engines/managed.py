"""vLLM in processes that end with this one: any of its commands, and a server for a model."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from touche_llm.engines.settings import get_model_name
from touche_llm.errors import EngineError, Rejected, Transient

if TYPE_CHECKING:
    from touche_llm.engines.http import HttpClient

# With white space allowed between tokens, weak models write it endlessly. Only this backend has the
# switch, and all requests must use the same backend.
_STRUCTURED_OUTPUTS = {"backend": "xgrammar", "disable_any_whitespace": True}
# Seconds between SIGTERM and SIGKILL, in which vLLM releases memory and semaphores.
_STOP_SECONDS = 30.0
_LAST_LINES = 15
# Max characters of a line of the log that an error quotes.
_MAX_LINE = 500


def build_start_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options to start vLLM with: those that the program needs, overridden by those of the user."""
    return {"structured_outputs_config": _STRUCTURED_OUTPUTS, **options}


def find_vllm() -> str:
    """Return the path of the program `vllm`, beside this Python or on PATH.

    Raises:
        EngineError: There is no such program.
    """
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    command = shutil.which("vllm", path=os.pathsep.join(folders))
    if command is None:
        raise EngineError(
            "vllm: no such program beside this Python or on PATH; pip install 'touche-llm[vllm]'"
        )
    return command


@dataclass(frozen=True, slots=True)
class GuardedProcess:
    """A process that ends with this one; see `run_guarded`.

    Attributes:
        process: Process that guards the command.
        log: File to which its output is appended.
        log_start: Bytes in the file before it.
    """

    process: subprocess.Popen[bytes]
    log: Path
    log_start: int

    @property
    def exit_code(self) -> int | None:
        """Exit code of the command; None while it runs."""
        return self.process.poll()

    async def wait(self) -> int:
        """Wait until the command ends; return its exit code."""
        return await asyncio.to_thread(self.process.wait)

    def read_end_of_log(self) -> str:
        """Return the last lines of the command's output, with the name of the file."""
        with self.log.open("rb") as stream:
            stream.seek(self.log_start)
            output = stream.read().decode(errors="replace")
        last_lines = output.splitlines()[-_LAST_LINES:]
        short_lines = [line[:_MAX_LINE] for line in last_lines]
        return "\n".join([f"the end of {self.log}:", *short_lines])


@asynccontextmanager
async def run_guarded(command: Sequence[str], log: Path) -> AsyncIterator[GuardedProcess]:
    """Run a command that ends with the block and with this process, whatever ends these (see `guard`).

    Args:
        command: Program and its arguments.
        log: File to which its output is appended; it is created if it is missing.
    """
    # This module as a program calls `guard`, which starts the command as its child.
    guard_command = [sys.executable, "-m", __name__, str(_STOP_SECONDS), *command]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        log_start = output.tell()
        process = subprocess.Popen(
            guard_command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    guarded = GuardedProcess(process, log, log_start)
    try:
        yield guarded
    finally:
        # The guard ends the command when its standard input ends.
        assert process.stdin is not None, "standard input is a pipe"
        process.stdin.close()
        await guarded.wait()


def guard(stop_seconds: float, command: Sequence[str]) -> int:
    """Run a command until it ends or standard input does, and return its exit code.

    This is the parent process of a server. The program that uses the server holds the other end of
    standard input and never writes to it. The system closes that end with the program, also after
    SIGKILL; the guard then ends the server and its process group, in which vLLM's engine processes
    are.

    Args:
        stop_seconds: Seconds between SIGTERM, which asks the server to end, and SIGKILL.
        command: Program of the server and its arguments.
    """
    # In a session of its own, the server leads a process group with its pid as the id.
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def stop(*_: object) -> None:
        _stop(server, stop_seconds)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    # The end of standard input becomes a SIGTERM to this process.
    threading.Thread(target=_terminate_at_end_of_input, daemon=True).start()

    code = server.wait()
    # Processes of the server may outlive it.
    _kill_group(server.pid)
    is_killed = code < 0
    return 128 - code if is_killed else code  # as in a shell


def _stop(server: subprocess.Popen[bytes], stop_seconds: float) -> None:
    """Send SIGTERM to a server, and kill its process group if it still runs after some seconds."""
    server.terminate()
    timer = threading.Timer(stop_seconds, _kill_group, [server.pid])
    # The guard does not wait for the timer if the server ends in time.
    timer.daemon = True
    timer.start()


def _kill_group(group: int) -> None:
    """Kill the processes of a group, if there are any."""
    # macOS forbids signals to a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _terminate_at_end_of_input() -> None:
    """Wait for the end of standard input, and send SIGTERM to this process."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def to_flags(options: Mapping[str, Any]) -> list[str]:
    """Return options as command-line flags; options with the value None are left out."""
    flags: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, Mapping | list | tuple):
            flags.append(f"--{flag}={orjson.dumps(value).decode()}")
        elif value is not None:
            flags.append(f"--{flag}={value}")
    return flags


_HOST = "127.0.0.1"
# In seconds.
_POLL_INTERVAL = 0.5


@asynccontextmanager
async def serve(
    folder: Path, options: Mapping[str, Any], log: Path, *, context: int | None = None
) -> AsyncIterator[str]:
    """Serve the model of a folder, under the folder's last name, on a free port of this machine.

    The server and its processes end with the block and with this process (see `run_guarded`). Its
    base URL is yielded once it replies.

    Args:
        folder: Folder of the model.
        options: Additional options of `vllm serve`, named and valued as for `vllm.LLM`:
            `{"enforce_eager": True}`.
        log: File to which its output is appended.
        context: Context in tokens; the model's own if None.

    Raises:
        EngineError: There is no program `vllm`, or it ended before the server replied.
    """
    port = _find_free_port()
    arguments = build_start_options(options)
    arguments |= {"served_model_name": get_model_name(folder), "host": _HOST, "port": port}
    if context is not None:
        arguments["max_model_len"] = context
    command = [
        find_vllm(),
        "serve",
        str(folder),
        "--disable-uvicorn-access-log",
        "--enable-prompt-tokens-details",
        *to_flags(arguments),
    ]
    async with run_guarded(command, log) as server:
        url = f"http://{_HOST}:{port}"
        await _wait_until_ready(server, url)
        yield url


def _find_free_port() -> int:
    """Return a port of this machine that no program uses."""
    with socket.create_server((_HOST, 0)) as free:
        port: int = free.getsockname()[1]
    return port


async def _wait_until_ready(server: GuardedProcess, url: str) -> None:
    """Wait until a server replies.

    Raises:
        EngineError: The server ended before.
    """
    from touche_llm.engines.http import HttpClient  # takes a while to load

    async with HttpClient(url, concurrency=1, request_timeout=60.0) as client:
        while server.exit_code is None:
            if await _replies(client):
                return
            await asyncio.sleep(_POLL_INTERVAL)

    raise EngineError(
        f"vllm serve: ended with code {server.exit_code} before it was ready; {server.read_end_of_log()}"
    )


async def _replies(client: HttpClient) -> bool:
    """Return whether a server replies, if only with a refusal, which the start-up check reports."""
    try:
        await client.get("/v1/models", dict)
    except Transient:
        return False
    except Rejected:
        return True
    return True


if __name__ == "__main__":
    sys.exit(guard(float(sys.argv[1]), sys.argv[2:]))
