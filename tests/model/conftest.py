from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.servers import SERVERS, Missing
from tests.vllm.conftest import inputs as inputs
from tests.vllm.conftest import tell as tell


@pytest.fixture(scope="package", params=SERVERS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of each server in turn."""
    serving = SERVERS[request.param](tmp_path_factory.mktemp("server"))
    try:
        base_url = serving.__enter__()
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        yield base_url
    finally:
        serving.__exit__(None, None, None)
