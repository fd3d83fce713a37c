"""Streaming reader for documents in JSON Lines, plain or gzipped, and what other readers share with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from touche_llm.data.lines import ID_FORM, MAX_LINE, is_word, parse_json_object, read_lines
from touche_llm.data.records import Document
from touche_llm.errors import BadLine, DataError

RowT = TypeVar("RowT")

# Under these names passages (2022), TIRA's collections and ClueWeb22 have the same things.
# A corpus with more bad lines than this, and than documents, is not the corpus that was meant.
MAX_BAD_LINES = 100_000
_REPORTED_BAD_LINES = 10
# How args_processed_04_01.csv begins, and where an archive with it says that it is one.
_ARGUMENTS, _TAR = b"id,conclusion,premises,", b"ustar"
_ID_KEYS = ("id", "docno", "ClueWeb22-ID")
_TEXT_KEYS = ("contents", "text", "Clean-Text")


def read_passages(path: Path, on_bad_line: Callable[[BadLine], None] | None = None) -> Iterator[tuple[int, Document]]:
    """Yield `(line number, document)` for each line of a `.jsonl` or `.jsonl.gz` file, one in memory at a time.

    Each line is an object with the id under `id`, `docno` or `ClueWeb22-ID` and the text under `contents`, `text` or
    `Clean-Text`; other keys are ignored. Empty lines are bad lines. Whether an id occurs twice is noticed by the store,
    which holds the ids.

    Args:
        path: the file; gzip is recognised by its first bytes, not by its name.
        on_bad_line: called with each bad line, which is then left out; without it, the first one is raised.

    Raises:
        BadLine: not JSON, no usable id, no text, or two ids or two texts that differ.
        DataError: the file cannot be read, or its gzip stream is damaged or ends too early.
    """
    return parse_documents(
        read_json_lines(path),
        lambda raw, line: parse_document(parse_json_object(raw, path, line), path, line),
        on_bad_line,
    )


def read_json_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield `read_lines`; raise DataError where the file is not JSON Lines but the corpus of another task."""
    for line, raw in read_lines(path, MAX_LINE):
        if line == 1 and (raw.startswith(_ARGUMENTS) or raw[257:262] == _TAR):
            raise DataError(
                f"{path}: looks like the arguments of args.me, and this task takes JSON Lines; did you mean --task "
                "sentence_pairs?"
            )
        yield line, raw


def parse_documents(
    rows: Iterable[tuple[int, RowT]],
    document: Callable[[RowT, int], Document | None],
    on_bad_line: Callable[[BadLine], None] | None,
) -> Iterator[tuple[int, Document]]:
    """Yield `(line, document)` for each row that is one, as every reader of a corpus does.

    Args:
        rows: with the lines in which they begin.
        document: makes a document of a row and its line, or None of one to pass over; raises BadLine.
        on_bad_line: called with each bad line, which is then left out; without it, the first one is raised.
    """
    for line, row in rows:
        try:
            found = document(row, line)
        except BadLine as bad:
            if on_bad_line is None:
                raise
            on_bad_line(bad)
        else:
            if found is not None:
                yield line, found


class SkippedLines:
    """The bad lines that are left out of a corpus: counted, the first ones reported, each written to a listing."""

    def __init__(self, corpus: Path, notify: Callable[[str], None], listing: IO[str] | None = None) -> None:
        self.count = 0
        self._corpus, self._notify, self._listing = corpus, notify, listing

    def add(self, bad: BadLine, documents: int) -> None:
        """Leave a line out.

        Args:
            bad: the line.
            documents: how many good ones were read so far.

        Raises:
            DataError: more lines than `MAX_BAD_LINES` are bad, and more than are good.
        """
        self.count += 1
        if self.count > max(MAX_BAD_LINES, documents):
            raise DataError(
                f"{self._corpus}: {self.count:,} bad lines by line {bad.line}, and {documents:,} documents; at most "
                f"{MAX_BAD_LINES:,} bad lines, or as many as documents, are left out; is this the corpus?"
            ) from bad
        if self.count <= _REPORTED_BAD_LINES:
            self._notify(f"left out: {bad}")
        if self._listing is not None:
            self._listing.write(f"{bad}\n")


def parse_document(record: dict[str, Any], path: Path, line: int) -> Document:
    """The document that a line's object holds; raises BadLine."""
    key, identifier = _only(record, _ID_KEYS, "", path, line)
    if not is_word(identifier):
        raise BadLine(path, line, f"`{key}` must be {ID_FORM}, not {identifier!r:.80}")
    key, text = _only(record, _TEXT_KEYS, f"document {identifier}: ", path, line)
    if not isinstance(text, str) or not text.strip():
        raise BadLine(path, line, f"document {identifier}: `{key}` must be a string that is not empty")
    return Document(identifier, text)


def _only(record: dict[str, Any], keys: tuple[str, ...], whose: str, path: Path, line: int) -> tuple[str, Any]:
    """The one of the keys that is there, with its value; two are taken where both say the same."""
    there = [key for key in keys if key in record]
    if not there:
        raise BadLine(path, line, f"{whose}none of the keys {', '.join(f'`{key}`' for key in keys)}")
    for other in there[1:]:
        if record[other] != record[there[0]]:
            raise BadLine(path, line, f"{whose}`{there[0]}` and `{other}` differ; leave one of them out")
    return there[0], record[there[0]]
