"""How commands that are printed for a user call the program."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from touche_llm.cli.emit import format_program

SCRIPT, PYTHON = "mine/bin/touche-llm", "mine/bin/python"


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two environments with one interpreter, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "other", "my own"):
        folder = tmp_path / name / "bin"
        folder.mkdir(parents=True)
        (folder / "python").symlink_to(sys.executable)
        (folder / "touche-llm").write_text("#!/bin/sh\n")
        (folder / "touche-llm").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("called", "python", "path", "expected"),
    [
        (SCRIPT, PYTHON, ["mine", "other"], "touche-llm"),
        (SCRIPT, PYTHON, ["other", "mine"], SCRIPT),
        (SCRIPT, PYTHON, [], SCRIPT),
        ("my own/bin/touche-llm", "my own/bin/python", ["mine"], "'my own/bin/touche-llm'"),
        ("touche-llm", PYTHON, [], "touche-llm"),
        ("touche_llm/__main__.py", PYTHON, ["mine", "other"], "python -m touche_llm"),
        ("touche_llm/__main__.py", PYTHON, ["other", "mine"], f"{PYTHON} -m touche_llm"),
        ("touche_llm/__main__.py", "my own/bin/python", [], "'my own/bin/python' -m touche_llm"),
        ("-c", PYTHON, [], f"{PYTHON} -m touche_llm"),
    ],
)
def test_the_environment_of_the_call_is_named_unless_the_shell_finds_it(
    called: str, python: str, path: list[str], expected: str, environments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(environments / called) if "/" in called else called, "demo"])
    monkeypatch.setattr(sys, "executable", str(environments / python))
    monkeypatch.setenv("PATH", ":".join(str(environments / name / "bin") for name in path))
    assert format_program() == expected


@pytest.mark.parametrize("command", [("demo", "--task", "comparative"), ("tasks", "new", "essays")])
def test_demo_and_new_tasks_print_the_same_call(
    command: tuple[str, ...], touche: Touche, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("demo", "tasks"):
        monkeypatch.setattr(f"touche_llm.cli.{module}.format_program", lambda: "mine/bin/python -m touche_llm")
    lines = [line for line in touche(*command).stdout.splitlines() if re.match(r" {4}[^\d ]", line)]
    assert len(lines) >= 2 and all(line.startswith("    mine/bin/python -m touche_llm ") for line in lines)
