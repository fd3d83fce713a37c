"""Corpus on disk: documents and their parts in SQLite, read by id or by row."""

from __future__ import annotations

import errno
import json
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from touche_llm.corpus.ir_dataset import Source
from touche_llm.corpus.json_lines import SkippedLines, StoreManifest, hash_if_changed
from touche_llm.data.files import read_record, replace_folder, sha256, write_records
from touche_llm.data.records import Document
from touche_llm.data.sqlite import NamedDatabase, connect
from touche_llm.errors import BadLine, DataError, UsageError, Warn

_MANIFEST = "manifest.json"
_DATABASE = "documents.sqlite"
_PARENTS = "parents.npy"
# Patterns of the files of a store, with those of the indexes below it; a folder with other files is
# never replaced.
_STORE_FILES = (_MANIFEST, _DATABASE, _PARENTS, "bm25-*", "dense-*")
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


class TextTable:
    """Table of the texts to index: documents or their parts. Row 0 is the first of the corpus."""

    # Name of the table in the database, and of its rows in messages.
    name: str
    noun: str

    def __init__(self, folder: Path, manifest: StoreManifest, database: NamedDatabase) -> None:
        """Use `DocumentStore`."""
        self.folder, self.manifest = folder, manifest
        self._database = database

    def __len__(self) -> int:
        size: int = getattr(self.manifest, self.name)
        return size

    def find_unknown(self, unit_ids: Iterable[str]) -> list[str]:
        """Return the ids that the corpus lacks, in the given order."""
        unique_ids = list(dict.fromkeys(unit_ids))
        known_ids = {row_id for (row_id,) in self._select("id", "id", unique_ids)}
        return [unit_id for unit_id in unique_ids if unit_id not in known_ids]

    def get_ids(self, rows: list[int]) -> list[str]:
        """Return the ids of rows, in the given order."""
        ids_by_row = dict(self._select("row, id", "row", rows))
        return [ids_by_row[row] for row in rows]

    def get_texts(self, ids: list[str]) -> list[str]:
        """Return the texts of ids that are in the corpus, in the given order."""
        texts_by_id = dict(self._select("id, text", "id", ids))
        return [texts_by_id[unit_id] for unit_id in ids]

    def _select(self, columns: str, key: str, values: Sequence[str | int]) -> list[Any]:
        """Return the columns of the rows that have one of the values as key, in any order."""
        query = f"SELECT {columns} FROM {self.name} WHERE {key} IN (SELECT value FROM json_each(?))"
        return self._database.query(query, (json.dumps(values),))

    def read_texts(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """Yield the texts to index of the rows from `start` to before `stop`, one in memory at a time."""
        query = f"SELECT {self._indexed} FROM {self.name} WHERE row >= ? AND row < ? ORDER BY row"
        end = len(self) if stop is None else stop
        for (text,) in self._database.execute(query, (start, end)):
            yield text

    @property
    def database_bytes(self) -> int:
        """Size of the database, which a store shares with its parts."""
        return (self.folder / _DATABASE).stat().st_size

    def _get_row(self, query: str, row_id: str) -> tuple[Any, ...]:
        rows: list[tuple[Any, ...]] = self._database.query(query, (row_id,))
        if not rows:
            raise DataError(
                f"{self.manifest.corpus}: {row_id!r} is not one of the {self.noun} of this corpus"
            )
        return rows[0]

    _indexed = "text"


class PartPlace(NamedTuple):
    """Place of a part in a store: the row of its document, and its own."""

    document: int
    row: int


class Parts(TextTable):
    """Parts of the documents of a store: the sentences of its arguments."""

    name = "parts"
    noun = "sentences"

    def get(self, part_id: str) -> Document:
        """Return a part as a document with title and side of its document.

        Raises DataError if it is unknown.
        """
        query = (
            "SELECT parts.text, title, side FROM parts JOIN documents ON documents.row = parts.document "
            "WHERE parts.id = ?"
        )
        return Document(part_id, *self._get_row(query, part_id))

    def locate(self, part_id: str) -> PartPlace:
        """Return the place of a part in the store.

        Raises:
            DataError: The store has no such part.
        """
        document, row = self._get_row("SELECT document, row FROM parts WHERE id = ?", part_id)
        return PartPlace(document, row)

    def load_parents(self) -> NDArray[np.int64]:
        """Return the row of the document of each part; memory-mapped.

        Raises DataError if the file is damaged.
        """
        with report_damage(self.folder, "index"):
            rows: NDArray[np.int64] = np.load(
                self.folder / _PARENTS, mmap_mode="r", allow_pickle=False
            )
        return rows


class DocumentStore(TextTable, AbstractContextManager["DocumentStore"]):
    """Documents of a corpus, in the order of its file. A context manager."""

    name = noun = "documents"
    _indexed = "CASE title WHEN '' THEN text ELSE title || ' ' || text END"

    def __init__(self, folder: Path) -> None:
        """Open the store in `folder`; raises DataError if there is none."""
        manifest = _read_manifest(folder)
        # The file never changes, so reads need neither locks nor checks for changes.
        place = f"{(folder / _DATABASE).absolute().as_uri()}?mode=ro&immutable=1"
        with ExitStack() as undo, report_damage(folder, "index"):
            # SQLite does not report why it cannot open a file.
            (folder / _DATABASE).open("rb").close()
            database = undo.enter_context(closing(connect(place)))
            database.path = folder / _DATABASE
            database.execute("SELECT 1 FROM documents, parts LIMIT 0")
            undo.pop_all()
        super().__init__(folder, manifest, database)
        self.parts = Parts(folder, manifest, database)

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
            raise
        raise DataError(
            f"{folder}: damaged {what} ({error!s:.200}); delete the folder and index again"
        ) from error


def _read_manifest(folder: Path) -> StoreManifest:
    try:
        return read_record(folder / _MANIFEST, StoreManifest, "an index manifest")
    except DataError as error:
        raise DataError(
            f"{error}; build the index with `touche-llm index` and its corpus"
        ) from error


def ensure_store(
    source: Source, folder: Path, *, skip_bad_lines: bool = False, warn: Warn
) -> DocumentStore:
    """Open the store of a source in `folder`.

    Build it if it is missing or outdated, also for a reader of other keys.

    A changed corpus is stored again, with a notice, and its BM25 index is removed. After an
    interruption the old folder remains.

    Raises:
        DataError: The corpus cannot be read or has a bad line (unless `skip_bad_lines`).
        UsageError: The folder contains another corpus or is not an index.
    """
    source.check()
    if (folder / _MANIFEST).exists():
        reason = _find_reason_to_rebuild(source, folder, skip_bad_lines)
        if reason is None:
            return DocumentStore(folder)
        warn(f"{reason}; storing {source} again")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: not empty and not an index; choose another folder")
    else:
        warn(f"storing the documents of {source} in {folder}")
    _build(source, folder, skip_bad_lines, warn)
    return DocumentStore(folder)


def hash_corpus(corpus: Path | None, folder: Path) -> str | None:
    """Return the SHA-256 of a corpus file, or of the corpus of the store in a folder.

    None if there is neither.
    """
    if corpus is None:
        if not (folder / _MANIFEST).exists():
            return None
        return _read_manifest(folder).sha256

    if not corpus.is_file():
        return None
    # There may be no store of this version.
    with suppress(DataError):
        return hash_if_changed(_read_manifest(folder), corpus)
    return sha256(corpus)


def _find_reason_to_rebuild(source: Source, folder: Path, skip_bad_lines: bool) -> str | None:
    """Return why the store in a folder does not fit a source; None if it does.

    Raises:
        UsageError: The folder has the store of another corpus.
    """
    try:
        manifest = _read_manifest(folder)
        return _find_difference(manifest, source, folder, skip_bad_lines)
    except DataError as error:
        return str(error)


def _find_difference(
    manifest: StoreManifest, source: Source, folder: Path, skip_bad_lines: bool
) -> str | None:
    """Return how a source differs from the one that was stored; None if it does not."""
    if source.has_changed(manifest):
        if manifest.corpus != source.name:
            raise UsageError(
                f"{folder}: holds the index of {manifest.corpus}, not of {source}; choose another folder"
            )
        return f"{source} changed since it was indexed in {folder}"
    if manifest.keys != source.keys:
        return f"{folder} was read with other keys of id and text, or for another task"
    if manifest.bad_lines and not skip_bad_lines:
        return f"{folder} was built without {manifest.bad_lines} bad lines, which `skip_bad_lines: true` allows"
    return None


# Only a complete folder is renamed into place, so no journal is needed.
_SETUP = "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-200000; BEGIN;"
_DOCUMENTS_TABLE = (
    "CREATE TABLE documents (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, "
    "title TEXT NOT NULL, side TEXT NOT NULL)"
)
_PARTS_TABLE = (
    "CREATE TABLE parts (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, document INTEGER NOT NULL, "
    "text TEXT NOT NULL)"
)


class _StoredRows(NamedTuple):
    """Rows that were stored.

    Attributes:
        documents: Number of documents.
        parents: Row of the document of each part.
    """

    documents: int
    parents: array[int]


def _build(source: Source, folder: Path, skip_bad_lines: bool, warn: Warn) -> None:
    """Write the store of a source, in place of an earlier one.

    Raises:
        DataError: The corpus cannot be read, has a bad line that is not skipped, or no documents.
    """
    skipped = SkippedLines(warn)
    with replace_folder(folder, _STORE_FILES) as building:
        with closing(connect(str(building / _DATABASE))) as database:
            database.executescript(_SETUP)
            database.execute(_DOCUMENTS_TABLE)
            database.execute(_PARTS_TABLE)
            stored = _insert_documents(database, source, skipped if skip_bad_lines else None)
            database.execute("COMMIT")
        np.save(building / _PARENTS, np.frombuffer(stored.parents, dtype=np.int64))

        if stored.documents == 0:
            raise DataError(f"{source}: no usable document in it")
        manifest = StoreManifest(
            corpus=source.name,
            **source.identify(),
            documents=stored.documents,
            parts=len(stored.parents),
            bad_lines=skipped.count,
            keys=source.keys,
        )
        write_records(building / _MANIFEST, [manifest])

    if skipped.count:
        warn(f"left out {skipped.count} bad lines of {source}")


def _insert_documents(
    database: sqlite3.Connection, source: Source, skipped: SkippedLines | None
) -> _StoredRows:
    """Store the documents of a source and their parts.

    Args:
        database: Database with empty tables.
        source: Corpus.
        skipped: Receives bad lines; None to raise an error at the first.
    """
    row = 0
    parents: array[int] = array("q")
    for line, document in source.read(None if skipped is None else skipped.add):
        if not _insert(database, document, row, len(parents)):
            problem = f"document {document.id}: its id, or that of a part, occurs already"
            bad_line = BadLine(source, line, problem)
            if skipped is None:
                raise bad_line
            skipped.add(bad_line)
            continue

        parents.extend([row] * len(document.parts))
        row += 1
    return _StoredRows(documents=row, parents=parents)


def _insert(database: sqlite3.Connection, document: Document, row: int, part_row: int) -> bool:
    """Store a document and its parts unless an id is taken.

    Args:
        database: Database of the store.
        document: Document with its parts.
        row: Row of the document.
        part_row: Row of its first part.

    Returns:
        Whether it was stored.
    """
    # Ids are not looked up before: that takes as long as storing them.
    values = (row, document.id, document.text, document.title, document.side)
    inserted = database.execute(
        "INSERT OR IGNORE INTO documents VALUES (?, ?, ?, ?, ?)", values
    ).rowcount
    if inserted == 0:
        return False
    if not document.parts:
        return True

    parts = [
        (place, part.id, row, part.text)
        for place, part in enumerate(document.parts, start=part_row)
    ]
    inserted_parts = database.executemany(
        "INSERT OR IGNORE INTO parts VALUES (?, ?, ?, ?)", parts
    ).rowcount
    if inserted_parts == len(parts):
        return True

    database.execute("DELETE FROM parts WHERE row >= ?", (part_row,))
    database.execute("DELETE FROM documents WHERE row = ?", (row,))
    return False
