"""Streaming readers for documents in JSON Lines, and shared parts of the corpus readers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeVar

from touche_llm.data.io import (
    ID_FORM,
    MAX_LINE,
    is_word,
    parse_json_object,
    read_file_state,
    read_lines,
    sha256,
)
from touche_llm.data.records import Document, Model
from touche_llm.data.topics import recognize, require_kind
from touche_llm.errors import BadLine, DataError, Warn

OnBadLine = Callable[[BadLine], None]


# Reads the corpus at a path and yields `(line number, document)`. The function is called with each bad line, which is
# then skipped; if it is None, the first one is raised.
Reader = Callable[[Path, OnBadLine | None], Iterator[tuple[int, Document]]]


class StoreManifest(Model):
    """Source of a store; `size` and `mtime_ns` avoid hashing an unchanged corpus."""

    format: Literal[4] = 4
    corpus: str
    size: int
    mtime_ns: int
    sha256: str
    documents: int
    parts: int
    bad_lines: int
    # Keys of id and text, or another way of reading the corpus; empty for the keys of Touché.
    keys: str


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """Source of a document store: a corpus file as published, and the reader of its documents.

    Its text is its name in messages. A store of documents that were read with other `keys` is outdated.
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
        if not self.path.is_file():
            raise DataError(f"{self.path}: no such corpus file")

    def has_changed(self, manifest: StoreManifest) -> bool:
        """Return whether the content differs; a file that was not moved or changed is not hashed again."""
        return manifest.size != self.path.stat().st_size or manifest.sha256 != hash_if_changed(manifest, self.path)

    def read(self, on_bad_line: OnBadLine | None = None) -> Iterator[tuple[int, Document]]:
        """Read the file, see `Reader`; raise DataError if it changes meanwhile."""
        before = read_file_state(self.path)
        yield from self.reader(self.path, on_bad_line)
        if read_file_state(self.path) != before:
            raise DataError(f"{self.path}: changed while it was read; run the command again")

    def identify(self) -> dict[str, Any]:
        """Return size, time and SHA-256 of the file, for the manifest of a store."""
        return {**read_file_state(self.path), "sha256": sha256(self.path)}


def hash_if_changed(manifest: StoreManifest, corpus: Path) -> str:
    """Return the SHA-256 of a corpus file; the file from which a store was built is not hashed again."""
    same_place = manifest.corpus == str(corpus.absolute())
    if same_place and read_file_state(corpus) == {"size": manifest.size, "mtime_ns": manifest.mtime_ns}:
        return manifest.sha256
    return sha256(corpus)


RowT = TypeVar("RowT")

_REPORTED_BAD_LINES = 10


class DocumentKeys(NamedTuple):
    """Keys of a line under which the id and the text of a document are searched.

    Attributes:
        id: Names of the key of the id.
        text: Names of the key of the text; or keys of its parts, as title and text, which all lines have.
        is_joined: Whether `text` names parts.
    """

    id: tuple[str, ...]
    text: tuple[str, ...]
    is_joined: bool = False


# Names in the passages of 2022, in TIRA's collections and in ClueWeb22.
TOUCHE_KEYS = DocumentKeys(("id", "docno", "ClueWeb22-ID"), ("contents", "text", "Clean-Text"))


def read_passages(
    path: Path, on_bad_line: OnBadLine | None = None, keys: DocumentKeys = TOUCHE_KEYS
) -> Iterator[tuple[int, Document]]:
    """Yield `(line number, document)` for each line of a `.jsonl` or `.jsonl.gz` file, one in memory at a time.

    Each line is an object with the id and the text under one of the `keys`; other keys are ignored. Empty lines
    are bad lines. Duplicate ids are detected by the store.

    Raises:
        BadLine: The line is not JSON, has no valid id or no text, or has two different ids or texts.
        DataError: The file cannot be read, or its gzip stream is damaged or truncated.
    """
    return parse_documents(
        read_json_lines(path, keys),
        lambda raw, line: parse_document(parse_json_object(raw, path, line), path, line, keys),
        on_bad_line,
    )


def read_json_lines(path: Path, keys: DocumentKeys) -> Iterator[tuple[int, bytes]]:
    """Yield lines as `read_lines`; raise DataError if the file holds something else than documents with these keys."""
    start = recognize(path)
    if start.keys.isdisjoint(keys.id) or start.keys.isdisjoint(keys.text):
        require_kind(path, "documents", start=start)
    yield from read_lines(path, MAX_LINE)


def parse_documents(
    rows: Iterable[tuple[int, RowT]], parse: Callable[[RowT, int], Document | None], on_bad_line: OnBadLine | None
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
    """Skipped bad lines of a corpus: counted, written to a listing, the first ones reported."""

    def __init__(self, warn: Warn, listing: IO[str] | None = None) -> None:
        self.count = 0
        self._warn, self._listing = warn, listing

    def add(self, bad: BadLine) -> None:
        """Record a skipped line."""
        self.count += 1
        if self.count <= _REPORTED_BAD_LINES:
            self._warn(f"left out: {bad}")
        if self._listing is not None:
            self._listing.write(f"{bad}\n")


def parse_document(record: dict[str, Any], path: Path, line: int, keys: DocumentKeys = TOUCHE_KEYS) -> Document:
    """Parse a document from the JSON object of a line; raises BadLine."""
    key, identifier = _get_unique(record, keys.id, "", path, line)
    if not is_word(identifier):
        raise BadLine(path, line, f"`{key}` must be {ID_FORM}, not {identifier!r:.80}")
    if keys.is_joined:
        return Document(identifier, _join_parts(record, keys.text, f"document {identifier}: ", path, line))
    key, text = _get_unique(record, keys.text, f"document {identifier}: ", path, line)
    if not isinstance(text, str) or not text.strip():
        raise BadLine(path, line, f"document {identifier}: `{key}` must be a string that is not empty")
    return Document(identifier, text)


# Only a task of one's own has these settings; the published collections have the keys of Touché.
_ADVICE = "name the keys of your documents in task.yaml (`corpus.id`, `corpus.text`)"
_MAX_KEYS = 10


def _quote(keys: Iterable[str]) -> str:
    """Return the first of several keys in backticks."""
    first = list(islice(keys, _MAX_KEYS + 1))
    return ", ".join([*(f"`{key:.40}`" for key in first[:_MAX_KEYS]), *["…"] * (len(first) > _MAX_KEYS)])


def _get_unique(record: dict[str, Any], keys: tuple[str, ...], whose: str, path: Path, line: int) -> tuple[str, Any]:
    """Return the present key with its value; several present keys must have equal values."""
    present = [key for key in keys if key in record]
    if not present:
        raise BadLine(path, line, f"{whose}none of the keys {_quote(keys)}, but {_quote(record)}; {_ADVICE}")
    for other in present[1:]:
        if record[other] != record[present[0]]:
            raise BadLine(path, line, f"{whose}`{present[0]}` and `{other}` differ; leave one of them out")
    return present[0], record[present[0]]


def _join_parts(record: dict[str, Any], keys: tuple[str, ...], whose: str, path: Path, line: int) -> str:
    """Return the texts under these keys, a line feed between them; an empty part, or null, is left out."""
    if missing := [key for key in keys if key not in record]:
        raise BadLine(
            path,
            line,
            f"{whose}no key `{missing[0]}`, but {_quote(record)}; {_ADVICE}; a part without text must be empty or null",
        )
    parts = [record[key] or "" for key in keys]
    for key, part in zip(keys, parts, strict=True):
        if not isinstance(part, str):
            raise BadLine(path, line, f"{whose}`{key}` must be a string, not {part!r:.80}")
    text = "\n".join(filter(str.strip, parts))
    if not text:
        raise BadLine(path, line, f"{whose}one of {', '.join(f'`{key}`' for key in keys)} must not be empty")
    return text


def read_rerank_documents(path: Path, on_bad_line: OnBadLine | None = None) -> Iterator[tuple[int, Document]]:
    """Yield `(line number, document)` for each document of a `rerank.jsonl(.gz)`, at its first occurrence.

    A document occurs once for each topic that retrieved it. One digest per document is kept in memory.

    Raises:
        BadLine: The line is not JSON, has no valid `docno` or no `text`, or the document had another text before.
        DataError: The file cannot be read, or its gzip stream is damaged or truncated.
    """
    seen: dict[str, tuple[int, bytes]] = {}

    def parse_first(raw: bytes, line: int) -> Document | None:
        document = parse_document(parse_json_object(raw, path, line), path, line)
        digest = hashlib.sha256(document.text.encode()).digest()
        before, text = seen.setdefault(document.id, (line, digest))
        if text != digest:
            raise BadLine(path, line, f"document {document.id}: another text than in line {before}")
        return document if before == line else None

    return parse_documents(read_json_lines(path, TOUCHE_KEYS), parse_first, on_bad_line)


def read_collection(
    path: Path, on_bad_line: OnBadLine | None = None, keys: DocumentKeys = TOUCHE_KEYS
) -> Iterator[tuple[int, Document]]:
    """Read a `rerank.jsonl`, detected by its name, or a plain collection in JSON Lines with these keys."""
    if path.name.startswith("rerank.jsonl"):
        return read_rerank_documents(path, on_bad_line)
    return read_passages(path, on_bad_line, keys)
