"""SQLite files from outside, and those that are opened for reading only."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Event

import pytest

from touche_llm.data import databases
from touche_llm.data.databases import NamedDatabase, connect, connect_read_only


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database where SQLite cannot create the index of a log, as on a read-only file system."""

    def refuse(location: str) -> NamedDatabase:
        connection = connect(location)
        if "immutable" not in location:
            connection.set_progress_handler(lambda: 1, 1)
        return connection

    path = tmp_path / "answers.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (value)")
        connection.execute("INSERT INTO t VALUES (7)")
        connection.commit()
    monkeypatch.setattr(databases, "connect", refuse)
    return path


def test_a_database_is_read_where_nothing_can_be_written(database: Path) -> None:
    with closing(connect_read_only(database)) as connection:
        assert connection.execute("SELECT value FROM t").fetchall() == [(7,)]


def test_a_database_with_a_log_is_not_read_without_it(database: Path) -> None:
    Path(f"{database}-wal").write_bytes(b"a log that may hold answers")
    with pytest.raises(sqlite3.OperationalError):
        connect_read_only(database)


def test_a_database_may_be_closed_while_another_thread_reads_it(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "texts.sqlite")) as connection:
        connection.execute("CREATE TABLE t (value)")
        connection.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(2000)])
        connection.commit()

    def read_until_closed(reader: NamedDatabase, started: Event) -> int:
        sizes: set[int] = set()
        with suppress(sqlite3.ProgrammingError):
            while True:
                sizes.add(len(reader.query("SELECT value FROM t WHERE value < 2000")))
                started.set()
        (size,) = sizes
        return size

    with ThreadPoolExecutor() as pool:
        for _ in range(20):
            started, reader = Event(), connect((tmp_path / "texts.sqlite").as_uri())
            reading = pool.submit(read_until_closed, reader, started)
            started.wait()
            reader.close()
            assert reading.result() == 2000
