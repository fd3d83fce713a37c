"""What several test files of this folder share."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import Any

import pytest

from touche_llm.data import transport


@pytest.fixture
def chatnoir_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's settings counts, and nobody waits: not between two tries, and not for the disk."""
    monkeypatch.setattr(transport, "_FIRST_WAIT", 0.001)
    for name in ("CHATNOIR_API_KEY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    connect = sqlite3.connect

    def hasty(*place: Any, **options: Any) -> sqlite3.Connection:
        database: sqlite3.Connection = connect(*place, **options)
        with suppress(sqlite3.DatabaseError):  # not a database: that is for the program to find out
            database.execute("PRAGMA synchronous = OFF")
        return database

    monkeypatch.setattr(sqlite3, "connect", hasty)


@pytest.fixture
def elasticsearch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's settings counts, and nobody waits between two tries."""
    monkeypatch.setattr(transport, "_FIRST_WAIT", 0.001)
    for name in ("ELASTICSEARCH_API_KEY", "ELASTICSEARCH_USER", "ELASTICSEARCH_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
