"""SQLite files: connections whose errors name the file and the cause, and the check of their format."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeVar

from touche_llm.errors import DataError, describe_os_error

ResultT = TypeVar("ResultT")

# Wait for another process that writes; each write takes well under a millisecond.
LOCK_SECONDS = 60.0
# Max bytes of a value, since the file may be untrusted: the longest document has 16 MiB.
MAX_VALUE = 2**25


@dataclass(frozen=True, slots=True)
class DatabaseFormat:
    """Format of a kind of SQLite file of this program: its noun, `PRAGMA application_id`, `user_version` and tables."""

    noun: str
    application: int
    version: int
    statements: Sequence[str]


class NamedDatabase(sqlite3.Connection):
    """Connection that adds the path of its file to its errors, as a note.

    Several threads may query and close it.
    """

    path: Path | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Open the file; see the base class."""
        super().__init__(*arguments, **options)
        self._lock = Lock()

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """Run a statement; see the base class."""
        return self._run(super().execute, arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        """Run a statement once for each row; see the base class."""
        return self._run(super().executemany, arguments)

    def __exit__(self, *arguments: Any) -> Literal[False]:
        """Commit, or roll back after an error; see the base class."""
        return self._run(super().__exit__, arguments)

    def _run(self, statement: Callable[..., ResultT], arguments: tuple[Any, ...]) -> ResultT:
        try:
            return statement(*arguments)
        except sqlite3.Error as error:
            raise add_path(error, self.path) from None

    def query(self, *arguments: Any) -> list[Any]:
        """Run a statement and return all its rows, with no call of another thread in between."""
        with self._lock:
            return self.execute(*arguments).fetchall()

    def close(self) -> None:
        """Close the file once no query is running: SQLite fails hard if it is closed under one."""
        with self._lock:
            super().close()


def connect(location: str) -> NamedDatabase:
    """Open a database by path or URI, in autocommit mode."""
    # The library opens corpora in the caller's thread and uses them in another.
    database = sqlite3.connect(
        location,
        timeout=LOCK_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        uri=location.startswith("file:"),
        factory=NamedDatabase,
    )
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
    return database


def has_format(database: sqlite3.Connection, form: DatabaseFormat, path: Path | None) -> bool:
    """Return whether a database has a format, False if it is empty.

    Raise DataError if it is of another one.
    """
    # One statement sees one state of the file: another process may be creating its tables.
    application, version, entries = database.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)"
        " FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    if application != form.application:
        if entries:
            raise DataError(f"{path}: not {form.noun} of this program; use another file")
        return False
    if version != form.version:
        raise DataError(
            f"{path}: {form.noun} of version {version}, but this program reads version {form.version}; use another file"
        )
    return True


def create_if_empty(database: sqlite3.Connection, form: DatabaseFormat, path: Path | None) -> None:
    """Check that a database has a format; create its tables if it is empty.

    Errors are those of `has_format`.
    """
    if has_format(database, form, path):
        return
    database.execute("BEGIN IMMEDIATE")
    # Checked again with the file locked: another process may have created the tables meanwhile.
    if not has_format(database, form, path):
        for statement in form.statements:
            database.execute(statement)
        database.execute(f"PRAGMA application_id = {form.application}")
        database.execute(f"PRAGMA user_version = {form.version}")
    database.execute("COMMIT")


def add_path(error: sqlite3.Error, path: Path | None) -> sqlite3.Error:
    """Add the path of the database to an error of SQLite, as a note, unless it has one.

    Return the error.
    """
    if path is not None and not getattr(error, "__notes__", ()):
        error.add_note(str(path))
    return error


def describe_database_error(error: sqlite3.Error) -> str:
    """Return `file: cause` of an error of SQLite, with advice if there is any."""
    where = "".join(f"{note}: " for note in getattr(error, "__notes__", ())[:1])
    return f"{where}{_describe_cause(error)}"


def describe_opening_error(
    path: Path, noun: str, setting: str, error: sqlite3.Error | OSError
) -> str:
    """Return why a file of this kind, which a setting names, cannot be opened."""
    cause = _describe_cause(error) if isinstance(error, sqlite3.Error) else describe_os_error(error)
    return f"{path}: cannot be opened as {noun}: {cause}; name another file, in a writable folder, with `{setting}`"


_ADVICE = {
    sqlite3.SQLITE_CORRUPT: "; export what is readable of an answer cache with `touche-llm cache export`, and import "
    "it into a new one",
    sqlite3.SQLITE_FULL: "; free some space and run the same command again",
    sqlite3.SQLITE_IOERR: ": the disk is full or failing, or the limit on the size of a file (`ulimit -f`) is reached",
    sqlite3.SQLITE_CANTOPEN: ": no right to write there, or too many open files (`ulimit -n`)",
}


def _describe_cause(error: sqlite3.Error) -> str:
    return f"{error}{_ADVICE.get(getattr(error, 'sqlite_errorcode', 0) & 0xFF, '')}"
