"""Reading and writing of files: bounded lines, records, atomic replacement.

Outputs are written to temporary files and folders beside them. The process that creates one holds a lock on it, which
the system releases when the process ends, for any reason; a later run removes what dead processes left.
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

# Max bytes of a line of JSON: an answer with logprobs has a few kilobytes, a web page a few hundred.
MAX_LINE = 16 * 2**20
# Max bytes of a line and max lines of a table (a run, qrels): twenty times the largest runs of the shared tasks. Each
# line takes half a kilobyte of memory.
MAX_TABLE_LINE, MAX_TABLE_LINES = 10_000, 1_000_000
MAX_ID = 1_000
ID_FORM = f"one printable word of at most {MAX_ID:,} characters"

RecordT = TypeVar("RecordT", bound=JsonRecord)


def open_maybe_gzip(path: Path) -> IO[bytes]:
    """Open a file for reading; gzip is detected by the first bytes, not by the name."""
    with path.open("rb") as stream:
        gzipped = stream.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path, "rb") if gzipped else path.open("rb"))


def read_bounded(path: Path, limit: int, error: type[ToucheError] = DataError) -> bytes:
    """Read a file of at most `limit` bytes; raise OSError, or an error of the given type if it is longer."""
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
    path: Path, limit: int, open_file: Callable[[Path], AbstractContextManager[IO[bytes]]] = open_maybe_gzip
) -> Iterator[tuple[int, bytes]]:
    """Yield `(line number, line)` as `read_bounded_lines`, without a byte order mark.

    Raises:
        DataError: The file cannot be read to its end.
    """
    with report_unreadable(path), open_file(path) as stream:
        for line, raw in read_bounded_lines(stream, limit):
            # An overlong line keeps its length, by which callers detect it.
            yield line, raw.removeprefix(BOM_UTF8) if line == 1 and len(raw) <= limit else raw


@contextmanager
def report_unreadable(path: Path) -> Iterator[None]:
    """Turn errors of reading a file, which may be gzipped, into a DataError."""
    try:
        yield
    except EOFError as error:
        raise DataError(f"{path}: truncated gzip file; download it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file: {error}; download it again") from error
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


def write_records(path: Path, records: Iterable[JsonRecord]) -> None:
    """Write records as JSON Lines, atomically."""
    with open_atomic(path) as stream:
        for record in records:
            stream.write(encode_line(record))


def encode_line(record: JsonRecord) -> bytes:
    """Return a record as a line of JSON."""
    return record.to_json() + b"\n"


def read_records(path: Path, record: type[RecordT], what: str) -> list[RecordT]:
    """Read JSON Lines written by `write_records`.

    Raises:
        DataError: The file cannot be read, or a line is not such a record.
    """
    return list(iterate_records(path, record, what))


def read_record(path: Path, record: type[RecordT], what: str) -> RecordT:
    """Read the only record of a file; raise DataError if it cannot be read or is not such a record."""
    with report_unreadable(path):
        content = read_bounded(path, MAX_LINE)
    try:
        return record.from_json(content)
    except Malformed as error:
        raise DataError(f"{path}: not {what}: {error}") from error


def iterate_records(path: Path, record: type[RecordT], what: str) -> Iterator[RecordT]:
    """Yield one parsed record a line, for files that need not fit into memory."""
    for number, line in read_lines(path, MAX_LINE, lambda path: path.open("rb")):
        if len(line) > MAX_LINE:
            raise DataError(f"{path}:{number}: longer than {MAX_LINE:,} bytes; not one of the {what}")
        try:
            yield record.from_json(line)
        except Malformed as error:
            raise DataError(f"{path}:{number}: not one of the {what}: {error}") from error


def check_name(name: str | Path) -> None:
    """Raise UsageError if a name is not UTF-8: no text file could record it."""
    try:
        str(name).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name}: not UTF-8; rename the file or folder") from None


def shorten_path(path: Path) -> str:
    """Return the shorter of the relative and the absolute path."""
    return min(os.path.relpath(path), os.path.abspath(path), key=len)


def check_output(path: Path, overwrite: bool, inputs: Iterable[Path] = ()) -> None:
    """Raise UsageError unless a file may be written at `path`; files that the same command reads are not replaced."""
    if not os.path.lexists(path):
        return
    if path.exists():
        if not path.is_file():
            raise UsageError(f"{path}: not a regular file; name a file")
        if any(file.exists() and path.samefile(file) for file in inputs):
            raise UsageError(f"{path}: this command also reads the file; name another output file")
    if not overwrite:
        raise UsageError(f"{path}: the file exists; name another file, or replace it with `overwrite: true`")


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
    path.parent.mkdir(parents=True, exist_ok=True)
    with _add_output_to_errors(path), open_scratch(path, WRITING) as (writing, number):
        with open(number, "wb", closefd=False) as stream:
            yield stream
            stream.flush()
            os.fsync(number)
        os.fchmod(number, 0o666 & ~_umask())
        os.replace(writing, path)
    remove_abandoned(path.parent)


@contextmanager
def replace_folder(path: Path, own: Collection[str]) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `path` if the block ends without an error.

    Args:
        path: Folder to replace; missing parents are created.
        own: Patterns (`fnmatch`) of the files that this program writes there; no other file is removed.

    Raises:
        UsageError: The existing folder holds other files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    recover(path)
    _check_own_files(path, own)
    with _add_output_to_errors(path), open_scratch(path, BUILDING) as (building, _):
        yield building
        building.chmod(0o777 & ~_umask())
        old = _get_old(path)
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            path.rename(old)
        building.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    remove_abandoned(path.parent)


def recover(path: Path) -> None:
    """Restore a folder whose replacement was interrupted between its two renames."""
    if not os.path.lexists(path) and _get_old(path).exists():
        _get_old(path).rename(path)


def _get_old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _check_own_files(folder: Path, own: Collection[str]) -> None:
    files = (file.relative_to(folder) for file in folder.rglob("*") if file.is_symlink() or not file.is_dir())
    others = [
        str(file)
        for file in files
        # Temporary folders belong to killed builds.
        if not any(fnmatchcase(str(file), pattern) for pattern in own) and not any(map(_SCRATCH.fullmatch, file.parts))
    ]
    if others:
        raise UsageError(
            f"{folder}: the folder would be replaced, but holds files of other programs: "
            f"{shorten(others, 5)}; move them elsewhere and run the same command again"
        )


@contextmanager
def _add_output_to_errors(path: Path) -> Iterator[None]:
    """Add the output path to errors that name no file, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # numpy reports how much it could not write, not why
            raise OSError(
                f"{path}: not written completely: {error}; is the disk full, or a file longer than `ulimit -f`?"
            ) from error
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.filename = str(path)
        raise
    except sqlite3.Error as error:
        raise add_path(error, path) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


WRITING, BUILDING = "writing", "building"
_SCRATCH = re.compile(r"\..+\.(?:old|(?:writing|building)-(?P<host>[0-9a-f]{8})-[0-9a-f]{16})")
# Max characters taken from the name of the output: at four bytes each, the temporary name stays within 255 bytes.
_MAX_NAME_CHARS = 40


@contextmanager
def open_scratch(path: Path, kind: str) -> Iterator[tuple[Path, int]]:
    """Create a temporary folder beside `path`, or a file if `kind` is `WRITING`; remove it after an error.

    Yields:
        Its path and its descriptor, which is locked until the end of the block and closed then.
    """
    place = path.with_name(f".{path.name[:_MAX_NAME_CHARS]}.{kind}-{_host()}-{secrets.token_hex(8)}")
    if kind != WRITING:
        place.mkdir(mode=0o700)
    number = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL if kind == WRITING else os.O_RDONLY, 0o600)
    try:
        with suppress(OSError):  # on a file system without locks, nothing is ever removed as abandoned
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield place, number
    except BaseException:
        _remove(place)
        raise
    finally:
        os.close(number)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files and folders of dead processes of this machine from a folder.

    Those of other machines stay, since not every shared file system shares locks.
    """
    for found in filter(None, map(_SCRATCH.fullmatch, os.listdir(folder) if os.access(folder, os.R_OK) else ())):
        if found["host"] != _host():
            continue
        with suppress(OSError):  # its process is alive, it was removed meanwhile, or it is of another user
            number = os.open(folder / found[0], os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(folder / found[0])
            finally:
                os.close(number)


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


@cache
def _host() -> str:
    """Return a short name for this machine that any file name may contain."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]
