"""Entries of an answer cache, and its SQLite file."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec.structs import astuple
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

from touche_llm.data.databases import (
    LOCK_SECONDS,
    DatabaseFormat,
    NamedDatabase,
    connect,
    connect_read_only,
    create_if_empty,
    has_format,
)
from touche_llm.data.json_records import Count, JsonRecord, JsonStruct, Malformed
from touche_llm.errors import DataError

# Makes it cheap to check whether there are resamples; older caches get it when they are opened for writing.
_INDEX_OF_SAMPLES = "CREATE INDEX IF NOT EXISTS samples ON entries (sample) WHERE sample > 0"
# With write-ahead logging a killed process loses nothing that it committed; only a crash of the machine could.
SYNCHRONOUS = "NORMAL"

ValueT = TypeVar("ValueT", bound=JsonRecord)


class EntryMetadata(JsonStruct, frozen=True, kw_only=True):
    """Key, kind and origin of a cache entry."""

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
    """Cache entry; a line of a cassette."""

    value: dict[str, Any]

    @property
    def row(self) -> tuple[Any, ...]:
        """The entry as a row of the table."""
        *metadata, value = astuple(self)
        return (*metadata, _to_json(value))

    def read(self, model: type[ValueT]) -> ValueT:
        """Return the value; raise DataError if it is not of this type."""
        try:
            return model.from_json(_to_json(self.value))
        except Malformed as error:
            raise DataError(f"entry {self.key}: not a valid {model.__name__}: {error}") from error


# In the order of the table.
COLUMNS = Entry.__struct_fields__
_TYPED_COLUMNS = ", ".join(
    f"{column} {'INTEGER' if column in ('prompt_version', 'sample') else 'TEXT'}" for column in COLUMNS[1:]
)
FORMAT = DatabaseFormat(
    noun="an answer cache",
    application=0x746C6C6D,  # "tllm"
    version=1,
    tables={"entries": COLUMNS},
    statements=(
        # Rows in order of arrival, with an index of the keys: the keys are random, and storing rows in their order
        # would take twice the work.
        f"CREATE TABLE entries (key TEXT PRIMARY KEY, {_TYPED_COLUMNS})",
        "CREATE INDEX origins ON entries (topic, document)",
        _INDEX_OF_SAMPLES,
    ),
)


def open_file(path: Path | None, read_only: bool = False) -> NamedDatabase:
    """Open the file of a cache; create it if it is missing. None opens a cache in memory.

    Raises:
        DataError: The file is not a cache.
        sqlite3.Error, OSError: The file cannot be opened.
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
            if not has_format(database, FORMAT, path):
                raise DataError(f"{path}: empty, not {FORMAT.noun}; use another file")
            return database
        create_if_empty(database, FORMAT, path)
        # SQLite does not wait for other processes when it switches the mode.
        retrying = Retrying(
            retry=retry_if_exception(_is_busy),
            stop=stop_after_delay(LOCK_SECONDS),
            wait=wait_random(0.01, 0.1),
            reraise=True,
        )
        retrying(database.execute, "PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
        retrying(database.execute, _INDEX_OF_SAMPLES)
    except BaseException:
        database.close()
        raise
    return database


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY


def _to_json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
