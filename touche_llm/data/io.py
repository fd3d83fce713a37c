"""Reading and writing of files: bounded lines, records, atomic replacement.

Outputs are written in temporary folders beside them. The process that creates one holds a lock on
it, which the system releases when the process ends, for any reason; the next output in the same
place removes what dead processes left.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import os
import platform
import re
import secrets
import shutil
import sqlite3
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeGuard, TypeVar, cast

import orjson

from touche_llm.data.databases import add_path
from touche_llm.data.records import JsonRecord, Malformed
from touche_llm.errors import BadLine, DataError, ToucheError, UsageError, shorten

# Max bytes of a line of JSON: an answer with logprobs has a few kilobytes, a web page a few
# hundred.
MAX_LINE = 16 * 2**20
# Max bytes of a line of a table (a run, qrels).
MAX_TABLE_LINE = 10_000
MAX_ID = 1_000
ID_FORM = f"one printable word of at most {MAX_ID:,} characters"

RecordT = TypeVar("RecordT", bound=JsonRecord)


def open_maybe_gzip(path: Path) -> IO[bytes]:
    """Open a file for reading; gzip is detected by the first bytes, not by the name."""
    with path.open("rb") as stream:
        gzipped = stream.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path, "rb") if gzipped else path.open("rb"))


def read_bounded(path: Path, limit: int, error: type[ToucheError] = DataError) -> bytes:
    """Read a file of at most `limit` bytes.

    Raise OSError, or an error of the given type if it is longer.
    """
    with path.open("rb") as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise error(f"{path}: larger than {limit:,} bytes; give another file")
    return content


def read_bounded_lines(stream: IO[bytes], limit: int) -> Iterator[tuple[int, bytes]]:
    """Yield `(line number, line)`; a line longer than `limit` bytes is cut after `limit + 1`."""
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        yield number, line
        while len(line) > limit and not line.endswith(b"\n"):
            line = stream.readline(limit + 1)


def read_lines(
    path: Path,
    limit: int,
    open_file: Callable[[Path], AbstractContextManager[IO[bytes]]] = open_maybe_gzip,
) -> Iterator[tuple[int, bytes]]:
    """Yield `(line number, line)` as `read_bounded_lines`, without a byte order mark."""
    with report_unreadable(path), open_file(path) as stream:
        for line, raw in read_bounded_lines(stream, limit):
            # An overlong line keeps its length, by which callers detect it.
            yield line, raw.removeprefix(BOM_UTF8) if line == 1 and len(raw) <= limit else raw


@contextmanager
def report_unreadable(path: Path) -> Iterator[None]:
    """Turn errors of reading a file, which may be gzipped, into a DataError."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path}: truncated or damaged gzip file: {error}; download it again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot read the file: {error.strerror or error}") from error


def read_table_lines(path: Path, what: str) -> Iterator[tuple[int, str]]:
    """Yield `(line number, text)` of a table; `what` names it in errors, such as `a run`."""
    for number, raw in read_lines(path, MAX_TABLE_LINE):
        if len(raw) > MAX_TABLE_LINE:
            raise DataError(
                f"{path}:{number}: longer than {MAX_TABLE_LINE:,} bytes; is this {what}?"
            )
        try:
            yield number, raw.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: not UTF-8: {error.reason}") from error


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
    return (
        isinstance(value, str)
        and len(value) <= MAX_ID
        and value.split() == [value]
        and value.isprintable()
    )


def write_records(path: Path, records: Iterable[JsonRecord]) -> None:
    """Write records as JSON Lines, atomically."""
    with open_atomic(path) as stream:
        for record in records:
            stream.write(record.to_json() + b"\n")


def read_records(path: Path, record: type[RecordT], what: str) -> list[RecordT]:
    """Read JSON Lines written by `write_records`.

    Raise DataError if a line is not such a record.
    """
    return list(iterate_records(path, record, what))


def read_record(path: Path, record: type[RecordT], what: str) -> RecordT:
    """Read the only record of a file.

    Raise DataError if it cannot be read or is not such a record.
    """
    with report_unreadable(path):
        content = read_bounded(path, MAX_LINE)
    return parse_record(content, record, path, what)


def iterate_records(path: Path, record: type[RecordT], what: str) -> Iterator[RecordT]:
    """Yield one parsed record a line, for files that need not fit into memory."""
    for number, line in read_lines(path, MAX_LINE):
        yield parse_record(line, record, f"{path}:{number}", f"one of the {what}")


def parse_record(content: bytes | str, record: type[RecordT], place: object, what: str) -> RecordT:
    """Parse a record; raise DataError if the text at this place is not `what`."""
    try:
        return record.from_json(content)
    except Malformed as error:
        raise DataError(f"{place}: not {what}: {error}") from error


def shorten_path(path: Path) -> str:
    """Return the shorter of the relative and the absolute path."""
    return min(os.path.relpath(path), os.path.abspath(path), key=len)


def check_output(path: Path, overwrite: bool, inputs: Iterable[Path] = ()) -> None:
    """Raise UsageError unless a file may be written at `path`.

    Files that the same command reads are not replaced.
    """
    if not os.path.lexists(path):
        return
    if path.exists():
        if not path.is_file():
            raise UsageError(f"{path}: not a regular file; name a file")
        if any(file.exists() and path.samefile(file) for file in inputs):
            raise UsageError(f"{path}: this command also reads the file; name another output file")
    if not overwrite:
        raise UsageError(
            f"{path}: the file exists; name another file, or replace it with `overwrite: true`"
        )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_file_state(path: Path) -> dict[str, int]:
    """Return `size` and `mtime_ns`, the time of the last change, of a file."""
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


@contextmanager
def open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing; rename it to `path` if the block ends without an error."""
    if path.is_dir():
        raise DataError(f"{path}: a folder; name a file")
    with open_scratch(path) as scratch:
        with (scratch / "file").open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(scratch / "file", path)


@contextmanager
def replace_folder(path: Path, own: Collection[str]) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `path` if the block ends without an error.

    Raise UsageError if the existing folder holds files that match none of the patterns `own`
    (`fnmatch`).
    """
    recover(path)
    files = (file.relative_to(path) for file in path.rglob("*") if not file.is_dir())
    # Temporary folders belong to killed builds.
    others = [str(file) for file in files if not any(map(_SCRATCH.fullmatch, file.parts))]
    others = [file for file in others if not any(fnmatchcase(file, pattern) for pattern in own)]
    if others:
        raise UsageError(
            f"{path}: not replaced, since it holds other files: {shorten(others)}; move them elsewhere"
        )
    with open_scratch(path) as scratch:
        building, old = scratch / "folder", _get_old(path)
        building.mkdir()
        yield building
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            path.rename(old)
        building.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def recover(path: Path) -> None:
    """Restore a folder whose replacement was interrupted between its two renames, or remove what a later end left."""
    old = _get_old(path)
    if os.path.lexists(path):
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        old.rename(path)


def _get_old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


_SCRATCH = re.compile(r"\..+\.(?:old|writing-(?P<host>[0-9a-f]{8})-[0-9a-f]{16})")


@contextmanager
def open_scratch(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, whose parents are created, and remove it at the end of the block.

    The folder is locked; those of dead processes are removed. The error of a full disk names
    `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent)
    place = path.with_name(f".{path.name}.writing-{_host()}-{secrets.token_hex(8)}")
    place.mkdir()
    number = os.open(place, os.O_RDONLY)
    try:
        with suppress(
            OSError
        ):  # on a file system without locks, nothing is ever removed as abandoned
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield place
    except OSError as error:
        if error.errno is None:  # numpy reports how much it could not write, not why
            raise OSError(f"{path}: not written completely: {error}; is the disk full?") from error
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.filename = str(path)
        raise
    except sqlite3.Error as error:
        raise add_path(error, path) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(number)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary folders of dead processes of this machine: not every shared file system shares locks."""
    for found in filter(
        None, map(_SCRATCH.fullmatch, os.listdir(folder) if os.access(folder, os.R_OK) else ())
    ):
        if found["host"] != _host():
            continue
        with suppress(
            OSError
        ):  # its process is alive, it was removed meanwhile, or it is of another user
            number = os.open(folder / found[0], os.O_RDONLY)
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder / found[0], ignore_errors=True)
            finally:
                os.close(number)


@cache
def _host() -> str:
    """Return a short name for this machine that any file name may contain."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]
