from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import made_app, touche
from tests.fake_server import FakeServer
from tests.lab.labs import copy_run, make_run, reading

__all__ = ["made_app", "touche"]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, made once."""
    folder = tmp_path_factory.mktemp("lab")
    make_run(folder, FakeServer(rest=reading({})))
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the current folder."""
    copy_run(finished, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def qrels(folder: Path) -> dict[str, Path]:
    return {aspect: folder / aspect for aspect in ("relevance", "quality", "stance")}
