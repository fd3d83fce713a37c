"""A corpus on disk: the documents in SQLite, found by id or by row without loading the rest."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from touche_llm.corpus.passages import BadLine
from touche_llm.errors import DataError, UsageError
from touche_llm.files import read_record, sha256, whole_folder, write_records
from touche_llm.records import Document

FORMAT = 1
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
    bad_lines: int


class DocumentStore:
    """The documents of one corpus, in the order of its file: row 0 is the first document. A context manager."""

    def __init__(self, folder: Path) -> None:
        """Open the store in `folder`; raises DataError when there is none."""
        self.folder = folder
        self.manifest = _read_manifest(folder)
        place = f"{(folder / 'documents.sqlite').absolute().as_uri()}?mode=ro"
        try:
            self._database = sqlite3.connect(place, uri=True)
        except sqlite3.Error as error:
            raise DataError(f"{folder}: damaged index ({error}); delete the folder and index again") from error
        try:
            (rows,) = self._database.execute("SELECT max(row) + 1 FROM documents").fetchone()
            if rows != self.manifest.documents:
                raise sqlite3.DatabaseError(f"{rows} documents, not {self.manifest.documents}")
        except sqlite3.Error as error:
            self.close()
            raise DataError(f"{folder}: damaged index ({error}); delete the folder and index again") from error

    def __len__(self) -> int:
        return self.manifest.documents

    def __enter__(self) -> DocumentStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def get(self, document_id: str) -> Document:
        """The document with this id; raises DataError when the corpus has none."""
        row = self._database.execute("SELECT text FROM documents WHERE id = ?", (document_id,)).fetchone()
        if row is None:
            raise DataError(f"document {document_id!r} is not in the corpus {self.manifest.corpus}")
        return Document(document_id, row[0])

    def unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Those of the given ids that the corpus does not hold, in the order given."""
        wanted = list(dict.fromkeys(document_ids))
        known: set[str] = set()
        for part in _parts(wanted):
            marks = ",".join("?" * len(part))
            known.update(
                row[0] for row in self._database.execute(f"SELECT id FROM documents WHERE id IN ({marks})", part)
            )
        return [document_id for document_id in wanted if document_id not in known]

    def ids_of(self, rows: list[int]) -> list[str]:
        """Ids of the given rows, in the order given."""
        found: dict[int, str] = {}
        for part in _parts(rows):
            marks = ",".join("?" * len(part))
            found.update(self._database.execute(f"SELECT row, id FROM documents WHERE row IN ({marks})", part))
        return [found[row] for row in rows]

    def texts(self) -> Iterator[str]:
        """All texts in row order, one in memory at a time."""
        for (text,) in self._database.execute("SELECT text FROM documents ORDER BY row"):
            yield text


def _parts(items: list[_Item]) -> Iterator[list[_Item]]:
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
                "CREATE TABLE documents "
                "(row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, line INTEGER, text TEXT NOT NULL)"
            )
            count = 0
            for line, document in read(corpus, bad_lines.append if skip_bad_lines else None):
                try:
                    database.execute(
                        "INSERT INTO documents VALUES (?, ?, ?, ?)", (count, document.id, line, document.text)
                    )
                except sqlite3.IntegrityError:
                    found = database.execute("SELECT line FROM documents WHERE id = ?", (document.id,)).fetchone()
                    bad = BadLine(corpus, line, f"passage {document.id}: the id occurs already in line {found[0]}")
                    if not skip_bad_lines:
                        raise bad from None
                    bad_lines.append(bad)
                else:
                    count += 1
            database.execute("COMMIT")
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
            bad_lines=len(bad_lines),
        )
        write_records(building / "manifest.json", [manifest])
    for bad in bad_lines[:10]:
        notify(f"left out: {bad}")
    if bad_lines:
        notify(f"left out {len(bad_lines)} bad lines of {corpus}, all listed in {folder / 'bad_lines.txt'}")
