"""The file of an answer cache: its entries and its table, and how it is opened."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec.structs import astuple
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

from touche_llm.data.databases import LOCK_SECONDS, NamedDatabase, check_schema, connect, connect_read_only
from touche_llm.data.json_records import Count, JsonRecord, JsonStruct, Malformed
from touche_llm.errors import DataError

# `PRAGMA user_version` of the file.
SCHEMA_VERSION = 1
# `PRAGMA application_id`, the bytes "tllm": tells our files from other SQLite files.
_APPLICATION = 0x746C6C6D
# So that it is known at once whether there are any; older caches get it when they are opened to write.
_INDEX_OF_SAMPLES = "CREATE INDEX IF NOT EXISTS samples ON entries (sample) WHERE sample > 0"

ValueT = TypeVar("ValueT", bound=JsonRecord)


class EntryMetadata(JsonStruct, frozen=True, kw_only=True):
    """What an entry says beside its value: its key, what it is, and what it was asked for."""

    key: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    kind: str
    model: str
    prompt: str | None = None
    prompt_version: Count | None = None
    prompt_hash: str | None = None
    topic: str | None = None
    document: str | None = None
    sample: Count = 0


class Entry(EntryMetadata, frozen=True, kw_only=True):
    """One line of a cassette: something that an engine said, and what it was asked for."""

    value: dict[str, Any]

    @property
    def row(self) -> tuple[Any, ...]:
        """As it is stored."""
        *heading, value = astuple(self)
        return (*heading, _text(value))

    def read(self, model: type[ValueT]) -> ValueT:
        """The value; raises DataError where it is none."""
        try:
            return model.from_json(_text(self.value))
        except Malformed as error:
            raise DataError(f"entry {self.key} does not hold a valid {model.__name__}: {error}") from error


# In their order in the table.
COLUMNS = Entry.__struct_fields__


def open_file(path: Path | None, read_only: bool = False) -> NamedDatabase:
    """Open the cache in a file, which is made unless it is there; None for one in memory.

    Raises:
        DataError: the file is not a cache.
        sqlite3.Error, OSError: it cannot be opened.
    """
    if path is None:
        database = connect(":memory:")
    elif read_only:
        database = connect_read_only(path)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        database = connect(path.absolute().as_uri())
    try:
        if read_only:
            if not _is_ours(database, path):
                raise DataError(f"{path}: not an answer cache of this program")
            return database
        if not _is_ours(database, path):
            # Looked at again with the file locked: another process may just have made the same cache.
            database.execute("BEGIN IMMEDIATE")
            if not _is_ours(database, path):
                _create(database, path)
            database.execute("COMMIT")
        # With write-ahead logging a killed process loses nothing that it committed; only a crash of the machine could.
        # The switch does not wait for other processes by itself.
        lock_run = retry_if_exception(_is_busy)
        retrying = Retrying(
            retry=lock_run, stop=stop_after_delay(LOCK_SECONDS), wait=wait_random(0.01, 0.1), reraise=True
        )
        retrying(database.execute, "PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        retrying(database.execute, _INDEX_OF_SAMPLES)
    except BaseException:
        database.close()
        raise
    return database


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY


def _is_ours(database: sqlite3.Connection, path: Path | None) -> bool:
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if application == _APPLICATION and version != SCHEMA_VERSION:
        raise DataError(f"{path}: cache of version {version}, this program reads {SCHEMA_VERSION}")
    if application != _APPLICATION:
        return False
    check_schema(database, "entries", COLUMNS, path)
    return True


def _create(database: sqlite3.Connection, path: Path | None) -> None:
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables:
        raise DataError(f"{path}: not an answer cache of this program")
    columns = ", ".join(
        f"{column} {'INTEGER' if column in ('prompt_version', 'sample') else 'TEXT'}" for column in COLUMNS[1:]
    )
    # Rows in the order in which they come, with an index of their keys: keys are random, and rows between those that
    # are there already would be twice the work.
    database.execute(f"CREATE TABLE entries (key TEXT PRIMARY KEY, {columns})")
    database.execute("CREATE INDEX origins ON entries (topic, document)")
    database.execute(_INDEX_OF_SAMPLES)
    database.execute(f"PRAGMA application_id = {_APPLICATION}")
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _text(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
