"""Answer cache: one SQLite file, safe for several processes, durable per answer."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec.structs import asdict, astuple

from touche_llm.data.files import check_database_file, iterate_records, open_atomic
from touche_llm.data.records import (
    Count,
    JsonRecord,
    JsonStruct,
    Malformed,
    convert_plain,
    decode_json,
)
from touche_llm.data.sqlite import (
    LOCK_SECONDS,
    DatabaseFormat,
    NamedDatabase,
    add_path,
    connect,
    create_if_empty,
    describe_opening_error,
    has_format,
)
from touche_llm.errors import DataError, UsageError, to_printable
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
    if path is not None:
        check_database_file(path)
        if not read_only:
            path.parent.mkdir(parents=True, exist_ok=True)
    database = connect(_make_address(path, read_only=read_only))
    try:
        if read_only:
            if not has_format(database, FORMAT, path):
                raise DataError(f"{path}: empty, not {FORMAT.noun}; use another file")
        else:
            create_if_empty(database, FORMAT, path)
            _prepare_writing(database)
    except BaseException:
        database.close()
        raise
    return database


def _make_address(path: Path | None, *, read_only: bool) -> str:
    """Return the address of a file for SQLite; None stands for a database in memory."""
    if path is None:
        return ":memory:"
    address = path.absolute().as_uri()
    return f"{address}?mode=ro" if read_only else address


def _prepare_writing(database: NamedDatabase) -> None:
    """Switch to write-ahead logging, with which processes read while another one writes."""
    # 20 ms, which commands without a cache do without.
    from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

    # SQLite does not wait for other processes when it switches the mode.
    retrying = Retrying(
        retry=retry_if_exception(_is_busy),
        stop=stop_after_delay(LOCK_SECONDS),
        wait=wait_random(0.01, 0.1),
        reraise=True,
    )
    retrying(database.execute, "PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")


def _is_busy(error: BaseException) -> bool:
    """Return whether an error says that another process holds the lock of the file."""
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY


@dataclass(frozen=True, slots=True)
class Export:
    """Result of an export.

    Attributes:
        entries: Number of entries that were written.
        damaged: Keys of the entries that were left out since their rows are damaged.
        gaps: Number of places in the file where rows cannot be read at all.
    """

    entries: int
    damaged: Sequence[str]
    gaps: int


# SQLite has no larger row ids.
_MAX_ROW_ID = 2**63 - 1
_ROWS_AFTER = "SELECT rowid, * FROM entries NOT INDEXED WHERE rowid > ? ORDER BY rowid"
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


def _check_path(path: Path, mode: CacheMode) -> None:
    """Raise UsageError if no cache at this path can be used in this mode."""
    if path.is_dir() and mode is not CacheMode.OFF:
        raise UsageError(
            f"{path}: a folder; give a file as `cache.file`, such as {path / 'answers.sqlite'}"
        )
    if path.suffix == ".jsonl" and mode is not CacheMode.REPLAY:
        raise UsageError(
            f"{path}: a cassette can only be replayed; import it into an .sqlite cache to add to it"
        )
    if mode is CacheMode.REPLAY and not path.exists():
        raise UsageError(f"{path}: no such cache to replay; name one with `cache.file`")


@dataclass(frozen=True, slots=True)
class _PendingRow:
    """Row that a task waits to be stored.

    Attributes:
        key: Key of the entry.
        columns: The entry as a row of the table.
        future: Receives the row that was stored before under the key; None if there was none.
    """

    key: str
    columns: tuple[Any, ...]
    future: asyncio.Future[_Row | None]


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
        _check_path(path, mode)
        self.path = path
        self.mode = mode
        self._observe = observe
        # Rows to store at the end of this turn of the event loop.
        self._pending: list[_PendingRow] = []

        is_cassette = path.suffix == ".jsonl"
        is_in_memory = is_cassette or mode is CacheMode.OFF
        try:
            if is_in_memory:
                self._database = open_file(None)
            else:
                self._database = open_file(path, read_only=mode is CacheMode.REPLAY)
        except (sqlite3.Error, OSError) as error:
            raise DataError(
                describe_opening_error(path, FORMAT.noun, "cache.file", error)
            ) from error
        self._database.path = path
        self._database.text_factory = _decode_text
        self._opened = None if self._is_read_only else path.stat()
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
        if self._opened is None:
            return
        is_same = self.path.exists() and os.path.samestat(self._opened, self.path.stat())
        if not is_same:
            raise DataError(
                f"{self.path}: the cache was deleted or replaced while it was in use; run the same command again to "
                "store the answers in the present file"
            )

    def get(self, key: str, model: ValueType[ValueT], *, refreshed: bool = False) -> ValueT | None:
        """Return the value of an entry, or None if there is none.

        In mode `off` there is none; in mode `refresh` an entry counts only if the caller has stored
        it (`refreshed`).
        """
        if self.mode is CacheMode.OFF:
            return None
        if self.mode is CacheMode.REFRESH and not refreshed:
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

        Args:
            metadata: Key, kind and origin of the entry.
            value: Value of the entry.
            model: Type of the value that may be stored already, as for `get`; None for that of
                `value`.

        Returns:
            The value, or the one that was stored before.

        Raises:
            DataError: The file was deleted or replaced.
            sqlite3.Error: The entry cannot be stored.
        """
        if self._is_read_only:
            return value

        loop = asyncio.get_running_loop()
        if not self._pending:
            loop.call_soon(self._store_pending)
        columns = (*astuple(metadata), value.to_json().decode())
        pending = _PendingRow(metadata.key, columns, future=loop.create_future())
        self._pending.append(pending)

        stored_before = await pending.future
        if stored_before is None:
            return value
        return self._parse(metadata.key, stored_before, model or type(value))

    def _store_pending(self) -> None:
        """Store the rows of this turn of the event loop, and wake the tasks that wait for that."""
        pending = self._pending
        self._pending = []
        if not pending:
            return

        stored_before: dict[str, _Row | None] = {}
        failure: Exception | None = None
        try:
            stored_before = self._insert_pending(pending)
            self._check_file()
        # Whatever the error is, every waiting task must receive it.
        except Exception as error:
            failure = error
            # The error to report is why the answers could not be stored.
            with suppress(sqlite3.Error):
                self._database.rollback()

        for row in pending:
            if row.future.done():
                continue
            if failure is None:
                row.future.set_result(stored_before.get(row.key))
            else:
                row.future.set_exception(failure)

    def _insert_pending(self, pending: Sequence[_PendingRow]) -> dict[str, _Row | None]:
        """Insert rows in one transaction.

        Returns:
            Rows that were stored before, by key; those that are new may be among them.
        """
        stored_before: dict[str, _Row | None] = {}
        self._database.execute("BEGIN IMMEDIATE")
        inserted = self._insert([row.columns for row in pending])
        if inserted < len(pending):
            # Read within the transaction: another process may replace the rows as soon as it has
            # ended.
            stored_before = {row.key: self._fetch_row(row.key) for row in pending}
        self._database.execute("COMMIT")
        return stored_before

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
        conditions = ["kind = ?"]
        conditions += [f"{column} IS ?" for column in columns]
        query = f"SELECT * FROM entries WHERE {' AND '.join(conditions)} ORDER BY key"
        rows = self._database.execute(query, (kind, *columns.values()))
        return [self._to_entry(row) for row in rows]

    def read(self, entry: Entry, model: type[ValueT]) -> ValueT:
        """Return the value of an entry that `find` found; raise DataError if it is not of this type."""
        return self._parse(
            entry.key, (entry.kind, msgspec.json.encode(entry.value).decode()), model
        )

    def iterate_entries(self) -> Iterator[Entry]:
        """Yield all entries, by key; raise DataError at one that is damaged."""
        yield from map(self._to_entry, self._database.execute("SELECT * FROM entries ORDER BY key"))

    def export_cassette(self, path: Path) -> Export:
        """Write all entries that are intact as JSON Lines, sorted by key."""
        row_ids: dict[str, int] = {}
        damaged: list[str] = []
        gaps = 0
        for row in self._iterate_rows():
            if row is None:
                gaps += 1
                continue
            row_id, *columns = row
            try:
                row_ids[_parse_row(columns).key] = row_id
            except Malformed:
                damaged.append(str(columns[0]))

        with open_atomic(path) as stream:
            for key, row_id in sorted(row_ids.items()):
                entry = self._read_again(row_id)
                if entry is not None and entry.key == key:
                    stream.write(_encode_line(entry) + b"\n")
                else:
                    damaged.append(key)
        written = len(row_ids.keys() - damaged)
        return Export(entries=written, damaged=damaged, gaps=gaps)

    def _read_again(self, row_id: int) -> Entry | None:
        """Return an entry by its row id; None if the file is so damaged that it is not found."""
        try:
            rows = self._database.query("SELECT * FROM entries WHERE rowid = ?", (row_id,))
            return _parse_row(rows[0]) if rows else None
        except Malformed:
            return None
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            return None

    def _iterate_rows(self) -> Iterator[tuple[Any, ...] | None]:
        """Yield the rows in order of arrival, each behind its row id; None where some cannot be read.

        The rows are read without the index of the keys, which may lack some in a damaged file.
        """
        last = 0
        while last <= _MAX_ROW_ID:
            try:
                for row in self._database.execute(_ROWS_AFTER, (last,)):
                    # Row ids that are damaged need not be in order.
                    last = max(last, row[0])
                    yield row
                return
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise add_path(error, self.path) from None
                yield None
            last += self._measure_gap(last)

    def _measure_gap(self, last: int) -> int:
        """Return how many row ids after `last` must be left out to read the rows behind a gap."""
        unreadable = 0
        readable = 1
        # The width is at least doubled each time, until the row behind it can be read.
        while not self._can_read_after(last + readable):
            unreadable = readable
            readable *= 2

        while readable - unreadable > 1:
            middle = (unreadable + readable) // 2
            if self._can_read_after(last + middle):
                readable = middle
            else:
                unreadable = middle
        return readable

    def _can_read_after(self, row_id: int) -> bool:
        """Return whether the next row after a row id can be read, or whether there is none."""
        if row_id > _MAX_ROW_ID:
            return True
        try:
            self._database.query(f"{_ROWS_AFTER} LIMIT 1", (row_id,))
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            return False
        return True

    def remove(self, key: str) -> bool:
        """Remove an entry, also a damaged one; return whether there was one.

        Raises:
            sqlite3.DatabaseError: The file is so damaged that it cannot be changed.
        """
        # In a damaged file the index may lack the key, or an index may contradict the row.
        with suppress(sqlite3.DatabaseError):
            deleted = self._database.execute("DELETE FROM entries WHERE key = ?", (key,))
            if deleted.rowcount:
                return True

        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("REINDEX entries")
            rows = self._database.query("SELECT rowid, key FROM entries NOT INDEXED")
            # A damaged key is given as a message shows it.
            found = [(row_id,) for row_id, stored in rows if to_printable(str(stored)) == key]
            self._database.executemany("DELETE FROM entries WHERE rowid = ?", found)
        return bool(found)

    def import_cassette(self, path: Path) -> tuple[int, int]:
        """Add the entries of a cassette, all or none.

        Under one key an answer replaces a stored failure, as when failures are sent again, and the
        first of two failures stays, so that the caches of several machines can be merged. Two
        different answers are an error, since a run was made with each.

        Returns:
            How many entries were new, and how many were stored already.

        Raises:
            DataError: The cassette is malformed, or has another answer than the cache.
        """
        new_count = 0
        known_count = 0
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for entry in iterate_records(path, Entry, "cache entries"):
                if self._is_new(entry, path):
                    self._insert([entry.row], "REPLACE")
                    new_count += 1
                else:
                    known_count += 1
        return new_count, known_count

    def _is_new(self, entry: Entry, cassette: Path) -> bool:
        """Return whether an entry of a cassette is to be stored, in place of a failure if need be.

        Raises:
            DataError: Another answer is stored under its key.
        """
        stored = self._fetch_row(entry.key)
        if stored is None:
            return True
        stored_kind, text = stored
        if not text:
            return True
        if stored_kind == "unusable" and entry.kind == "answer":
            return True

        # Any result of a request is better than a failure, and as good as the first of two.
        if entry.kind == "unusable" and stored_kind in OUTCOMES:
            return False
        stored_value = self._decode_value(entry.key, text)
        if stored_kind != entry.kind or stored_value != entry.value:
            raise DataError(
                f"{cassette}: key {entry.key}: {self.path} holds another value; import into a new cache"
            )
        return False

    def _insert(self, rows: Sequence[tuple[Any, ...]], conflict: str = "") -> int:
        """Insert rows of metadata and JSON.

        Args:
            rows: Rows of the table.
            conflict: What to do about a key that is stored, REPLACE or IGNORE; empty to replace in
                mode `refresh` alone.

        Returns:
            Number of rows that were inserted or replaced.
        """
        if not conflict:
            conflict = "REPLACE" if self.mode is CacheMode.REFRESH else "IGNORE"
        marks = ",".join("?" * len(COLUMNS))
        command = f"INSERT OR {conflict} INTO entries VALUES ({marks})"
        return self._database.executemany(command, rows).rowcount

    def _to_entry(self, row: tuple[Any, ...]) -> Entry:
        try:
            return _parse_row(row)
        except Malformed as error:
            raise self._describe_damage(row[0], f"not a valid entry: {error}") from error

    def _fetch_row(self, key: str) -> _Row | None:
        row = self._database.execute(
            "SELECT kind, value FROM entries WHERE key = ?", (key,)
        ).fetchone()
        return cast(_Row | None, row)

    def _parse(self, key: str, row: _Row, model: ValueType[ValueT]) -> ValueT:
        """Return the value of a row as its type, or as that of its kind if there are several.

        Raises:
            DataError: The value is not of this type, or the kind of the row is unknown.
        """
        kind, text = row
        value_type = model.get(kind) if isinstance(model, Mapping) else model
        if value_type is None:
            raise self._describe_damage(key, f"unknown kind {kind!r:.80}")
        try:
            return value_type.from_json(_encode_text(text))
        except Malformed as error:
            problem = f"not a valid {value_type.__name__}: {error}"
            raise self._describe_damage(key, problem) from error

    def _decode_value(self, key: str, text: str) -> dict[str, Any]:
        try:
            return decode_json(_encode_text(text), dict[str, Any])
        except Malformed as error:
            raise self._describe_damage(key, f"not a valid value: {error}") from error

    def _describe_damage(self, key: object, problem: str) -> DataError:
        """Return the error of a damaged entry, with the command that removes it."""
        if self.path.suffix == ".jsonl":
            remedy = "remove its line"
        else:
            remedy = f"remove it with `touche-llm cache forget {key} --cache {self.path}`"
        return DataError(f"{self.path}: entry {key}: {problem}; {remedy}")


def _is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error comes from the content of the file; a retry would not help."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_TOOBIG)


def _decode_text(content: bytes) -> str:
    """Decode a column; bytes that are not UTF-8 become surrogates, which its reader refuses."""
    return content.decode(errors="surrogateescape")


def _encode_text(value: object) -> bytes:
    """Return a text of a column as UTF-8; raise Malformed if it was none, or not UTF-8."""
    if not isinstance(value, str):
        raise Malformed(f"not text but {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise Malformed("not UTF-8") from error


def _parse_row(row: Sequence[Any]) -> Entry:
    """Parse a row of the table; raise Malformed if it is damaged."""
    *metadata, text = row
    _encode_text("".join(map(str, metadata)))
    columns = dict(zip(COLUMNS, metadata, strict=False))
    value = decode_json(_encode_text(text), dict[str, Any])
    return convert_plain({**columns, "value": value}, Entry)


def _encode_line(entry: Entry) -> bytes:
    """Return an entry as a line of a cassette, without columns that have no value."""
    columns = {column: value for column, value in asdict(entry).items() if value is not None}
    return msgspec.json.encode(columns)


def describe_resume(path: Path, mode: CacheMode) -> str:
    """Return where the answers of a stopped run are and how to resume it, for a message."""
    if mode is CacheMode.OFF:
        return "no answer is stored with `cache.mode: off`"
    flag = " and `cache.mode: reuse`" if mode is CacheMode.REFRESH else ""
    return f"all answers so far are stored in {path}: resume with the same command{flag}"
