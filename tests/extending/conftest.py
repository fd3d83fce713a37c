"""The program with extensions, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_COMMAND_LINE = "from touche_llm.cli import main; main()"
Extended = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def extended(tmp_path: Path) -> Extended:
    """Calls the command line, or another program, in the temporary folder.

    A registered object stays in its process, so each call has one of its own.
    """

    def call(
        *arguments: str,
        modules: tuple[str, ...] = (),
        packages: Path | None = None,
        program: str = _COMMAND_LINE,
    ) -> subprocess.CompletedProcess[str]:
        imports = "".join(f"import {module}\n" for module in modules)
        folders = [ROOT] if packages is None else [ROOT, packages]
        return subprocess.run(
            [sys.executable, "-c", imports + program, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return call
