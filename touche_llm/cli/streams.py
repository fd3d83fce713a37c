"""Standard output and standard error that do not interrupt a command."""

from __future__ import annotations

import io
import os
import sys
from errno import EPIPE
from typing import Any

_OUT, _ERR = 1, 2


class _Descriptor(io.FileIO):
    """Stream whose reader may close it, as `head` does; later output is dropped.

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
            # An error of standard error cannot be shown.
            if number == _OUT and error.errno != EPIPE:
                raise OSError(error.errno, error.strerror, "standard output") from error
            return memoryview(data).nbytes


def open_streams() -> None:
    """Make standard output and standard error accept any text and survive their readers."""
    for number, name in ((_OUT, "stdout"), (_ERR, "stderr")):
        given = getattr(sys, name)
        if given is None:
            # The caller closed it; the next opened file would get its number and all printed output.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        # A replaced stream, as in tests, is kept.
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
    """Switch standard output to UTF-8, so that rows for programs do not depend on the terminal's encoding."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
