"""What ChatNoir said, in its file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.expect import raises_at
from tests.fake_chatnoir import FakeChatNoir, results, search, search_again, settings_for
from touche_llm.errors import DataError, UsageError
from touche_llm.retrieval.chatnoir import ChatNoirDocuments
from touche_llm.text.quoting import CHATNOIR_KEY_VARIABLE

pytestmark = pytest.mark.usefixtures("chatnoir_alone")


async def test_searches_are_known_by_server_index_and_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeChatNoir(results(3))
    await search(server, tmp_path)
    monkeypatch.delenv(CHATNOIR_KEY_VARIABLE)
    with raises_at(
        UsageError, tmp_path / "chatnoir.sqlite", "'bottled water'", CHATNOIR_KEY_VARIABLE
    ):
        await search_again(settings_for(server, tmp_path, index="clueweb12"))
    with raises_at(
        UsageError, tmp_path / "chatnoir.sqlite", "'other words'", CHATNOIR_KEY_VARIABLE
    ):
        await search_again(settings_for(server, tmp_path), query="other words")
    server.url = "http://127.0.0.1:9"
    with raises_at(
        UsageError, tmp_path / "chatnoir.sqlite", "'bottled water'", CHATNOIR_KEY_VARIABLE
    ):
        await search_again(settings_for(server, tmp_path))


def foreign_database(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE thesis (chapter)")
    database.commit()
    database.close()


@pytest.mark.parametrize(
    "make",
    [lambda path: path.write_text("My thesis, all of it. " * 100), foreign_database, Path.mkdir],
)
def test_a_file_that_is_no_cache_of_ours_is_refused_and_kept(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    settings = settings_for(FakeChatNoir(url="http://127.0.0.1:9"), tmp_path)
    make(settings.cache)
    before = settings.cache.read_bytes() if settings.cache.is_file() else None
    with raises_at(DataError, settings.cache, "ChatNoir cache"):
        ChatNoirDocuments(settings)
    assert before == (settings.cache.read_bytes() if settings.cache.is_file() else None)


@pytest.mark.parametrize("damage", ["'{}'", "x'ff'", "7"])
async def test_damaged_results_in_the_file_are_named(damage: str, tmp_path: Path) -> None:
    server = FakeChatNoir(results(3))
    await search(server, tmp_path)
    database = sqlite3.connect(tmp_path / "chatnoir.sqlite")
    database.execute(f"UPDATE replies SET value = {damage}")
    database.commit()
    database.close()
    with raises_at(DataError, tmp_path / "chatnoir.sqlite", "'bottled water'"):
        await search_again(settings_for(server, tmp_path))
