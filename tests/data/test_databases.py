"""SQLite files that several threads use."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Event

from touche_llm.data.sqlite import NamedDatabase, connect


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
