from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.vllm.processes import left_in_session, processes_of
from tests.vllm.real_data import TaskInput, input_of
from tests.vllm.server import VENV, make_model, vllm_server

Tell = Callable[[str], None]


@pytest.fixture(scope="session")
def tell(request: pytest.FixtureRequest) -> Tell:
    """Prints a line past pytest's capturing: what these tests see is worth reading."""
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None

    def write(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n  {line}", end="", flush=True)

    return write


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory, tell: Tell) -> Callable[[str], TaskInput]:
    """The input of each task, with one index for all tests."""

    @cache
    def prepare(task: str) -> TaskInput:
        found = input_of(task, tmp_path_factory.mktemp(f"input-{task}"))
        if not found.is_real:
            tell(
                f"{task}: the real topics and documents are not here; the project's sample is used instead"
            )
        return found

    return prepare


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    if not (VENV / "bin" / "vllm").exists():
        pytest.fail("no vLLM in .venv-vllm: run `make test-vllm`, which installs it")
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def vllm_url(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of the one vLLM that the tests share; at the end nothing of it is left."""
    with vllm_server(tiny_model, tmp_path_factory.mktemp("vllm") / "server.log") as url:
        # The server and its guard, each the leader of a session; vLLM's other processes are in the
        # server's.
        leaders = processes_of(str(tiny_model))
        assert len(leaders) == 2
        yield url
    assert [left_in_session(pid) for pid in leaders] == [[], []]
