"""Commands on a real terminal of a given width."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROWS = 24
_MARK = "=====\n"
# All commands run in one process, since it takes a second to start.
_SCRIPT = f"""
import fcntl, json, struct, sys, termios
from touche_llm.cli import main
from touche_llm.evaluation import significance
significance.RESAMPLES = 300
for columns, arguments in json.loads(sys.argv[1]):
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", {ROWS}, columns, 0, 0))
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, arguments
    sys.stderr.flush()
    print({_MARK!r}, end="", flush=True)
"""
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def run_on_terminal(calls: Iterable[tuple[int, Sequence[str]]], folder: Path) -> list[str]:
    """Run commands whose standard streams are a terminal; return what each of them printed.

    Args:
        calls: Width of the terminal and arguments of each command; all must succeed.
        folder: Current folder of the commands.
    """
    terminal, end = pty.openpty()
    # Python and rich would take the width from these.
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", _SCRIPT, json.dumps(list(calls))]
    shown = b""
    with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, cwd=folder, env=environment) as child:
        os.close(end)
        while True:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # the child has closed its end
                break
    os.close(terminal)
    assert child.returncode == 0, shown.decode()
    # A progress bar is drawn over itself.
    lines = _ESCAPE.sub("", shown.decode()).replace("\r\n", "\n").split("\n")
    return "\n".join(line.split("\r")[-1] for line in lines).split(_MARK)[:-1]
