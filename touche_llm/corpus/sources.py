"""Sources of a document store: what it is built from, and whether that changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from touche_llm.data.files import FileState, check_name, read_file_state, sha256
from touche_llm.data.json_records import JsonModel
from touche_llm.data.records import Document
from touche_llm.errors import BadLine, DataError

OnBadLine = Callable[[BadLine], None]


class Reader(Protocol):
    """Corpus reader that yields `(line number, document)` and reports skipped lines."""

    def __call__(self, path: Path, on_bad_line: OnBadLine | None = None) -> Iterator[tuple[int, Document]]:
        """Read the corpus at `path`.

        `on_bad_line` is called with each bad line, which is then skipped; if None, the first one is raised.
        """
        ...


class StoreManifest(JsonModel):
    """Source of a store; `mtime_ns` and `sample` avoid hashing an unchanged corpus."""

    format: int
    corpus: str
    size: int
    mtime_ns: int
    # Empty in stores of earlier versions; their corpus is hashed each time.
    sample: str = ""
    sha256: str
    documents: int
    parts: int
    bad_lines: int
    # Keys of id and text, or another way of reading the corpus; empty in stores of earlier versions, and for the keys
    # of Touché.
    keys: str = ""


class Source(Protocol):
    """What a document store is built from; its text is its name in messages."""

    @property
    def name(self) -> str:
        """Name in the manifest of a store."""
        ...

    @property
    def keys(self) -> str:
        """How the documents are read; a store of documents that were read otherwise is outdated."""
        ...

    def check(self) -> None:
        """Raise an error if the source is missing, or has a name that no manifest can hold."""
        ...

    def has_changed(self, manifest: StoreManifest) -> bool:
        """Return whether the documents may differ from those of a store."""
        ...

    def read(self, on_bad_line: OnBadLine | None = None) -> Iterator[tuple[int, Document]]:
        """Yield `(number, document)`, see `Reader`."""
        ...

    def read_state(self) -> FileState:
        """Return a fingerprint, which changes if the source does."""
        ...

    def hash(self) -> str:
        """Return the SHA-256 of the content, in hexadecimal, after all documents were read."""
        ...


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A corpus file as published, and the reader of its documents."""

    path: Path
    reader: Reader
    keys: str = ""

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """Absolute path."""
        return str(self.path.absolute())

    def check(self) -> None:
        """Raise DataError if there is no file, or UsageError if its path is not UTF-8."""
        if not self.path.is_file():
            raise DataError(f"{self.path}: no such corpus file")
        check_name(self.path.absolute())

    def has_changed(self, manifest: StoreManifest) -> bool:
        """Return whether the content differs; a file that was not moved or changed is not hashed again."""
        return manifest.size != self.path.stat().st_size or manifest.sha256 != hash_if_changed(manifest, self.path)

    def read(self, on_bad_line: OnBadLine | None = None) -> Iterator[tuple[int, Document]]:
        """Read the file; see `Reader`."""
        return self.reader(self.path, on_bad_line)

    def read_state(self) -> FileState:
        """Return size, time and a sample of the file."""
        return read_file_state(self.path)

    def hash(self) -> str:
        """Return the SHA-256 of the file."""
        return sha256(self.path)


def hash_if_changed(manifest: StoreManifest, corpus: Path) -> str:
    """Return the SHA-256 of a corpus file; the file from which a store was built is not hashed again."""
    same_place = manifest.corpus == str(corpus.absolute())
    if same_place and read_file_state(corpus) == (manifest.size, manifest.mtime_ns, manifest.sample):
        return manifest.sha256
    return sha256(corpus)
