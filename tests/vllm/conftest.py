from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.vllm.processes import left_in_session, processes_of
from tests.vllm.server import ROOT, VENV, make_model, vllm_server
from touche_llm.cli.demo import SAMPLES

REAL = ROOT.parent / "shared" / "data" / "comparative"


@dataclass(frozen=True)
class Input:
    topics: Path
    corpus: Path


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
def data(tell: Tell) -> Input:
    """The real topics and passages, or the project's sample."""
    if REAL.is_dir():
        return Input(REAL / "topics.xml", REAL / "passages.jsonl.gz")
    tell("the real topics and passages are not there: the project's sample is taken instead")
    return Input(SAMPLES / "comparative" / "topics.xml", SAMPLES / "comparative" / "passages.jsonl")


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
        # The server and its guard, each the leader of a session; vLLM's other processes are in the server's.
        leaders = processes_of(str(tiny_model))
        assert len(leaders) == 2
        yield url
    assert [left_in_session(pid) for pid in leaders] == [[], []]
