"""Export and removal of damaged cache entries."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from touche_llm.cli.demo import SAMPLES

SAMPLE = SAMPLES / "comparative"
CACHE = ("--cache", "c.sqlite")
REPLAY = (
    *("run", "--config", str(SAMPLE / "demo.yaml"), "--cache-mode", "replay", "--out", "out"),
    *("--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl")),
)


@pytest.fixture
def key(touche: Touche) -> str:
    """The key of a damaged entry in `c.sqlite`."""
    assert touche("cache", "import", str(SAMPLE / "cassette.jsonl"), *CACHE).returncode == 0
    with closing(sqlite3.connect("c.sqlite")) as database:
        (key,) = database.execute(
            "SELECT key FROM entries WHERE kind = 'answer' AND prompt LIKE '%judge'"
        ).fetchone()
        database.execute("UPDATE entries SET value = substr(value, 1, 40) WHERE key = ?", (key,))
        database.commit()
    return str(key)


def test_a_run_that_meets_a_damaged_entry_names_it_with_the_remedy(
    touche: Touche, key: str
) -> None:
    done = touche(*REPLAY, *CACHE)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: c.sqlite: ")
    assert f"touche-llm cache forget {key} --cache c.sqlite" in error


def test_an_export_leaves_damaged_entries_out_and_names_them(touche: Touche, key: str) -> None:
    done = touche("cache", "export", "c.jsonl", *CACHE)
    assert done.returncode == 1
    assert f"c.sqlite: left out damaged entries: 1 ({key})" in done.stdout + done.stderr
    assert touche("cache", "import", "c.jsonl", "--cache", "new.sqlite").returncode == 0
    (row,) = json.loads(touche("cache", "export", "d.jsonl", *CACHE, "--format", "json").stdout)
    lines = Path("d.jsonl").read_bytes().splitlines()
    assert (row["entries"], row["damaged"], row["gaps"]) == (len(lines), 1, 0)
    assert len(lines) == len((SAMPLE / "cassette.jsonl").read_bytes().splitlines()) - 1


def test_a_forgotten_entry_is_gone_and_requested_again(touche: Touche, key: str) -> None:
    done = touche("cache", "forget", key, *CACHE, "--format", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == [{"file": "c.sqlite", "removed": 1, "missing": 0}]
    assert touche("cache", "export", "c.jsonl", *CACHE).returncode == 0
    replay = touche(*REPLAY, *CACHE)
    assert replay.returncode == 1 and "the cache lacks 1 of the answers" in replay.stderr
    # What the entry was is in the cassette.
    assert touche("cache", "import", str(SAMPLE / "cassette.jsonl"), *CACHE).returncode == 0
    assert touche(*REPLAY, *CACHE).returncode == 0


def test_keys_that_a_cache_lacks_are_named(touche: Touche, key: str) -> None:
    done = touche("cache", "forget", key, "f" * 64, key, *CACHE)
    assert done.returncode == 1
    assert "removed from c.sqlite: 1" in done.stdout and "f" * 64 in done.stdout + done.stderr
    missing = touche("cache", "forget", key, "--cache", "none.sqlite")
    assert missing.returncode == 2 and not Path("none.sqlite").exists()
