"""Bounded readers for untrusted files and their lines."""

from __future__ import annotations

import errno
import gzip
import os
import stat
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TypeGuard, cast

import orjson

from touche_llm.errors import BadLine, DataError

# Max bytes of a line of JSON: an answer with logprobs has a few kilobytes, a web page a few hundred.
MAX_LINE = 16 * 2**20
# Max bytes of a line and max lines of a table (a run, qrels): twenty times the largest runs of the shared tasks. Each
# line takes half a kilobyte of memory.
MAX_TABLE_LINE, MAX_TABLE_LINES = 10_000, 1_000_000
# Max bytes skipped of one line: a gzip file of a few megabytes can hold a line of many gigabytes.
MAX_SKIPPED = 2**30
MAX_ID = 1_000
ID_FORM = f"one printable word of at most {MAX_ID:,} characters"


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; raise OSError if it is not a regular file, such as a pipe, whose reader waits."""
    return open(path, "rb", opener=_open_regular)  # noqa: SIM115, callers close it


def _open_regular(path: str, flags: int) -> int:
    # Without the flag, opening a pipe waits for a writer.
    number = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(number).st_mode
    # A folder raises an error of its own.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        os.close(number)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return number


def read_bounded_lines(stream: IO[bytes], limit: int) -> Iterator[tuple[int, bytes]]:
    """Yield `(line number, line)`; a line longer than `limit` bytes is cut after `limit + 1`.

    Raises:
        DataError: A line is longer than `MAX_SKIPPED` bytes.
    """
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        yield number, line
        skipped = 0
        while len(line) > limit and not line.endswith(b"\n"):
            line = stream.readline(limit + 1)
            skipped += len(line)
            if skipped > MAX_SKIPPED:
                raise DataError(f"{stream.name}:{number}: longer than {MAX_SKIPPED:,} bytes; is this a text file?")


def open_maybe_gzip(path: Path) -> IO[bytes]:
    """Open a file for reading; gzip is detected by the first bytes, not by the name."""
    with open_regular(path) as stream:
        gzipped = stream.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path, "rb") if gzipped else open_regular(path))


def read_lines(
    path: Path, limit: int, open_file: Callable[[Path], AbstractContextManager[IO[bytes]]] = open_maybe_gzip
) -> Iterator[tuple[int, bytes]]:
    """Yield `(line number, line)` as `read_bounded_lines`, without a byte order mark.

    Raises:
        DataError: The file cannot be read to its end.
    """
    line = 0
    with report_unreadable(path, "line", lambda: line), open_file(path) as stream:
        for line, raw in read_bounded_lines(stream, limit):  # noqa: B007, the message names the last one
            # An overlong line keeps its length, by which callers detect it.
            yield line, raw.removeprefix(BOM_UTF8) if line == 1 and len(raw) <= limit else raw


@contextmanager
def report_unreadable(path: Path, noun: str, count: Callable[[], int] = int) -> Iterator[None]:
    """Turn errors of reading a file, which may be gzipped, into a DataError.

    Args:
        path: The file.
        noun: What it consists of.
        count: Returns how many of these were read.
    """
    try:
        yield
    except EOFError as error:
        raise DataError(f"{path}: truncated gzip file: it ends after {noun} {count()}; download it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file near {noun} {count() + 1}: {error}; download it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot read the file: {error.strerror or error}") from error


def read_table_lines(path: Path, what: str) -> Iterator[tuple[int, str]]:
    """Yield `(line number, text)` of a table; `what` names it in errors, such as `a run`.

    Raises:
        DataError: As `read_lines`, or there are too many lines, a line is too long or not UTF-8.
    """
    for number, raw in read_lines(path, MAX_TABLE_LINE):
        check_line_number(path, number, what)
        if len(raw) > MAX_TABLE_LINE:
            raise DataError(f"{path}:{number}: longer than {MAX_TABLE_LINE:,} bytes; is this {what}?")
        try:
            yield number, raw.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: not UTF-8: {error.reason}") from error


def check_line_number(path: Path, number: int, what: str) -> None:
    """Raise DataError if a table has too many lines."""
    # Reading all empty lines of a small gzip file could take hours.
    if number > MAX_TABLE_LINES:
        raise DataError(f"{path}: more than {MAX_TABLE_LINES:,} lines; is this {what}?")


def parse_json_object(raw: bytes, path: Path, line: int) -> dict[str, Any]:
    """Parse a line that was read with the limit `MAX_LINE` as a JSON object; raises BadLine."""
    if len(raw) > MAX_LINE:
        raise BadLine(path, line, f"longer than {MAX_LINE:,} bytes")
    try:
        record = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadLine(path, line, f"not JSON: {error}" if raw.strip() else "empty line") from error
    if not isinstance(record, dict):
        raise BadLine(path, line, f"not a JSON object but {type(record).__name__}")
    return record


def is_word(value: object) -> TypeGuard[str]:
    """Return whether a value can be an id: one column of a run, and short enough for messages."""
    return isinstance(value, str) and len(value) <= MAX_ID and value.split() == [value] and value.isprintable()
