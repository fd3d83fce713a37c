"""The answer cache: one SQLite file, safe for several processes, each answer stored as it arrives."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import orjson
from msgspec.structs import asdict, astuple

from touche_llm.data.databases import describe_database_error
from touche_llm.data.files import iterate_records, open_atomic
from touche_llm.data.json_records import Malformed
from touche_llm.errors import DataError, UsageError, describe_os_error
from touche_llm.llm.answers import OUTCOMES
from touche_llm.llm.cache_file import COLUMNS, Entry, EntryMetadata, ValueT, open_file

# Kind and value; what a column of SQLite holds can be of any type.
_Row = tuple[Any, Any]
# How to read a value: a class, or one for each kind that an entry can have.
Form = type[ValueT] | Mapping[str, type[ValueT]]


# Bytes of a cassette that is replayed, for which it is held in memory: some 100,000 answers.
MAX_CASSETTE = 2**27


class CacheMode(StrEnum):
    """How the cache is used."""

    REUSE = "reuse"  # take what is there, ask for the rest and store it
    REPLAY = "replay"  # take what is there; a miss is an error; no engine is needed
    REFRESH = "refresh"  # ask for everything and store it in place of what is there
    OFF = "off"  # neither read nor write


_SELECT = "SELECT kind, value FROM entries WHERE key = ?"
_SAMPLE, _KIND = COLUMNS.index("sample"), COLUMNS.index("kind")
_HOLDS_RESAMPLED = "SELECT EXISTS (SELECT 1 FROM entries WHERE sample > 0 AND kind = 'answer')"


class Cache:
    """Entries by key. Use as a context manager, or call `close`."""

    def __init__(self, path: Path, mode: CacheMode = CacheMode.REUSE) -> None:
        """Open the cache in the SQLite file `path`, or a cassette (`.jsonl`) for replay alone.

        Raises:
            UsageError: a cassette with a mode that would write, or replay from a file that is not there.
            DataError: the file is not a cache.
        """
        self.path, self.mode = path, mode
        cassette = path.suffix == ".jsonl"
        if cassette and mode is not CacheMode.REPLAY:
            raise UsageError(f"{path}: a cassette can only be replayed; import it into an .sqlite cache to add to it")
        if mode is CacheMode.REPLAY and not path.exists():
            raise UsageError(f"{path}: no such cache to replay from")
        if cassette and path.stat().st_size > MAX_CASSETTE:
            raise UsageError(
                f"{path}: {path.stat().st_size:,} bytes; a cassette of at most {MAX_CASSETTE:,} is replayed in memory; "
                "put it into a file (touche-llm cache import CASSETTE --cache FILE.sqlite) and replay that"
            )
        try:
            if cassette or mode is CacheMode.OFF:
                self._database = open_file(None)
            else:
                self._database = open_file(path, read_only=mode is CacheMode.REPLAY)
        except (sqlite3.Error, OSError) as error:
            cause = describe_database_error(error) if isinstance(error, sqlite3.Error) else describe_os_error(error)
            raise DataError(f"{path}: not a cache, or not writable: {cause}") from error
        self._database.path = path
        self._opened = path.stat() if mode in (CacheMode.REUSE, CacheMode.REFRESH) else None
        self._resampled, self._seen_version = False, -1
        # What is to be stored at the end of this turn of the event loop.
        self._turn: list[tuple[tuple[Any, ...], asyncio.Future[_Row | None]]] = []
        if cassette:
            self.import_cassette(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, with all that was written in it: not in the log beside it, which copies leave behind."""
        self._end_turn()
        with closing(self._database):
            self._check_file()
            if self._opened is not None and not self._database.in_transaction:
                # Closing does this by itself unless somebody reads; passive, it waits for nobody.
                self._database.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _check_file(self) -> None:
        """Raise DataError if the file was deleted or replaced since it was opened: what is stored would be lost."""
        if self._opened is not None and not (self.path.exists() and os.path.samestat(self._opened, self.path.stat())):
            raise DataError(
                f"{self.path}: the cache was deleted or replaced while it was in use; run the same command again to "
                "store the answers in the file that is there then"
            )

    def get(self, key: str, model: Form[ValueT], *, refreshed: bool = False) -> ValueT | None:
        """The value under `key`, or None. In mode `off` always None, in `refresh` unless the caller put it there.

        Args:
            key: of the entry.
            model: what the value is, or what it is by the kind of the entry.
            refreshed: whether the caller put it there.
        """
        if self.mode is CacheMode.OFF or (self.mode is CacheMode.REFRESH and not refreshed):
            return None
        return self._stored(key, model)

    def has_resamples(self) -> bool:
        """Whether there are answers of a second or third sample: they are few, and most caches have none."""
        # Asked again only where another process has stored something since: this one notices what it stores itself.
        (version,) = self._database.execute("PRAGMA data_version").fetchone()
        if not self._resampled and version != self._seen_version:
            (found,) = self._database.execute(_HOLDS_RESAMPLED).fetchone()
            self._resampled, self._seen_version = bool(found), version
        return self._resampled

    def put(self, entry: Entry, model: type[ValueT]) -> ValueT:
        """Store an entry at once and return the value that the cache now holds under its key.

        That is the first one stored (another process may have been faster), so that what a run used is what a replay
        finds. In mode `refresh` the new value takes its place.
        """
        if self.mode is CacheMode.OFF:
            return entry.read(model)
        self._insert([entry.row])
        self._check_file()
        stored = self._stored(entry.key, model)
        assert stored is not None
        return stored

    async def store(self, heading: EntryMetadata, value: ValueT, model: Form[ValueT] | None = None) -> ValueT:
        """As `put`, in one transaction with all that is stored in the same turn of the event loop; back when it is in.

        Args:
            heading: of the entry.
            value: its value.
            model: what a value is that is there already, as in `get`; None for the same as this one.

        Raises:
            DataError: what is there already is of another form.
            Exception: what kept this turn's values from being stored, all of them: mostly sqlite3.Error.
        """
        if self.mode is CacheMode.OFF:
            return value
        loop = asyncio.get_running_loop()
        if not self._turn:
            loop.call_soon(self._end_turn)
        stored: asyncio.Future[_Row | None] = loop.create_future()
        self._turn.append(((*astuple(heading), value.to_json().decode()), stored))
        there = await stored
        return value if there is None else self._read(heading.key, there, model or type(value))

    def _end_turn(self) -> None:
        """Store what came in this turn of the event loop, and tell those who wait what else is there, if it was."""
        turn, self._turn = self._turn, []
        if not turn:
            return
        there: dict[str, _Row | None] = {}
        failed: Exception | None = None
        try:
            self._database.execute("BEGIN IMMEDIATE")
            if self._insert([row for row, _ in turn]) < len(turn):
                # Now, since another process may replace them as soon as the transaction has ended.
                there = {key: self._row(key) for (key, *_), _ in turn}
            self._database.execute("COMMIT")
            self._check_file()
        # Whatever the error is, every waiting request must receive it.
        except Exception as error:
            failed = error
            # The error to report is why the answers could not be stored.
            with suppress(sqlite3.Error):
                self._database.rollback()
        for (key, *_), waiting in turn:
            if waiting.done():
                continue
            if failed is None:
                waiting.set_result(there.get(key))
            else:
                waiting.set_exception(failed)

    def forget(self, keys: Iterable[str], *, kind: str | None = None) -> None:
        """Remove the entries under these keys; those of one kind, where one is given."""
        rows = [(key, kind) for key in keys]
        self._database.executemany("DELETE FROM entries WHERE key = ?1 AND kind = coalesce(?2, kind)", rows)

    def find(self, kind: str, **columns: Any) -> list[Entry]:
        """All entries of a kind with these columns, by key."""
        where = " AND ".join(["kind = ?", *(f"{column} IS ?" for column in columns)])
        rows = self._database.execute(f"SELECT * FROM entries WHERE {where} ORDER BY key", (kind, *columns.values()))
        return [self._entry(row) for row in rows]

    def entries(self) -> Iterator[Entry]:
        """All entries, by key."""
        for row in self._database.execute("SELECT * FROM entries ORDER BY key"):
            yield self._entry(row)

    def counts(self) -> list[tuple[str, str, str | None, int | None, str | None, int]]:
        """`(kind, model, prompt, prompt version, prompt hash, number of entries)` for each combination."""
        rows = self._database.execute(
            "SELECT kind, model, prompt, prompt_version, prompt_hash, count(*) FROM entries GROUP BY 1, 2, 3, 4, 5 "
            "ORDER BY 1, 2, 3, 4, 5"
        )
        return list(rows)

    def export_cassette(self, path: Path) -> int:
        """Write all entries as JSON Lines sorted by key; returns how many."""
        count = 0
        with open_atomic(path) as stream:
            for entry in self.entries():
                given = {column: value for column, value in asdict(entry).items() if value is not None}
                stream.write(orjson.dumps(given, option=orjson.OPT_APPEND_NEWLINE))
                count += 1
        return count

    def import_cassette(self, path: Path) -> tuple[int, int]:
        """Add the entries of a cassette, all or none; returns how many were new and how many were there already.

        Under one key an answer wins over a stored failure, as when failures are sent again, and of two failures the
        first stays, so that the caches of several machines can be merged. Of two different answers neither may be
        dropped: a run was made with each.

        Raises:
            DataError: a line that is no entry, with file and line, or a key that is there with another value.
        """
        new = known = 0
        self._database.execute("BEGIN IMMEDIATE")
        try:
            for entry in iterate_records(path, Entry, "cache entries"):
                if self._insert([entry.row], "IGNORE"):
                    new += 1
                    continue
                kind, value = self._database.execute(_SELECT, (entry.key,)).fetchone()
                if (kind, entry.kind) == ("unusable", "answer"):
                    self._insert([entry.row], "REPLACE")
                    new += 1
                    continue
                known += 1
                if entry.kind == "unusable" and kind in OUTCOMES:
                    continue
                if kind != entry.kind or self._value(entry.key, value) != entry.value:
                    raise DataError(
                        f"{path}: key {entry.key}: {self.path} holds another value; import into a new cache"
                    )
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
        return new, known

    def _insert(self, rows: Sequence[tuple[Any, ...]], conflict: str | None = None) -> int:
        """Add rows, headings with the JSON of their values, and tell how many are there now."""
        self._resampled = self._resampled or any(row[_SAMPLE] and row[_KIND] == "answer" for row in rows)
        conflict = conflict or ("REPLACE" if self.mode is CacheMode.REFRESH else "IGNORE")
        marks = ",".join("?" * len(COLUMNS))
        return self._database.executemany(f"INSERT OR {conflict} INTO entries VALUES ({marks})", rows).rowcount

    def _entry(self, row: tuple[Any, ...]) -> Entry:
        return Entry(**dict(zip(COLUMNS[:-1], row, strict=False)), value=self._value(row[0], row[-1]))

    def _value(self, key: object, text: Any) -> Any:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise DataError(f"{self.path}: entry {key!s:.64} holds no JSON: {error}; use another cache") from error

    def _row(self, key: str) -> _Row | None:
        row: _Row | None = self._database.execute(_SELECT, (key,)).fetchone()
        return row

    def _stored(self, key: str, model: Form[ValueT]) -> ValueT | None:
        row = self._row(key)
        return None if row is None else self._read(key, row, model)

    def _read(self, key: str, row: _Row, model: Form[ValueT]) -> ValueT:
        kind, text = row
        form = model.get(kind) if isinstance(model, Mapping) else model
        if form is None:
            raise DataError(f"{self.path}: entry {key} is of the kind {kind!r:.80}, which this program does not know")
        try:
            if not isinstance(text, str):
                raise Malformed(f"a text was expected, not {type(text).__name__}")
            return form.from_json(text)
        except Malformed as error:
            raise DataError(f"{self.path}: entry {key} does not hold a valid {form.__name__}: {error}") from error


def describe_resume(path: Path, mode: CacheMode) -> str:
    """Where the answers of a run that stops are and how to go on, for a message."""
    if mode is CacheMode.OFF:
        return "no answer is kept with --cache-mode off"
    if mode is CacheMode.REFRESH:
        return f"every answer so far is in {path}: go on with the same command and --cache-mode reuse"
    return f"every answer so far is in {path}: go on with the same command"
