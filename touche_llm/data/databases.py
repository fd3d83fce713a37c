"""SQLite databases whose errors name their file and the cause."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from touche_llm.errors import DataError, describe_os_error

# Descriptors that SQLite needs for a database: its file, the log beside it and the log's index.
_DESCRIPTORS = 3
# Waiting for another process that writes; each of its writes takes well under a millisecond.
LOCK_SECONDS = 60.0
# Bytes of one value, in a file that may come from elsewhere: the longest document has 16 MiB.
MAX_VALUE = 2**25


class NamedDatabase(sqlite3.Connection):
    """A connection that adds the path of its file to its errors, as a note."""

    path: Path | None = None

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """Run a statement, as the base class does."""
        try:
            return super().execute(*arguments)
        except sqlite3.Error as error:
            raise add_path(error, self.path) from None

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        """Run a statement once for each row, as the base class does."""
        try:
            return super().executemany(*arguments)
        except sqlite3.Error as error:
            raise add_path(error, self.path) from None


def connect(place: str) -> NamedDatabase:
    """Open a database by its path or URI, with transactions begun and ended by statements alone."""
    uri = place.startswith("file:")
    database = sqlite3.connect(place, timeout=LOCK_SECONDS, isolation_level=None, uri=uri, factory=NamedDatabase)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
    return database


def check_schema(database: sqlite3.Connection, table: str, columns: Sequence[str], path: Path | None) -> None:
    """Raise DataError where a file has views or triggers, which could run for ever, or other columns in a table."""
    (programs,) = database.execute("SELECT count(*) FROM sqlite_master WHERE type IN ('view', 'trigger')").fetchone()
    found = [(name, hidden) for _, name, *_, hidden in database.execute(f"PRAGMA table_xinfo({table})")]
    if programs or found != [(column, 0) for column in columns]:
        raise DataError(f"{path}: has views, triggers or columns that this program does not make; use another file")


def connect_read_only(path: Path) -> NamedDatabase:
    """Open a database without writing anything, also where nothing can be written."""
    place = path.absolute().as_uri()
    database = connect(f"{place}?mode=ro")
    try:
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        database.close()
        if path.with_name(f"{path.name}-wal").exists():
            raise
        # SQLite wants a file of its own beside one with write-ahead logging, unless told that nobody changes it.
        database = connect(f"{place}?mode=ro&immutable=1")
    return database


def add_path(error: sqlite3.Error, path: Path | None) -> sqlite3.Error:
    """Return an error of SQLite with the path of the database as its note, unless it has one."""
    if path is not None and not getattr(error, "__notes__", ()):
        error.add_note(str(path))
    return error


def describe_database_error(error: sqlite3.Error) -> str:
    """Return `file: cause` of an error of SQLite, with what to do where that is known."""
    where = "".join(f"{note}: " for note in getattr(error, "__notes__", ())[:1])
    return f"{where}{_cause(error)}"


def _cause(error: sqlite3.Error) -> str:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return f"{error}; free some space and run the same command again"
        case sqlite3.SQLITE_IOERR:
            return f"{error}: the disk is full or failing, or the largest size of a file (`ulimit -f`) is reached"
        case sqlite3.SQLITE_CANTOPEN:
            # SQLite does not say why.
            try:
                with ExitStack() as opened:
                    for _ in range(_DESCRIPTORS):
                        opened.enter_context(open(os.devnull, "rb"))
            except OSError as cause:
                cause.filename = None
                return describe_os_error(cause)
    return str(error)
