"""A corpus on disk: documents and their parts in SQLite, found by id or by row without loading the rest."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from touche_llm.errors import BadLine, DataError, UsageError
from touche_llm.files import read_record, sha256, whole_folder, write_records
from touche_llm.records import Document

FORMAT = 2
_PARENTS = "parents.npy"
_Item = TypeVar("_Item", int, str)
_SQL_VARIABLES = 500  # placeholders in one query; SQLite's own limit was 999 for long


class Reader(Protocol):
    """A corpus reader: yields `(line number, document)` and calls back with lines it leaves out."""

    def __call__(
        self, path: Path, on_bad_line: Callable[[BadLine], None] | None = None
    ) -> Iterator[tuple[int, Document]]:
        """Read the corpus at `path`."""
        ...


class StoreManifest(BaseModel):
    """What the documents in a folder were made from; `mtime_ns` only saves hashing a file that was not touched."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    corpus: str
    size: int
    mtime_ns: int
    sha256: str
    documents: int
    parts: int
    bad_lines: int


class Units:
    """What is indexed and found by itself: documents, or parts of documents. Row 0 is the first of the corpus."""

    # The name of the table in the database, and what people call its rows.
    table: str
    noun: str

    def __init__(self, folder: Path, manifest: StoreManifest, database: sqlite3.Connection) -> None:
        """Use `DocumentStore`."""
        self.folder, self.manifest = folder, manifest
        self._database = database

    def __len__(self) -> int:
        size: int = getattr(self.manifest, self.table)
        return size

    def unknown(self, unit_ids: Iterable[str]) -> list[str]:
        """Those of the given ids that the corpus does not hold, in the order given."""
        wanted = list(dict.fromkeys(unit_ids))
        known: set[str] = set()
        for part in _slices(wanted):
            marks = ",".join("?" * len(part))
            known.update(
                row[0] for row in self._database.execute(f"SELECT id FROM {self.table} WHERE id IN ({marks})", part)
            )
        return [unit_id for unit_id in wanted if unit_id not in known]

    def ids_of(self, rows: list[int]) -> list[str]:
        """Ids of the given rows, in the order given."""
        found: dict[int, str] = {}
        for part in _slices(rows):
            marks = ",".join("?" * len(part))
            found.update(self._database.execute(f"SELECT row, id FROM {self.table} WHERE row IN ({marks})", part))
        return [found[row] for row in rows]

    def texts_of(self, ids: list[str]) -> Iterator[str]:
        """Texts of the given ids, all of them in the corpus, in the order given; read as they are wanted."""
        for part in _slices(ids):
            marks = ",".join("?" * len(part))
            found = dict(self._database.execute(f"SELECT id, text FROM {self.table} WHERE id IN ({marks})", part))
            yield from (found[each] for each in part)

    def texts(self) -> Iterator[str]:
        """What is indexed of each, in row order, one in memory at a time."""
        for (text,) in self._database.execute(f"SELECT {self._indexed} FROM {self.table} ORDER BY row"):
            yield text

    _indexed = "text"


class Parts(Units):
    """The parts of a store's documents: the sentences of its arguments."""

    table = "parts"
    noun = "sentences"

    def get(self, part_id: str) -> Document:
        """A part as a document, with title and side of the one it is of; raises DataError when there is none."""
        row = self._database.execute(
            "SELECT parts.text, title, side FROM parts JOIN documents ON documents.row = parts.document "
            "WHERE parts.id = ?",
            (part_id,),
        ).fetchone()
        if row is None:
            raise DataError(f"{part_id!r} is no sentence of the corpus {self.manifest.corpus}")
        return Document(part_id, *row)

    def place(self, part_id: str) -> tuple[int, int]:
        """The row of the document that a part is of, and its own; raises DataError when there is no such part."""
        found = self._database.execute("SELECT document, row FROM parts WHERE id = ?", (part_id,)).fetchone()
        if found is None:
            raise DataError(f"{part_id!r} is no sentence of the corpus {self.manifest.corpus}")
        document, row = found
        return document, row

    def parents(self) -> NDArray[np.int64]:
        """For each row of the parts the row of its document; memory-mapped."""
        rows: NDArray[np.int64] = np.load(self.folder / _PARENTS, mmap_mode="r", allow_pickle=False)
        return rows


class DocumentStore(Units):
    """The documents of one corpus, in the order of its file. A context manager."""

    table = noun = "documents"
    _indexed = "CASE title WHEN '' THEN text ELSE title || ' ' || text END"

    def __init__(self, folder: Path) -> None:
        """Open the store in `folder`; raises DataError when there is none."""
        manifest = _read_manifest(folder)
        place = f"{(folder / 'documents.sqlite').absolute().as_uri()}?mode=ro"
        try:
            super().__init__(folder, manifest, sqlite3.connect(place, uri=True))
        except sqlite3.Error as error:
            raise DataError(f"{folder}: damaged index ({error}); delete the folder and index again") from error
        self.parts = Parts(folder, manifest, self._database)
        try:
            for units in (self, self.parts):
                (rows,) = self._database.execute(f"SELECT ifnull(max(row) + 1, 0) FROM {units.table}").fetchone()
                if rows != len(units):
                    raise sqlite3.DatabaseError(f"{rows} {units.table}, not {len(units)}")
        except sqlite3.Error as error:
            self.close()
            raise DataError(f"{folder}: damaged index ({error}); delete the folder and index again") from error

    def __enter__(self) -> DocumentStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def get(self, document_id: str) -> Document:
        """The document with this id, without its parts; raises DataError when the corpus has none."""
        row = self._database.execute("SELECT text, title, side FROM documents WHERE id = ?", (document_id,)).fetchone()
        if row is None:
            raise DataError(f"document {document_id!r} is not in the corpus {self.manifest.corpus}")
        return Document(document_id, *row)


def _slices(items: list[_Item]) -> Iterator[list[_Item]]:
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


def ensure_store(
    corpus: Path, folder: Path, read: Reader, *, skip_bad_lines: bool = False, notify: Callable[[str], None]
) -> DocumentStore:
    """The store of `corpus` in `folder`, built unless it is there and up to date.

    A corpus whose bytes changed since is stored again (and its BM25 index goes), with a notice. Interrupting leaves
    the old folder or none.

    Raises:
        DataError: the corpus cannot be read or has a bad line (unless `skip_bad_lines`, which lists them instead).
        UsageError: the folder holds another corpus, or something that is no index.
    """
    if not corpus.is_file():
        raise DataError(f"{corpus}: no such corpus file")
    if (folder / "manifest.json").exists():
        stale = _why_stale(_read_manifest(folder), corpus, folder, skip_bad_lines)
        if stale is None:
            return DocumentStore(folder)
        notify(f"{stale}; storing {corpus} again")
    elif folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"{folder}: not empty and not an index; choose another folder")
    else:
        notify(f"storing the documents of {corpus} in {folder}")
    _build(corpus, folder, read, skip_bad_lines, notify)
    return DocumentStore(folder)


def _why_stale(manifest: StoreManifest, corpus: Path, folder: Path, skip_bad_lines: bool) -> str | None:
    status = corpus.stat()
    same_place = manifest.corpus == str(corpus.absolute())
    touched = (manifest.size, manifest.mtime_ns) != (status.st_size, status.st_mtime_ns)
    if not same_place or touched:
        if manifest.size != status.st_size or manifest.sha256 != sha256(corpus):
            if not same_place:
                raise UsageError(
                    f"{folder}: holds the index of {manifest.corpus}, not of {corpus}; choose another folder"
                )
            return f"{corpus} changed since it was indexed in {folder}"
    if manifest.bad_lines and not skip_bad_lines:
        return f"{folder} was built leaving out {manifest.bad_lines} bad lines, which this call does not allow"
    return None


def _build(corpus: Path, folder: Path, read: Reader, skip_bad_lines: bool, notify: Callable[[str], None]) -> None:
    before = corpus.stat()
    bad_lines: list[BadLine] = []
    with whole_folder(folder) as building:
        database = sqlite3.connect(building / "documents.sqlite", isolation_level=None)
        try:
            # The folder appears only when it is complete, so a crash needs no journal.
            database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-200000; BEGIN;")
            database.execute(
                "CREATE TABLE documents (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, line INTEGER, "
                "text TEXT NOT NULL, title TEXT NOT NULL, side TEXT NOT NULL)"
            )
            database.execute(
                "CREATE TABLE parts (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, document INTEGER NOT NULL, "
                "text TEXT NOT NULL)"
            )
            count = 0
            parents: array[int] = array("q")
            for line, document in read(corpus, bad_lines.append if skip_bad_lines else None):
                taken = _taken(database, document)
                if taken:
                    bad = BadLine(corpus, line, taken)
                    if not skip_bad_lines:
                        raise bad
                    bad_lines.append(bad)
                    continue
                database.execute(
                    "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)",
                    (count, document.id, line, document.text, document.title, document.side),
                )
                rows = enumerate(document.parts, start=len(parents))
                database.executemany(
                    "INSERT INTO parts VALUES (?, ?, ?, ?)", ((row, each.id, count, each.text) for row, each in rows)
                )
                parents.extend([count] * len(document.parts))
                count += 1
            database.execute("COMMIT")
            np.save(building / _PARENTS, np.frombuffer(parents, dtype=np.int64))
        finally:
            database.close()
        if not count:
            raise DataError(f"{corpus}: no usable document in it")
        if bad_lines:
            (building / "bad_lines.txt").write_text("".join(f"{bad}\n" for bad in bad_lines), encoding="utf-8")
        after = corpus.stat()
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise DataError(f"{corpus}: changed while it was read; run the command again")
        manifest = StoreManifest(
            format=FORMAT,
            corpus=str(corpus.absolute()),
            size=after.st_size,
            mtime_ns=after.st_mtime_ns,
            sha256=sha256(corpus),
            documents=count,
            parts=len(parents),
            bad_lines=len(bad_lines),
        )
        write_records(building / "manifest.json", [manifest])
    for bad in bad_lines[:10]:
        notify(f"left out: {bad}")
    if bad_lines:
        notify(f"left out {len(bad_lines)} bad lines of {corpus}, all listed in {folder / 'bad_lines.txt'}")


def _taken(database: sqlite3.Connection, document: Document) -> str:
    """What speaks against storing a document: its id, or that of a part, was there before. Empty if nothing does."""
    found = database.execute("SELECT line FROM documents WHERE id = ?", (document.id,)).fetchone()
    if found:
        return f"document {document.id}: the id occurs already in line {found[0]}"
    for part in document.parts:
        found = database.execute(
            "SELECT line FROM parts JOIN documents ON documents.row = document WHERE parts.id = ?", (part.id,)
        ).fetchone()
        if found:
            return f"document {document.id}: the id of its part {part.id} occurs already in line {found[0]}"
    return ""
