from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.servers import NEEDED, SERVERS, Missing
from tests.vllm.conftest import inputs as inputs
from tests.vllm.conftest import tell as tell


@pytest.fixture
def needed(request: pytest.FixtureRequest, url: str) -> list[object]:
    """The options that the server needs beside its address."""
    return NEEDED.get(request.node.callspec.params["url"], [])


@pytest.fixture(scope="package", params=SERVERS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of each server in turn."""
    serving = SERVERS[request.param](tmp_path_factory.mktemp("server"))
    try:
        if request.param in NEEDED:
            pytest.importorskip(
                "transformers", reason="the tokenizer of a folder needs transformers"
            )
        base_url = serving.__enter__()
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        yield base_url
    finally:
        serving.__exit__(None, None, None)
