"""Streaming readers for documents in JSON Lines, and shared parts of the corpus readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from touche_llm.data.files import (
    ID_FORM,
    MAX_LINE,
    check_regular,
    is_word,
    parse_json_object,
    read_file_state,
    read_lines,
    sha256,
)
from touche_llm.data.recognize import recognize, require_kind
from touche_llm.data.records import Document, Model
from touche_llm.errors import BadLine, DataError, Warn

OnBadLine = Callable[[BadLine], None]
# Reads the corpus at a path and yields `(line number, document)`. The function is called with each
# bad line, which is then skipped; if it is None, the first one is raised.
Reader = Callable[[Path, OnBadLine | None], Iterator[tuple[int, Document]]]


class StoreManifest(Model):
    """Source of a store; `size`, `mtime_ns` and `samples` avoid hashing an unchanged corpus."""

    format: Literal[5] = 5
    corpus: str
    size: int
    mtime_ns: int
    samples: str
    sha256: str
    documents: int
    parts: int
    bad_lines: int
    # Keys of id and text, or another way of reading the corpus; empty for the keys of Touché.
    keys: str


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """Source of a document store: a corpus file as published, and the reader of its documents.

    Its text is its name in messages. A store of documents that were read with other `keys` is
    outdated.
    """

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
        """Raise DataError if there is no file."""
        if not self.path.exists() or self.path.is_dir():
            raise DataError(f"{self.path}: no such corpus file")
        check_regular(self.path)

    def has_changed(self, manifest: StoreManifest) -> bool:
        """Return whether the content differs.

        A file that was not moved or changed is not hashed again.
        """
        return manifest.size != self.path.stat().st_size or manifest.sha256 != hash_if_changed(
            manifest, self.path
        )

    def read(self, on_bad_line: OnBadLine | None = None) -> Iterator[tuple[int, Document]]:
        """Read the file, see `Reader`."""
        return self.reader(self.path, on_bad_line)

    def identify(self) -> dict[str, Any]:
        """Return size, time, samples and SHA-256 of the file, for the manifest of a store."""
        return {**read_file_state(self.path), "sha256": sha256(self.path)}


def hash_if_changed(manifest: StoreManifest, corpus: Path) -> str:
    """Return the SHA-256 of a corpus file.

    The file from which a store was built is not hashed again.
    """
    is_same_place = manifest.corpus == str(corpus.absolute())
    state = {
        "size": manifest.size,
        "mtime_ns": manifest.mtime_ns,
        "samples": manifest.samples,
    }
    if is_same_place and read_file_state(corpus) == state:
        return manifest.sha256
    return sha256(corpus)


RowT = TypeVar("RowT")

_REPORTED_BAD_LINES = 10
_SHOWN_KEYS = 10


class DocumentKeys(NamedTuple):
    """Keys of a line: the names that the key of the id may have, and those of the key of each part of the text."""

    id: tuple[str, ...]
    text: tuple[tuple[str, ...], ...]


# Names in the passages of 2022, in TIRA's collections and in ClueWeb22.
TOUCHE_KEYS = DocumentKeys(("id", "docno", "ClueWeb22-ID"), (("contents", "text", "Clean-Text"),))


def read_passages(
    path: Path, on_bad_line: OnBadLine | None = None, keys: DocumentKeys = TOUCHE_KEYS
) -> Iterator[tuple[int, Document]]:
    """Yield `(line number, document)` for each line of a `.jsonl` or `.jsonl.gz` file, one in memory at a time.

    Each line is an object with the id and the text under one of the `keys`; other keys are ignored.
    Empty lines are bad lines. Duplicate ids are detected by the store; in TIRA's `rerank.jsonl`,
    known by its name, a document occurs once for each topic that retrieved it, and counts where it
    first occurs.

    Raises:
        BadLine: The line is not JSON, or has no valid id or no text.
        DataError: The file cannot be read, or holds something else than documents with these keys.
    """
    is_rerank = path.name.startswith("rerank.jsonl")
    keys = TOUCHE_KEYS if is_rerank else keys
    start = recognize(path)
    if start.keys.isdisjoint(keys.id) or start.keys.isdisjoint(keys.text[0]):
        require_kind(path, "documents", start=start)
    seen: set[str] = set()

    def parse(raw: bytes, line: int) -> Document | None:
        document = _parse_document(parse_json_object(raw, path, line), path, line, keys)
        if is_rerank and document.id in seen:
            return None
        if is_rerank:
            seen.add(document.id)
        return document

    yield from parse_documents(read_lines(path, MAX_LINE), parse, on_bad_line)


def parse_documents(
    rows: Iterable[tuple[int, RowT]],
    parse: Callable[[RowT, int], Document | None],
    on_bad_line: OnBadLine | None,
) -> Iterator[tuple[int, Document]]:
    """Yield `(line, document)` for each valid row."""
    for line, row in rows:
        try:
            document = parse(row, line)
        except BadLine as bad:
            if on_bad_line is None:
                raise
            on_bad_line(bad)
            continue
        if document is not None:
            yield line, document


class SkippedLines:
    """Skipped bad lines of a corpus: counted, and the first ones reported."""

    def __init__(self, warn: Warn) -> None:
        self.count, self._warn = 0, warn

    def add(self, bad: BadLine) -> None:
        """Record a skipped line."""
        self.count += 1
        if self.count <= _REPORTED_BAD_LINES:
            self._warn(f"left out: {bad}")


def _parse_document(record: dict[str, Any], path: Path, line: int, keys: DocumentKeys) -> Document:
    key, identifier = _get_first(record, keys.id, path, line)
    if not is_word(identifier):
        raise BadLine(path, line, f"`{key}` must be {ID_FORM}, not {identifier!r:.80}")
    found = [_get_first(record, names, path, line) for names in keys.text]
    for key, part in found:
        if not isinstance(part, str | None):
            raise BadLine(
                path, line, f"document {identifier}: `{key}` must be a string, not {part!r:.80}"
            )
    text = "\n".join(part for _, part in found if part and not part.isspace())
    if not text:
        names = " or ".join(f"`{key}`" for key, _ in found)
        raise BadLine(path, line, f"document {identifier}: {names} must not be empty")
    return Document(identifier, text)


def _get_first(
    record: dict[str, Any], names: tuple[str, ...], path: Path, line: int
) -> tuple[str, Any]:
    """Return the first of the names that is a key, with its value."""
    for name in names:
        if name in record:
            return name, record[name]
    known, present = (
        ", ".join(f"`{key:.40}`" for key in list(some)[:_SHOWN_KEYS]) for some in (names, record)
    )
    # Only a task of one's own has these settings; the published collections have the keys of
    # Touché.
    raise BadLine(
        path,
        line,
        f"none of the keys {known}, but {present}; name the keys of your documents in task.yaml (`corpus.id`, "
        "`corpus.text`), and give a part without text as empty or null",
    )
