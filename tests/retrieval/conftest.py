"""What several test files of this folder share."""

from __future__ import annotations

import pytest

from tests.fake_chatnoir import KEY
from touche_llm.llm import retries


@pytest.fixture
def chatnoir_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's settings counts, and nobody waits between two tries."""
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.001)
    monkeypatch.setenv("CHATNOIR_API_KEY", KEY)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def elasticsearch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's settings counts, and nobody waits between two tries."""
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.001)
    for name in ("ELASTICSEARCH_API_KEY", "ELASTICSEARCH_USER", "ELASTICSEARCH_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
