"""Answer cache: one SQLite file, safe for several processes, durable per answer."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec.structs import asdict, astuple

from touche_llm.data.files import iterate_records, open_atomic, parse_record
from touche_llm.data.records import Count, JsonRecord, JsonStruct
from touche_llm.data.sqlite import (
    LOCK_SECONDS,
    DatabaseFormat,
    NamedDatabase,
    connect,
    create_if_empty,
    describe_opening_error,
    has_format,
)
from touche_llm.errors import DataError, UsageError
from touche_llm.llm.answer import OUTCOMES

# With write-ahead logging a killed process loses nothing that it committed; only a crash of the
# machine could.
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
        return (*metadata, msgspec.json.encode(value).decode())

    def read(self, model: type[ValueT]) -> ValueT:
        """Return the value; raise DataError if it is not of this type."""
        return parse_record(
            msgspec.json.encode(self.value), model, f"entry {self.key}", f"a valid {model.__name__}"
        )


# In the order of the table.
COLUMNS = Entry.__struct_fields__
_TYPED_COLUMNS = ", ".join(
    f"{column} {'INTEGER' if column in ('prompt_version', 'sample') else 'TEXT'}"
    for column in COLUMNS[1:]
)
FORMAT = DatabaseFormat(
    noun="an answer cache",
    application=0x746C6C6D,  # "tllm"
    version=1,
    statements=(
        # Rows in order of arrival, with an index of the keys: the keys are random, and storing rows
        # in their order would take twice the work.
        f"CREATE TABLE entries (key TEXT PRIMARY KEY, {_TYPED_COLUMNS})",
        "CREATE INDEX origins ON entries (topic, document)",
    ),
)


def open_file(path: Path | None, read_only: bool = False) -> NamedDatabase:
    """Open the file of a cache; create it if it is missing. None opens a cache in memory."""
    if path is not None and not read_only:
        path.parent.mkdir(parents=True, exist_ok=True)
    mode = "?mode=ro" if read_only else ""
    database = connect(":memory:" if path is None else path.absolute().as_uri() + mode)
    try:
        if read_only:
            if not has_format(database, FORMAT, path):
                raise DataError(f"{path}: empty, not {FORMAT.noun}; use another file")
            return database
        create_if_empty(database, FORMAT, path)
        # 20 ms, which commands without a cache do without.
        from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

        # SQLite does not wait for other processes when it switches the mode.
        retrying = Retrying(
            retry=retry_if_exception(
                lambda error: getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY
            ),
            stop=stop_after_delay(LOCK_SECONDS),
            wait=wait_random(0.01, 0.1),
            reraise=True,
        )
        retrying(database.execute, "PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
    except BaseException:
        database.close()
        raise
    return database


# Kind and value.
_Row = tuple[str, str]
# Type of a value, or the types by kind of entry.
ValueType = type[ValueT] | Mapping[str, type[ValueT]]


class CacheMode(StrEnum):
    """Use of the cache."""

    REUSE = "reuse"  # take answers from the cache; request the others and store them
    REPLAY = "replay"  # take answers from the cache; a missing one is an error; no engine is needed
    REFRESH = "refresh"  # request all answers and replace those in the cache
    OFF = "off"  # neither read nor write the cache


class Cache(AbstractContextManager["Cache"]):
    """Cache entries by key. Use as a context manager, or call `close`."""

    def __init__(
        self,
        path: Path,
        mode: CacheMode = CacheMode.REUSE,
        observe: Callable[[str], None] | None = None,
    ) -> None:
        """Open a cache.

        Args:
            path: An SQLite file, or, for replay only, a cassette (`.jsonl`).
            mode: Use of the cache.
            observe: Called with the key of each entry that `get` finds.
        """
        self.path = path
        self.mode = mode
        self._observe = observe
        if path.is_dir() and mode is not CacheMode.OFF:
            raise UsageError(
                f"{path}: a folder; give a file as `cache.file`, such as {path / 'answers.sqlite'}"
            )
        is_cassette = path.suffix == ".jsonl"
        if is_cassette and mode is not CacheMode.REPLAY:
            raise UsageError(
                f"{path}: a cassette can only be replayed; import it into an .sqlite cache to add to it"
            )
        if mode is CacheMode.REPLAY and not path.exists():
            raise UsageError(f"{path}: no such cache to replay; name one with `cache.file`")
        try:
            is_in_memory = is_cassette or mode is CacheMode.OFF
            self._database = (
                open_file(None) if is_in_memory else open_file(path, mode is CacheMode.REPLAY)
            )
        except (sqlite3.Error, OSError) as error:
            raise DataError(
                describe_opening_error(path, FORMAT.noun, "cache.file", error)
            ) from error
        self._database.path = path
        self._opened = None if self._is_read_only else path.stat()
        # Rows to store at the end of this turn of the event loop.
        self._pending: list[tuple[tuple[Any, ...], asyncio.Future[_Row | None]]] = []
        if is_cassette:
            self.import_cassette(path)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and move the write-ahead log into it, since copies of the file leave the log behind."""
        self._store_pending()
        with closing(self._database):
            self._check_file()
            if not self._is_read_only and not self._database.in_transaction:
                # Closing does this too, unless another process is reading; a passive checkpoint
                # waits for none.
                self._database.execute("PRAGMA wal_checkpoint(PASSIVE)")

    @property
    def _is_read_only(self) -> bool:
        return self.mode in (CacheMode.REPLAY, CacheMode.OFF)

    def _check_file(self) -> None:
        """Raise DataError if the file was deleted or replaced since it was opened: new entries would be lost."""
        if self._opened is not None and not (
            self.path.exists() and os.path.samestat(self._opened, self.path.stat())
        ):
            raise DataError(
                f"{self.path}: the cache was deleted or replaced while it was in use; run the same command again to "
                "store the answers in the present file"
            )

    def get(self, key: str, model: ValueType[ValueT], *, refreshed: bool = False) -> ValueT | None:
        """Return the value of an entry, or None if there is none.

        In mode `off` there is none; in mode `refresh` an entry counts only if the caller has stored
        it (`refreshed`).
        """
        if self.mode is CacheMode.OFF or (self.mode is CacheMode.REFRESH and not refreshed):
            return None
        row = self._fetch_row(key)
        if row is None:
            return None
        if self._observe is not None:
            self._observe(key)
        return self._parse(key, row, model)

    def put(self, entry: Entry) -> None:
        """Store an entry at once.

        The first value stored under a key stays, also if another process stored it, so that a
        replay finds what the run used. In mode `refresh` the new value replaces it; in modes
        `replay` and `off` nothing is stored.
        """
        if not self._is_read_only:
            self._insert([entry.row])
            self._check_file()

    async def store(
        self, metadata: EntryMetadata, value: ValueT, model: ValueType[ValueT] | None = None
    ) -> ValueT:
        """Store an entry like `put`, in one transaction with the others of this turn of the event loop.

        Return the value, or the one already stored, of the type `model` as for `get`; raise why it
        was not stored.
        """
        if self._is_read_only:
            return value
        loop = asyncio.get_running_loop()
        if not self._pending:
            loop.call_soon(self._store_pending)
        done: asyncio.Future[_Row | None] = loop.create_future()
        self._pending.append(((*astuple(metadata), value.to_json().decode()), done))
        stored = await done
        return value if stored is None else self._parse(metadata.key, stored, model or type(value))

    def _store_pending(self) -> None:
        """Store the rows of this turn of the event loop.

        Pass rows already stored to the tasks that wait.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return
        stored: dict[str, _Row | None] = {}
        failed: Exception | None = None
        try:
            self._database.execute("BEGIN IMMEDIATE")
            if self._insert([row for row, _ in pending]) < len(pending):
                # Read within the transaction: another process may replace the rows as soon as it
                # has ended.
                stored = {key: self._fetch_row(key) for (key, *_), _ in pending}
            self._database.execute("COMMIT")
            self._check_file()
        # Whatever the error is, every waiting task must receive it.
        except Exception as error:
            failed = error
            # The error to report is why the answers could not be stored.
            with suppress(sqlite3.Error):
                self._database.rollback()
        for (key, *_), waiting in pending:
            if waiting.done():
                continue
            if failed is None:
                waiting.set_result(stored.get(key))
            else:
                waiting.set_exception(failed)

    def forget(self, keys: Iterable[str], *, kind: str | None = None) -> None:
        """Remove the entries with these keys, or those of them with this kind.

        Nothing if the cache is read-only.
        """
        if self._is_read_only:
            return
        rows = [(key, kind) for key in keys]
        self._database.executemany(
            "DELETE FROM entries WHERE key = ?1 AND kind = coalesce(?2, kind)", rows
        )

    def find(self, kind: str, **columns: Any) -> list[Entry]:
        """Return the entries of a kind whose columns have these values, by key."""
        where = " AND ".join(["kind = ?", *(f"{column} IS ?" for column in columns)])
        rows = self._database.execute(
            f"SELECT * FROM entries WHERE {where} ORDER BY key", (kind, *columns.values())
        )
        return [self._to_entry(row) for row in rows]

    def iterate_entries(self) -> Iterator[Entry]:
        """Yield all entries, by key."""
        yield from map(self._to_entry, self._database.execute("SELECT * FROM entries ORDER BY key"))

    def export_cassette(self, path: Path) -> int:
        """Write all entries as JSON Lines, sorted by key; return their number."""
        count = 0
        with open_atomic(path) as stream:
            for entry in self.iterate_entries():
                columns = {
                    column: value for column, value in asdict(entry).items() if value is not None
                }
                stream.write(msgspec.json.encode(columns) + b"\n")
                count += 1
        return count

    def import_cassette(self, path: Path) -> tuple[int, int]:
        """Add the entries of a cassette, all or none.

        Return how many were new and how many were stored already.

        Under one key an answer replaces a stored failure, as when failures are sent again, and the
        first of two failures stays, so that the caches of several machines can be merged. Two
        different answers are an error, since a run was made with each.
        """
        new = known = 0
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for entry in iterate_records(path, Entry, "cache entries"):
                kind, value = self._fetch_row(entry.key) or ("unusable", "")
                if not value or (kind, entry.kind) == ("unusable", "answer"):
                    self._insert([entry.row], "REPLACE")
                    new += 1
                    continue
                known += 1
                is_failure = entry.kind == "unusable" and kind in OUTCOMES
                if not is_failure and (kind, msgspec.json.decode(value)) != (
                    entry.kind,
                    entry.value,
                ):
                    problem = (
                        f"key {entry.key}: {self.path} holds another value; import into a new cache"
                    )
                    raise DataError(f"{path}: {problem}")
        return new, known

    def _insert(self, rows: Sequence[tuple[Any, ...]], conflict: str | None = None) -> int:
        """Insert rows of metadata and JSON.

        Return the number of rows that were inserted or replaced.
        """
        conflict = conflict or ("REPLACE" if self.mode is CacheMode.REFRESH else "IGNORE")
        marks = ",".join("?" * len(COLUMNS))
        return self._database.executemany(
            f"INSERT OR {conflict} INTO entries VALUES ({marks})", rows
        ).rowcount

    def _to_entry(self, row: tuple[Any, ...]) -> Entry:
        return Entry(
            **dict(zip(COLUMNS[:-1], row, strict=False)), value=msgspec.json.decode(row[-1])
        )

    def _fetch_row(self, key: str) -> _Row | None:
        row = self._database.execute(
            "SELECT kind, value FROM entries WHERE key = ?", (key,)
        ).fetchone()
        return cast(_Row | None, row)

    def _parse(self, key: str, row: _Row, model: ValueType[ValueT]) -> ValueT:
        kind, text = row
        value_type = model.get(kind) if isinstance(model, Mapping) else model
        if value_type is None:
            raise DataError(
                f"{self.path}: entry {key}: unknown kind {kind!r:.80}; use another cache"
            )
        return parse_record(
            text, value_type, f"{self.path}: entry {key}", f"a valid {value_type.__name__}"
        )


def describe_resume(path: Path, mode: CacheMode) -> str:
    """Return where the answers of a stopped run are and how to resume it, for a message."""
    if mode is CacheMode.OFF:
        return "no answer is stored with `cache.mode: off`"
    flag = " and `cache.mode: reuse`" if mode is CacheMode.REFRESH else ""
    return f"all answers so far are stored in {path}: resume with the same command{flag}"
