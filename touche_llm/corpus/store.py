"""Corpus on disk: documents and their parts in SQLite, read by id or by row."""

from __future__ import annotations

import errno
import sqlite3
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from touche_llm.corpus.ir_dataset import Source
from touche_llm.corpus.json_lines import SkippedLines, StoreManifest, hash_if_changed
from touche_llm.data.databases import connect
from touche_llm.data.io import read_record, recover, replace_folder, sha256, write_records
from touche_llm.data.records import Document
from touche_llm.errors import BadLine, DataError, UsageError, Warn


class IdWriter:
    """Writer for the ids of rows 0, 1, 2 and so on."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("q", [0])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def extend(self, ids: Iterable[str]) -> None:
        """Add the ids of the next rows."""
        for row_id in ids:
            self._text += row_id.encode()
            self._ends.append(len(self._text))

    def write(self, folder: Path, table: str) -> None:
        """Write two files that are named for the table of the rows."""
        text, ends = _name_files(folder, table)
        np.save(text, np.frombuffer(self._text, dtype=np.uint8))
        np.save(ends, np.frombuffer(self._ends, dtype=np.int64))


class IdReader:
    """Reader for the ids from an IdWriter."""

    def __init__(self, folder: Path, table: str) -> None:
        """Open the files; raises OSError, EOFError or ValueError if they are missing or damaged."""
        text, ends = _name_files(folder, table)
        self._text = memoryview(np.load(text, mmap_mode="r", allow_pickle=False))
        self._ends = np.load(ends, mmap_mode="r", allow_pickle=False)
        self._folder = folder
        if len(self._ends) == 0 or self._ends[0] != 0 or self._ends[-1] != len(self._text):
            raise ValueError(f"{text.name} and {ends.name} do not match")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def get(self, rows: list[int]) -> list[str]:
        """Return the ids of rows, in the given order; raises DataError if the files are damaged."""
        places = np.asarray(rows, dtype=np.int64)
        starts, ends = self._ends[places], self._ends[places + 1]
        inside = (starts >= 0) & (starts <= ends) & (ends <= len(self._text))
        try:
            if not inside.all():
                raise ValueError(f"row {places[~inside][0]} has no id")
            return [self._text[s:e].tobytes().decode() for s, e in zip(starts.tolist(), ends.tolist(), strict=True)]
        except ValueError as error:
            raise DataError(f"{self._folder}: damaged index ({error}); delete the folder and index again") from error


def _name_files(folder: Path, table: str) -> tuple[Path, Path]:
    return folder / f"{table}.ids.npy", folder / f"{table}.id_ends.npy"


FORMAT = 3
_DATABASE = "documents.sqlite"
_PARENTS = "parents.npy"
_COLUMNS = {
    "documents": ("row", "id", "line", "text", "title", "side"),
    "parts": ("row", "id", "document", "text"),
}
_BAD_LINES = "bad_lines.txt"
# Patterns of the files in the folder of a BM25 index and of a store; a folder with other files is never replaced.
BM25_FILES = (
    "manifest.json",
    *("params.index.json", "vocab.index.json"),
    *("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy"),
)
# The same of a dense index.
DENSE_FILES = ("manifest.json", "vectors.npy")
_STORE_FILES = (
    *("manifest.json", _DATABASE, _PARENTS, _BAD_LINES),
    *(f"{table}.{name}.npy" for table in _COLUMNS for name in ("ids", "id_ends")),
    *(f"bm25-{table}/{name}" for table in _COLUMNS for name in BM25_FILES),
    *(f"dense-*/{name}" for name in DENSE_FILES),
)
_SQL_VARIABLES = 500  # max placeholders of a query; older versions of SQLite allow 999

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


class TextTable:
    """Table of the texts to index: documents or their parts. Row 0 is the first of the corpus."""

    # Name of the table in the database, and of its rows in messages.
    name: str
    noun: str

    def __init__(self, folder: Path, manifest: StoreManifest, database: sqlite3.Connection) -> None:
        """Use `DocumentStore`."""
        self.folder, self.manifest = folder, manifest
        self._database = database
        self._ids = IdReader(folder, self.name)
        if not len(self) == len(self._ids) == self._rows():
            raise ValueError(f"{self._rows()} {self.name} and {len(self._ids)} ids, not {len(self)}")

    def __len__(self) -> int:
        size: int = getattr(self.manifest, self.name)
        return size

    def find_unknown(self, unit_ids: Iterable[str]) -> list[str]:
        """Return the ids that the corpus lacks, in the given order."""
        wanted = list(dict.fromkeys(unit_ids))
        known: set[str] = set()
        for part in _slices(wanted):
            marks = ",".join("?" * len(part))
            known.update(
                row[0] for row in self._database.execute(f"SELECT id FROM {self.name} WHERE id IN ({marks})", part)
            )
        return [unit_id for unit_id in wanted if unit_id not in known]

    def get_ids(self, rows: list[int]) -> list[str]:
        """Return the ids of rows, in the given order."""
        return self._ids.get(rows)

    def get_texts(self, ids: list[str]) -> Iterator[str]:
        """Yield the texts of ids that are in the corpus, in the given order."""
        for part in _slices(ids):
            marks = ",".join("?" * len(part))
            query = f"SELECT id, text FROM {self.name} WHERE id IN ({marks})"
            found: dict[str, str] = dict(self._database.execute(query, part))
            yield from (found[row_id] for row_id in part)

    def read_texts(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """Yield the texts to index of the rows from `start` to before `stop`, one in memory at a time."""
        query = f"SELECT {self._indexed} FROM {self.name} WHERE row >= ? AND row < ? ORDER BY row"
        for (text,) in self._database.execute(query, (start, len(self) if stop is None else stop)):
            yield text

    @property
    def database_bytes(self) -> int:
        """Size of the database, which a store shares with its parts."""
        return (self.folder / _DATABASE).stat().st_size

    def _rows(self) -> int:
        (rows,) = self._database.execute(f"SELECT ifnull(max(row) + 1, 0) FROM {self.name}").fetchone()
        return int(rows)

    def _get_row(self, query: str, row_id: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = self._database.execute(query, (row_id,)).fetchone()
        if row is None:
            raise DataError(f"{self.manifest.corpus}: {row_id!r} is not one of the {self.noun} of this corpus")
        return row

    _indexed = "text"


class Parts(TextTable):
    """Parts of the documents of a store: the sentences of its arguments."""

    name = "parts"
    noun = "sentences"

    def get(self, part_id: str) -> Document:
        """Return a part as a document with title and side of its document; raises DataError if it is unknown."""
        query = (
            "SELECT parts.text, title, side FROM parts JOIN documents ON documents.row = parts.document "
            "WHERE parts.id = ?"
        )
        return Document(part_id, *self._get_row(query, part_id))

    def locate(self, part_id: str) -> tuple[int, int]:
        """Return the rows of a part's document and of the part; raises DataError if it is unknown."""
        document, row = self._get_row("SELECT document, row FROM parts WHERE id = ?", part_id)
        return document, row

    def load_parents(self) -> NDArray[np.int64]:
        """Return the row of the document of each part; memory-mapped. Raises DataError if the file is damaged."""
        with report_damage(self.folder, "index"):
            rows: NDArray[np.int64] = np.load(self.folder / _PARENTS, mmap_mode="r", allow_pickle=False)
            if rows.shape != (len(self),):
                raise ValueError(f"{_PARENTS}: shape {rows.shape}, not {(len(self),)}")
        return rows


class DocumentStore(TextTable):
    """Documents of a corpus, in the order of its file. A context manager."""

    name = noun = "documents"
    _indexed = "CASE title WHEN '' THEN text ELSE title || ' ' || text END"

    def __init__(self, folder: Path) -> None:
        """Open the store in `folder`; raises DataError if there is none."""
        recover(folder.parent)
        manifest = _read_manifest(folder)
        # The file never changes, so reads need neither locks nor checks for changes.
        place = f"{(folder / _DATABASE).absolute().as_uri()}?mode=ro&immutable=1"
        with ExitStack() as undo:
            with report_damage(folder, "index"):
                # SQLite does not report why it cannot open a file.
                (folder / _DATABASE).open("rb").close()
                database = undo.enter_context(closing(connect(place)))
                super().__init__(folder, manifest, database)
                self.parts = Parts(folder, manifest, database)
            undo.pop_all()

    def __enter__(self) -> DocumentStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def get(self, document_id: str) -> Document:
        """Return a document without its parts; raises DataError if the corpus lacks it."""
        query = "SELECT text, title, side FROM documents WHERE id = ?"
        return Document(document_id, *self._get_row(query, document_id))


@contextmanager
def report_damage(folder: Path, what: str) -> Iterator[None]:
    """Turn errors of the block into a DataError about a damaged index in `folder`.

    Raises:
        OSError: The cause is temporary, such as too many open files.
    """
    try:
        yield
    except (sqlite3.Error, OSError, EOFError, ValueError, KeyError, TypeError) as error:
        # Without errno it comes from numpy: the file has the wrong format.
        if isinstance(error, OSError) and error.errno not in (None, *_NOT_THERE):
            error.filename = error.filename or str(folder)
            raise
        raise DataError(f"{folder}: damaged {what} ({error!s:.200}); delete the folder and index again") from error


def _slices(items: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(items), _SQL_VARIABLES):
        yield items[start : start + _SQL_VARIABLES]


def _read_manifest(folder: Path) -> StoreManifest:
    path = folder / "manifest.json"
    if not path.exists():
        raise DataError(f"{folder}: no index here; build one with `touche-llm index`")
    manifest = read_record(path, StoreManifest, "index manifest")
    if manifest.format != FORMAT:
        raise DataError(
            f"{folder}: index format {manifest.format}, this version reads {FORMAT}; delete it and index again"
        )
    return manifest


def ensure_store(source: Source, folder: Path, *, skip_bad_lines: bool = False, warn: Warn) -> DocumentStore:
    """Open the store of a source in `folder`; build it if it is missing or outdated, also for a reader of other keys.

    A changed corpus is stored again, with a notice, and its BM25 index is removed. After an interruption the old
    folder remains.

    Raises:
        DataError: The corpus cannot be read or has a bad line (unless `skip_bad_lines`, which lists them instead).
        UsageError: The folder contains another corpus or is not an index, or the path of the corpus is not UTF-8.
    """
    source.check()
    recover(folder.parent)
    if (folder / "manifest.json").exists():
        stale = _why_stale(_read_manifest(folder), source, folder, skip_bad_lines)
        if stale is None:
            return DocumentStore(folder)
        warn(f"{stale}; storing {source} again")
    elif folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"{folder}: not empty and not an index; choose another folder")
    else:
        warn(f"storing the documents of {source} in {folder}")
    _build(source, folder, skip_bad_lines, warn)
    return DocumentStore(folder)


def hash_corpus(corpus: Path | None, folder: Path) -> str | None:
    """Return the SHA-256 of a corpus file, or of the corpus of the store in a folder; None if there is neither."""
    recover(folder.parent)
    stored = (folder / "manifest.json").exists()
    if corpus is None:
        return _read_manifest(folder).sha256 if stored else None
    if not corpus.is_file():
        return None
    return hash_if_changed(_read_manifest(folder), corpus) if stored else sha256(corpus)


def _why_stale(manifest: StoreManifest, source: Source, folder: Path, skip_bad_lines: bool) -> str | None:
    if source.has_changed(manifest):
        if manifest.corpus != source.name:
            raise UsageError(f"{folder}: holds the index of {manifest.corpus}, not of {source}; choose another folder")
        return f"{source} changed since it was indexed in {folder}"
    if manifest.keys != source.keys:
        return f"{folder} was read with other keys of id and text, or for another task"
    if manifest.bad_lines and not skip_bad_lines:
        return f"{folder} was built without {manifest.bad_lines} bad lines, which `skip_bad_lines: true` allows"
    return None


def _build(source: Source, folder: Path, skip_bad_lines: bool, warn: Warn) -> None:
    before = source.read_state()
    ids, part_ids = IdWriter(), IdWriter()
    parents: array[int] = array("q")
    with replace_folder(folder, _STORE_FILES) as building:
        listing = building / _BAD_LINES
        with (
            closing(connect(str(building / _DATABASE))) as database,
            listing.open("w", encoding="utf-8") as lines,
        ):
            left_out = SkippedLines(source, warn, lines)

            def on_bad_line(bad: BadLine) -> None:
                left_out.add(bad, len(ids))

            # Only a complete folder is renamed into place, so no journal is needed.
            database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-200000; BEGIN;")
            database.execute(
                "CREATE TABLE documents (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, line INTEGER, "
                "text TEXT NOT NULL, title TEXT NOT NULL, side TEXT NOT NULL)"
            )
            database.execute(
                "CREATE TABLE parts (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, document INTEGER NOT NULL, "
                "text TEXT NOT NULL)"
            )
            for line, document in source.read(on_bad_line if skip_bad_lines else None):
                taken = _insert(database, document, line, len(ids), len(part_ids))
                if taken:
                    bad = BadLine(source, line, taken)
                    if not skip_bad_lines:
                        raise bad
                    on_bad_line(bad)
                    continue
                parents.extend([len(ids)] * len(document.parts))
                ids.extend([document.id])
                part_ids.extend(part.id for part in document.parts)
            database.execute("COMMIT")
            np.save(building / _PARENTS, np.frombuffer(parents, dtype=np.int64))
            ids.write(building, DocumentStore.name)
            part_ids.write(building, Parts.name)
        if not len(ids):
            raise DataError(f"{source}: no usable document in it")
        if not left_out.count:
            listing.unlink()
        digest = source.hash()
        if source.read_state() != before:
            raise DataError(f"{source}: changed while it was read; run the command again")
        manifest = StoreManifest(
            format=FORMAT,
            corpus=source.name,
            **before._asdict(),
            sha256=digest,
            documents=len(ids),
            parts=len(parents),
            bad_lines=left_out.count,
            keys=source.keys,
        )
        write_records(building / "manifest.json", [manifest])
    if left_out.count:
        warn(f"left out {left_out.count} bad lines of {source}, all listed in {folder / _BAD_LINES}")


def _insert(database: sqlite3.Connection, document: Document, line: int, row: int, part_row: int) -> str:
    """Store a document in row `row` and its parts from `part_row` on, or nothing.

    Returns:
        Reason why it was not stored: its id, or that of a part, is taken. Empty if it was stored.
    """
    # Ids are looked up only after a conflict: looking up each takes as long as storing it.
    stored = database.execute(
        "INSERT OR IGNORE INTO documents VALUES (?, ?, ?, ?, ?, ?)",
        (row, document.id, line, document.text, document.title, document.side),
    )
    if stored.rowcount == 0:
        (before,) = database.execute("SELECT line FROM documents WHERE id = ?", (document.id,)).fetchone()
        return f"document {document.id}: the id occurs already in line {before}"
    if not document.parts:
        return ""
    stored = database.executemany(
        "INSERT OR IGNORE INTO parts VALUES (?, ?, ?, ?)",
        [(place, part.id, row, part.text) for place, part in enumerate(document.parts, start=part_row)],
    )
    if stored.rowcount == len(document.parts):
        return ""
    query = "SELECT line FROM parts JOIN documents ON documents.row = document WHERE parts.id = ? AND document != ?"
    taken = ((part.id, database.execute(query, (part.id, row)).fetchone()) for part in document.parts)
    part_id, (before,) = next((part_id, found) for part_id, found in taken if found)
    database.execute("DELETE FROM parts WHERE row >= ?", (part_row,))
    database.execute("DELETE FROM documents WHERE row = ?", (row,))
    return f"document {document.id}: the id of its part {part_id} occurs already in line {before}"
