from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.own_runs import rewrite
from tests.write_regressions import FOLDER, make_run
from touche_llm.config.own_folders import record_configuration
from touche_llm.regression.check import check_folder
from touche_llm.regression.result import CheckResult
from touche_llm.tasks import prompts_folder

Copy = Callable[[str], Path]
_VERSION = cache(version)


@pytest.fixture(autouse=True)
def _versions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking up the versions of libraries takes most of the time of a short run."""
    monkeypatch.setattr("touche_llm.runs.metadata.version", _VERSION)


@pytest.fixture
def copy_of(tmp_path: Path) -> Copy:
    """A copy of one of the project's recorded runs, to be changed."""
    return lambda task: shutil.copytree(FOLDER / task, tmp_path / "regress" / task)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small finished run; not to be changed."""
    return asyncio.run(make_run("comparative", tmp_path_factory.mktemp("made")))


def checked(folder: Path, prompts: Path | None = None) -> CheckResult:
    """Check a recorded run, or a copy of it that takes its templates from a folder."""
    if prompts is not None:
        folder = shutil.copytree(folder, prompts / "runs" / folder.name)
        take_templates(folder, prompts)
    return asyncio.run(check_folder(folder))


def take_templates(folder: Path, prompts: Path) -> None:
    """Let a recorded run take its templates from a folder."""
    with (folder / "config.yaml").open("a") as stream:
        stream.write(f"prompts: {{folder: {prompts}}}\n")
    file = folder / "config.yaml"
    record_configuration(file, file.read_bytes())


def overlay(folder: Path, task: str, **changed: tuple[str, str]) -> Path:
    """A folder of templates: the project's own, each with one text replaced."""
    (folder / task).mkdir(parents=True, exist_ok=True)
    for name, (old, new) in changed.items():
        text = (prompts_folder() / task / f"{name}.jinja").read_text()
        assert old in text
        (folder / task / f"{name}.jinja").write_text(text.replace(old, new))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    rewrite(path, text.replace(old, new))
