"""Streaming reader for passages in JSON Lines, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

import orjson

from touche_llm.errors import DataError
from touche_llm.files import bounded_lines
from touche_llm.records import Document

# The longest passage of the real corpus has under 10,000 characters; a line this long is not a passage.
MAX_LINE_BYTES = 16 * 2**20


class BadLine(DataError):
    """A line that is not a passage; `path` and `line` say where."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}")
        self.path, self.line, self.reason = path, line, reason


def read_passages(path: Path, on_bad_line: Callable[[BadLine], None] | None = None) -> Iterator[tuple[int, Document]]:
    """Yield `(line number, document)` for each passage of a `.jsonl` or `.jsonl.gz` file, one line in memory at a time.

    Each line is an object with `id` and `contents`; `chatNoirUrl` and other keys are ignored. Empty lines are bad
    lines. Whether an id occurs twice is noticed by the store, which holds the ids.

    Args:
        path: the file; gzip is recognised by its first bytes, not by its name.
        on_bad_line: called with each bad line, which is then left out; without it, the first one is raised.

    Raises:
        BadLine: not JSON, no usable id, no contents.
        DataError: the file cannot be read, or its gzip stream is damaged or ends too early.
    """
    line = 0
    try:
        with _open(path) as stream:
            for line, raw in bounded_lines(stream, MAX_LINE_BYTES):
                try:
                    document = _passage(raw, path, line)
                except BadLine as bad:
                    if on_bad_line is None:
                        raise
                    on_bad_line(bad)
                else:
                    yield line, document
    except EOFError as error:
        raise DataError(f"{path}: truncated gzip file: it ends after line {line}; fetch it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file near line {line + 1}: {error}; fetch it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot read the passages: {error.strerror or error}") from error


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as stream:
        gzipped = stream.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path, "rb") if gzipped else path.open("rb"))


def _passage(raw: bytes, path: Path, line: int) -> Document:
    if len(raw) > MAX_LINE_BYTES:
        raise BadLine(path, line, f"longer than {MAX_LINE_BYTES:,} bytes")
    try:
        record = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadLine(path, line, f"not JSON: {error}" if raw.strip() else "empty line") from error
    if not isinstance(record, dict):
        raise BadLine(path, line, f"not a JSON object but {type(record).__name__}")
    identifier, contents = record.get("id"), record.get("contents")
    if not isinstance(identifier, str) or identifier.split() != [identifier] or not identifier.isprintable():
        raise BadLine(path, line, f"`id` must be one printable word, not {identifier!r:.80}")
    if not isinstance(contents, str) or not contents.strip():
        raise BadLine(path, line, f"passage {identifier}: `contents` must be a string that is not empty")
    return Document(identifier, contents)
