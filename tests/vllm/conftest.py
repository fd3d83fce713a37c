from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.server import VENV, make_model, vllm_server


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    if not (VENV / "bin" / "vllm").exists():
        pytest.fail("no vLLM in .venv-vllm: run `make test-vllm`, which installs it")
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def vllm_url(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a running vLLM."""
    with vllm_server(tiny_model, tmp_path_factory.mktemp("vllm") / "server.log") as url:
        yield url
