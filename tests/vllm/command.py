"""The command line, called in this process: to start another takes longer than most of what these tests call."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from tests.cli.conftest import Done
from touche_llm.cli import main


def touche(*arguments: object, code: int = 0) -> Done:
    """Call `touche-llm` and return what it printed, after checking its exit code."""
    output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
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
