from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.answer_keys.refusing_server import RefusingServer, serving
from tests.cli.conftest import made_app, touche

__all__ = ["made_app", "touche"]


@pytest.fixture(scope="module")
def server() -> Iterator[RefusingServer]:
    with serving() as started:
        yield started


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals of a comparison are as wide as they like here."""
    monkeypatch.setattr("touche_llm.evaluation.randomisation.RESAMPLES", 300)
