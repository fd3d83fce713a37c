"""Standard output and standard error that never end a command halfway."""

from __future__ import annotations

import io
import os
import sys
from errno import EPIPE
from typing import Any

_OUT, _ERR = 1, 2


class _Descriptor(io.FileIO):
    """A stream whose reader may leave, as `head` does: later output is dropped.

    The command ends with its own exit code then, even if Python flushes the rest while it shuts down.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            number = self.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
            # Nobody can be shown an error of standard error.
            if number == _OUT and error.errno != EPIPE:
                raise OSError(error.errno, error.strerror, "standard output") from error
            return memoryview(data).nbytes


def open_streams() -> None:
    """Make standard output and standard error accept any text and outlive their readers."""
    for number, name in ((_OUT, "stdout"), (_ERR, "stderr")):
        given = getattr(sys, name)
        if given is None:
            # The caller closed it. The next file to be opened would get its number, and with it all that is printed.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        # A stream that somebody replaced, as tests do, stays.
        elif given is getattr(sys, f"__{name}__"):
            given.flush()
            buffered = io.BufferedWriter(_Descriptor(number, "w", closefd=False))
            # A character that the encoding lacks is written as Python would, `\\xe9`.
            stream = io.TextIOWrapper(
                buffered,
                given.encoding,
                "backslashreplace",
                line_buffering=given.line_buffering,
                write_through=given.write_through,
            )
            setattr(sys, name, stream)


def write_as_utf8() -> None:
    """Switch standard output to UTF-8: rows for programs are the same whatever the terminal's encoding."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
