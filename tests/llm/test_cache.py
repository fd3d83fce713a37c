from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import random
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from msgspec.structs import replace

from tests.expect import raises_at
from touche_llm.data.sqlite import NamedDatabase
from touche_llm.errors import DataError, to_printable
from touche_llm.llm.answer import Answer
from touche_llm.llm.cache import FORMAT, Cache, CacheMode, Entry, EntryMetadata, Export
from touche_llm.llm.protocol import EngineInfo


def answer(text: str = "{}") -> Answer:
    return Answer(text=text, finish_reason="stop", tokens=[], prompt_tokens=1, completion_tokens=1)


def entry(digit: str = "a", text: str = "{}", **columns: Any) -> Entry:
    given = {
        "prompt": "comparative/judge",
        "prompt_version": 1,
        "prompt_hash": "h",
        "topic": "1",
        "document": "d",
    }
    return Entry(
        key=digit * 64,
        kind="answer",
        model="m",
        value=orjson.loads(answer(text).to_json()),
        **{**given, **columns},
    )


def metadata(digit: str) -> EntryMetadata:
    return EntryMetadata(key=digit * 64, kind="answer", model="m")


def test_the_first_of_two_answers_stays(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as one, Cache(tmp_path / "c.sqlite") as other:
        one.put(entry(text="first"))
        assert other.get("a" * 64, Answer) == answer("first")
        other.put(entry(text="second"))
        assert other.get("a" * 64, Answer) == answer("first")


def test_a_cassette_is_sorted_by_key_and_imports_to_the_same_entries(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        for digit in "c", "a", "b":
            cache.put(entry(digit, text=f"{digit} é"))
        assert cache.export_cassette(tmp_path / "c.jsonl") == Export(entries=3, damaged=[], gaps=0)
        exported = list(cache.iterate_entries())
    lines = (tmp_path / "c.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line)["key"][0] for line in lines] == ["a", "b", "c"]
    with Cache(tmp_path / "d.sqlite") as cache:
        assert cache.import_cassette(tmp_path / "c.jsonl") == (3, 0)
        assert cache.import_cassette(tmp_path / "c.jsonl") == (0, 3)
        assert list(cache.iterate_entries()) == exported
        cache.export_cassette(tmp_path / "d.jsonl")
    assert (tmp_path / "d.jsonl").read_bytes() == (tmp_path / "c.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b"{", ""),
        (b'{"key": "%s\\n", "kind": "answer", "model": "m", "value": {}}' % (b"a" * 64), "$.key"),
        (
            b'{"key": "%s", "kind": "answer", "model": "m", "value": {}, "x": 1}' % (b"a" * 64),
            "`x`",
        ),
    ],
)
def test_a_bad_cassette_line_is_named_and_nothing_is_imported(
    tmp_path: Path, line: bytes, field: str
) -> None:
    good = entry("b").to_json()
    (tmp_path / "c.jsonl").write_bytes(good + b"\n" + line + b"\n")
    with Cache(tmp_path / "c.sqlite") as cache:
        with pytest.raises(DataError) as raised:
            cache.import_cassette(tmp_path / "c.jsonl")
        assert raised.value.location == f"{tmp_path / 'c.jsonl'}:2" and field in str(raised.value)
        assert not list(cache.iterate_entries())


@pytest.mark.parametrize("imported", [entry(text="other"), replace(entry(text="ours"), kind="fit")])
def test_a_cassette_that_contradicts_the_cache_is_not_imported(
    tmp_path: Path, imported: Entry
) -> None:
    stored = entry(text="ours")
    (tmp_path / "c.jsonl").write_bytes(imported.to_json())
    with Cache(tmp_path / "c.sqlite") as cache:
        cache.put(stored)
        with pytest.raises(DataError, match="a" * 64) as raised:
            cache.import_cassette(tmp_path / "c.jsonl")
        assert raised.value.location == str(tmp_path / "c.jsonl") and str(cache.path) in str(
            raised.value
        )
        assert list(cache.iterate_entries()) == [stored]


def test_a_disk_on_which_no_cache_can_be_opened_is_no_wrong_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = sqlite3.OperationalError("from SQLite")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    read_only = OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))
    for error, advice in ((full, "free some space"), (read_only, "cache.file")):
        monkeypatch.setattr("touche_llm.llm.cache.open_file", Mock(side_effect=error))
        with raises_at(DataError, tmp_path / "c.sqlite", advice) as raised:
            Cache(tmp_path / "c.sqlite")
        assert "not a" not in str(raised.value)


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("CREATE TABLE documents (id TEXT)", ""),
        (f"PRAGMA application_id = {FORMAT.application}; PRAGMA user_version = 99;", "99"),
        (None, ""),
    ],
    ids=["of another program", "of another version", "no database"],
)
def test_another_file_is_refused_and_not_changed(
    tmp_path: Path, script: str | None, named: str
) -> None:
    path = tmp_path / "other.sqlite"
    if script is None:
        path.write_text("topics and passages, but not a database " * 10)
    else:
        with closing(sqlite3.connect(path)) as database:
            database.executescript(script)
    before = path.read_bytes()
    for mode in (CacheMode.REUSE, CacheMode.REPLAY):
        with raises_at(DataError, path, named):
            Cache(path, mode)
    assert path.read_bytes() == before


def test_replay_writes_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        cache.put(entry())
    with Cache(tmp_path / "c.sqlite", CacheMode.REPLAY) as cache:
        assert cache.get("a" * 64, Answer) == answer()
        cache.put(entry("b"))
        assert cache.get("b" * 64, Answer) is None


def _write(path: Path, first: int) -> None:
    with Cache(path) as cache:
        for number in range(first, first + 200):
            cache.put(replace(entry(), key=f"{number:064x}"))


@pytest.mark.slow
def test_several_processes_can_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=_write, args=(tmp_path / "c.sqlite", first))
        for first in (0, 100, 200)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    with Cache(tmp_path / "c.sqlite") as cache:
        assert len(list(cache.iterate_entries())) == 400


async def test_values_of_one_turn_are_stored_when_the_calls_return(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    seen: list[list[bool]] = []
    with Cache(path) as cache, Cache(path) as other:

        async def store(digit: str) -> None:
            value = answer(text=digit)
            assert await cache.store(metadata(digit), value) is value
            seen.append([other.get(each * 64, Answer) is not None for each in "abc"])

        await asyncio.gather(*map(store, "abc"))
        assert seen == [[True, True, True]] * 3
        # The first value stays and is returned.
        assert (await other.store(metadata("a"), answer(text="late"))).text == "a"


async def test_a_failed_commit_is_an_error_for_every_waiting_task(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"

    def authorize(action: int, what: str | None, *_: object) -> int:
        is_denied = action == sqlite3.SQLITE_TRANSACTION and what == "COMMIT"
        return sqlite3.SQLITE_DENY if is_denied else sqlite3.SQLITE_OK

    cache = Cache(path)
    cache._database.set_authorizer(authorize)
    results = await asyncio.wait_for(
        asyncio.gather(
            *(cache.store(metadata(digit), answer()) for digit in "ab"), return_exceptions=True
        ),
        30,
    )
    assert [type(each) for each in results] == [sqlite3.DatabaseError] * 2
    cache._database.set_authorizer(None)
    # Later values are stored as usual.
    await cache.store(metadata("c"), answer())
    cache.close()
    with Cache(path, CacheMode.REPLAY) as again:
        assert [again.get(each * 64, Answer) is not None for each in "abc"] == [False, False, True]


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_cache_that_is_deleted_while_it_is_used_is_noticed_at_the_next_answer(
    tmp_path: Path, replaced: bool
) -> None:
    path = tmp_path / "answers.sqlite"
    cache = Cache(path)
    await cache.store(metadata("a"), answer())
    for each in tmp_path.iterdir():
        each.unlink()
    if replaced:
        Cache(path).close()
    with pytest.raises(DataError, match=str(path)):
        await cache.store(metadata("b"), answer())
    with pytest.raises(DataError, match=str(path)):
        cache.put(entry("c"))
    with pytest.raises(DataError, match=str(path)):
        cache.close()
    with pytest.raises(sqlite3.ProgrammingError):
        cache._database.execute("SELECT 1")
    with Cache(path) as again:
        assert not list(again.iterate_entries())


def test_a_damaged_value_is_named_by_its_key(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        cache.put(entry())
        for damaged in ("'{'", "'7'", "'{}'"):
            cache._database.execute(f"UPDATE entries SET value = {damaged}")
            with pytest.raises(DataError, match=f"{'a' * 64}.* Answer"):
                cache.get("a" * 64, Answer)


def damage(path: Path, column: str, value: object, digit: str = "b") -> None:
    """Replace a column of the entry with this key, as a flipped byte would."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"UPDATE entries SET {column} = ? WHERE key = ?", (value, digit * 64))
        database.commit()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("value", "{"),
        ("value", "[]"),
        ("value", None),
        ("value", 7),
        ("value", b"\xff{}"),
        ("kind", "x"),
    ],
)
def test_a_damaged_entry_is_an_error_that_names_cache_and_key(
    tmp_path: Path, column: str, value: object
) -> None:
    path = tmp_path / "c.sqlite"
    with Cache(path) as cache:
        cache.put(entry("b"))
    damage(path, column, value)
    with Cache(path) as cache, raises_at(DataError, path, "b" * 64, "cache forget"):
        cache.get("b" * 64, {"answer": Answer})


@pytest.mark.parametrize("column", ["model", "kind", "topic", "value"])
def test_a_column_that_is_not_utf8_is_a_damaged_entry(tmp_path: Path, column: str) -> None:
    path = tmp_path / "c.sqlite"
    with Cache(path) as cache:
        cache.put(entry("b"))
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"UPDATE entries SET {column} = CAST(x'227b7dff' AS TEXT)")
        database.commit()
    with Cache(path, CacheMode.REPLAY) as cache:
        with raises_at(DataError, path, "b" * 64):
            list(cache.iterate_entries())
        if column == "value":
            # Values are records of either kind.
            for model in (Answer, EngineInfo):
                with raises_at(DataError, path, "b" * 64, "cache forget"):
                    cache.get("b" * 64, model)
        assert cache.export_cassette(tmp_path / "c.jsonl").damaged == ["b" * 64]


def test_damaged_entries_are_left_out_of_a_cassette_and_can_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    with Cache(path) as cache:
        for digit in "abcd":
            cache.put(entry(digit))
    damage(path, "value", "{", "b")
    damage(path, "key", "c" * 63 + "x", "c")
    with Cache(path) as cache:
        export = cache.export_cassette(tmp_path / "c.jsonl")
        assert export == Export(entries=2, damaged=["b" * 64, "c" * 63 + "x"], gaps=0)
        assert [cache.remove(key) for key in (*export.damaged, "e" * 64)] == [True, True, False]
        assert cache.export_cassette(tmp_path / "d.jsonl") == Export(entries=2, damaged=[], gaps=0)
    assert (tmp_path / "d.jsonl").read_bytes() == (tmp_path / "c.jsonl").read_bytes()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a cache with 400 entries."""
    path = tmp_path_factory.mktemp("many") / "c.sqlite"
    with Cache(path) as cache:
        for number in range(400):
            key = sha256(b"%d" % number).hexdigest()
            cache.put(replace(entry(text="grade " * (number % 40)), key=key))
    return path.read_bytes()


@pytest.mark.parametrize("seed", range(12))
def test_a_cache_with_flipped_bytes_is_exported_and_repaired(
    tmp_path: Path, many: bytes, seed: int
) -> None:
    rng = random.Random(seed)
    content = bytearray(many)
    # Bytes of the first page describe the tables.
    for place in rng.sample(range(4096, len(content)), k=12):
        content[place] ^= 1 << rng.randrange(8)
    path = tmp_path / "c.sqlite"
    path.write_bytes(content)

    with Cache(path, CacheMode.REPLAY) as cache:
        export = cache.export_cassette(tmp_path / "c.jsonl")
    assert export.entries >= 350
    # A page has fewer than 30 entries.
    assert 400 - 30 * export.gaps <= export.entries + len(export.damaged) <= 400
    with Cache(tmp_path / "new.sqlite") as cache:
        assert cache.import_cassette(tmp_path / "c.jsonl") == (export.entries, 0)
    if export.gaps == 0:
        with Cache(path) as cache:
            assert all(cache.remove(to_printable(key)) for key in export.damaged)
            assert cache.export_cassette(tmp_path / "again.jsonl").damaged == []
        assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "c.jsonl").read_bytes()


def test_a_failing_disk_is_no_damage_that_an_export_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = sqlite3.OperationalError("disk I/O error")
    failing.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
    (tmp_path / "c.jsonl").write_text("before")
    with Cache(tmp_path / "c.sqlite") as cache:
        cache.put(entry())
        with monkeypatch.context() as patch:
            patch.setattr(NamedDatabase, "execute", Mock(side_effect=failing))
            with pytest.raises(sqlite3.OperationalError) as raised:
                cache.export_cassette(tmp_path / "c.jsonl")
    assert raised.value.__notes__ == [str(tmp_path / "c.sqlite")]
    assert (tmp_path / "c.jsonl").read_text() == "before"


def test_pages_that_cannot_be_read_are_left_out_of_a_cassette(tmp_path: Path, many: bytes) -> None:
    content = bytearray(many)
    for page in (20, 21, 30):
        content[4096 * page : 4096 * (page + 1)] = bytes(4096)
    path = tmp_path / "c.sqlite"
    path.write_bytes(content)
    with Cache(path, CacheMode.REPLAY) as cache:
        export = cache.export_cassette(tmp_path / "c.jsonl")
    assert 250 < export.entries < 400 and 0 < export.gaps <= 3 and export.damaged == []
