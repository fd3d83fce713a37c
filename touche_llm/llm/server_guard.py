"""Parent process of a server: ends the server when the program that uses it ends, however that ends.

Run as a script, with nothing but the standard library. The program holds the other end of standard input and never
writes to it. The system closes that end with the program, also after SIGKILL, on every system; the guard then ends the
server and its process group, in which vLLM's engine processes are.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def main(stop_seconds: float, command: list[str]) -> int:
    """Run a server until it ends or standard input does; SIGKILL follows SIGTERM after `stop_seconds`.

    Returns:
        The server's exit code; 128 and the number of the signal that ended it, as in a shell.
    """
    # Only the guard dying by SIGKILL is left to the parent-death signal. Linux sends that when the forking thread ends,
    # here the main thread.
    on_linux = sys.platform == "linux"
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_end_with_parent if on_linux else None,
    )

    def kill() -> None:
        # macOS forbids signals to a group of zombies.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(server.pid, signal.SIGKILL)

    def stop(*_: object) -> None:
        server.terminate()
        timer = threading.Timer(stop_seconds, kill)
        timer.daemon = True
        timer.start()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    threading.Thread(target=_terminate_at_end_of_input, daemon=True).start()
    code = server.wait()
    kill()
    return code if code >= 0 else 128 - code


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _terminate_at_end_of_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
