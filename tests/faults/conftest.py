from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.fork_server import ForkServer
from tests.faults.model_server import Model
from tests.faults.workplace import Workplace, environment
from touche_llm.llm import retries


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.001)
    # Or a Retry-After would be waited for.
    monkeypatch.setattr(retries, "_MAX_WAIT", 0.01)


@pytest.fixture(scope="session")
def model() -> Iterator[Model]:
    """A model that counts requests."""
    with Model().running() as model:
        yield model


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A process that runs commands without a start-up."""
    with ForkServer(environment(tmp_path_factory.mktemp("home"))) as forks:
        yield forks


@pytest.fixture
def place(tmp_path: Path, forks: ForkServer, model: Model) -> Iterator[Workplace]:
    """A folder with the samples in which commands run."""
    place = Workplace(tmp_path / "work", forks, model)
    yield place
    place.close()
