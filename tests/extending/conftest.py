"""The command line of the program with extensions, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Extended = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def extended(tmp_path: Path) -> Extended:
    """Calls the command line in the temporary folder, after the import of some modules.

    A registered object stays in its process, so each call has one of its own.
    """

    def call(
        *arguments: str, modules: tuple[str, ...] = (), packages: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        imports = [f"import {module}" for module in modules]
        program = "; ".join([*imports, "from touche_llm.cli import main", "main()"])
        folders = [ROOT] if packages is None else [ROOT, packages]
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return call
