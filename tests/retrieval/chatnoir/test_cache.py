"""What ChatNoir said, in its file; and the settings, which show no key."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.expect import raises_at
from tests.fake_chatnoir import KEY, FakeChatNoir, holds_key, results, search, search_again, settings_for
from touche_llm.errors import DataError, UsageError
from touche_llm.retrieval.chatnoir import API_KEY_VARIABLE, ChatNoirDocuments, ChatNoirSettings

pytestmark = pytest.mark.usefixtures("chatnoir_alone")


def test_settings_never_show_the_key() -> None:
    settings = ChatNoirSettings(api_key=SecretStr(KEY))
    assert settings.api_key is not None and settings.api_key.get_secret_value() == KEY
    for shown in (repr(settings), str(settings), f"{settings!r:.999}", repr(settings.model_dump())):
        assert not holds_key(shown)
    assert not holds_key(settings.model_dump_json() + repr(settings.model_dump(mode="json")))
    assert "api_key" not in settings.model_dump(mode="json")
    assert ChatNoirSettings.model_validate(settings.model_dump(mode="json")) == ChatNoirSettings()


@pytest.mark.parametrize("given", [{"key": KEY}, [KEY]])
def test_a_key_in_the_wrong_form_is_not_quoted(given: Any) -> None:
    with pytest.raises(UsageError) as caught:
        ChatNoirSettings(api_key=given)
    assert not holds_key(str(caught.value))


async def test_searches_are_known_by_server_index_and_query(tmp_path: Path) -> None:
    server = FakeChatNoir(results(3))
    await search(server, tmp_path)
    with raises_at(UsageError, tmp_path / "chatnoir.sqlite", "'bottled water'", API_KEY_VARIABLE):
        await search_again(settings_for(server, tmp_path, api_key=None, index="clueweb12"))
    with raises_at(UsageError, tmp_path / "chatnoir.sqlite", "'other words'", API_KEY_VARIABLE):
        await search_again(settings_for(server, tmp_path, api_key=None), query="other words")
    server.url = "http://127.0.0.1:9"
    with raises_at(UsageError, tmp_path / "chatnoir.sqlite", "'bottled water'", API_KEY_VARIABLE):
        await search_again(settings_for(server, tmp_path, api_key=None))


def foreign_database(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE thesis (chapter)")
    database.commit()
    database.close()


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda path: path.write_text("My thesis, all of it. " * 100), "ChatNoir cache"),
        (foreign_database, "ChatNoir cache"),
        (Path.mkdir, "ChatNoir cache"),
    ],
)
def test_a_file_that_is_no_cache_of_ours_is_refused_and_kept(
    make: Callable[[Path], None], value: str, tmp_path: Path
) -> None:
    settings = settings_for(FakeChatNoir(url="http://127.0.0.1:9"), tmp_path)
    make(settings.cache)
    before = settings.cache.read_bytes() if settings.cache.is_file() else None
    with raises_at(DataError, settings.cache, value):
        ChatNoirDocuments(settings)
    assert before == (settings.cache.read_bytes() if settings.cache.is_file() else None)


@pytest.mark.parametrize("damage", ["'{}'", "x'ff'", "7"])
async def test_damaged_results_in_the_file_are_named(damage: str, tmp_path: Path) -> None:
    server = FakeChatNoir(results(3))
    await search(server, tmp_path)
    database = sqlite3.connect(tmp_path / "chatnoir.sqlite")
    database.execute(f"UPDATE searches SET page = {damage}")
    database.commit()
    database.close()
    with raises_at(DataError, tmp_path / "chatnoir.sqlite", "'bottled water'", "from 0"):
        await search_again(settings_for(server, tmp_path))
