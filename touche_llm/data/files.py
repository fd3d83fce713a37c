"""Reading and writing of files: bounded lines, records, atomic replacement.

An output is written in a temporary folder beside it and renamed when it is complete. The process
holds a lock on a file in that folder, which the system releases when the process ends, for any
reason; the next output in the same place restores or removes what dead processes left.
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
import stat
import tempfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TypeGuard, TypeVar, cast
from urllib.parse import quote

import orjson

from touche_llm.data.records import JsonRecord, Malformed
from touche_llm.data.sqlite import add_path
from touche_llm.errors import BadLine, DataError, ToucheError, UsageError, shorten
from touche_llm.interrupts import removals

# Max bytes of a line of JSON: an answer with logprobs has a few kilobytes, a web page a few
# hundred.
MAX_LINE = 16 * 2**20
# Max bytes of a line of a table (a run, qrels).
MAX_TABLE_LINE = 10_000
MAX_ID = 1_000
ID_FORM = f"one printable word of at most {MAX_ID:,} characters"

RecordT = TypeVar("RecordT", bound=JsonRecord)


def check_regular(path: Path) -> None:
    """Raise OSError for a pipe, a socket or a device: some end only once, others never.

    Files are read several times: to recognize them, to hash them and for their content.
    """
    mode = path.stat().st_mode
    # Opening a folder raises an error of its own.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        problem = "not a regular file; write its content to a file, and give that one"
        raise OSError(errno.EINVAL, problem, str(path))


# Bytes of a file name, and the longest suffix of the files that SQLite writes beside a database.
_MAX_NAME = 255
_SQLITE_SUFFIX = "-journal"


def check_database_file(path: Path) -> None:
    """Raise OSError if SQLite cannot use a file, which need not exist, and would not say why."""
    if path.exists():
        check_regular(path)
    max_bytes = _MAX_NAME - len(_SQLITE_SUFFIX)
    if len(os.fsencode(path.name)) > max_bytes:
        problem = f"file name too long; SQLite adds suffixes to it, so give one of at most {max_bytes} bytes"
        raise OSError(errno.ENAMETOOLONG, problem, str(path))


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; raise OSError as `check_regular`."""
    check_regular(path)
    return path.open("rb")


def open_maybe_gzip(path: Path) -> IO[bytes]:
    """Open a regular file for reading; gzip is detected by the first bytes, not by the name."""
    with open_regular(path) as stream:
        gzipped = stream.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path, "rb") if gzipped else path.open("rb"))


def read_bounded(path: Path, limit: int, error: type[ToucheError] = DataError) -> bytes:
    """Read a regular file of at most `limit` bytes.

    Raise OSError, or an error of the given type if it is longer.
    """
    with open_regular(path) as stream:
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
    """Return the SHA-256 of a regular file, in hexadecimal."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# A file is sampled at so many places, in blocks of so many bytes: 1 MiB in all.
_SAMPLES = 256
_SAMPLE_BYTES = 4096


def read_file_state(path: Path) -> dict[str, Any]:
    """Return `size`, `mtime_ns` (the time of the last change) and `samples` of a file.

    `samples` is the SHA-256 of blocks that are evenly spaced, from the first bytes to the last; of
    the whole file if it has at most 1 MiB. Time and size alone do not show another file that was
    copied with the time of the first.
    """
    status = path.stat()
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "samples": _hash_samples(path, status.st_size),
    }


def _hash_samples(path: Path, size: int) -> str:
    if size <= _SAMPLES * _SAMPLE_BYTES:
        return sha256(path)

    digest = hashlib.sha256()
    last_start = size - _SAMPLE_BYTES
    with path.open("rb") as stream:
        for number in range(_SAMPLES):
            stream.seek(last_start * number // (_SAMPLES - 1))
            digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


@contextmanager
def open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing; rename it to `path` if the block ends without an error."""
    if path.is_dir():
        raise DataError(f"{path}: a folder; name a file")
    with open_scratch(path) as content:
        file = content / "file"
        with file.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        file.replace(path)


@contextmanager
def replace_folder(path: Path, own: Collection[str]) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `path` if the block ends without an error.

    The old folder is moved into the temporary folder just before, so that `recover` can restore it.

    Args:
        path: Folder to replace or create.
        own: Patterns (`fnmatch`) of the files that this program writes there.

    Raises:
        UsageError: `path` is a file, or a folder with files that match none of the patterns.
    """
    with open_scratch(path) as content:
        _check_replaceable(path, own)
        building = content / "folder"
        building.mkdir()
        yield building
        if path.exists():
            retired = content.with_name(_OLD)
            retired.mkdir()
            path.rename(retired / path.name)
        building.rename(path)


def _check_replaceable(path: Path, own: Collection[str]) -> None:
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path}: a file; name a folder")

    others: list[str] = []
    for folder, below, names in os.walk(path):
        # Temporary folders are what killed processes left.
        below[:] = [name for name in below if not _is_scratch(Path(folder, name))]
        for name in names:
            file = os.path.relpath(Path(folder, name), path)
            if not any(fnmatchcase(file, pattern) for pattern in own):
                others.append(file)
    if others:
        problem = f"not replaced, since it holds other files: {shorten(others)}"
        raise UsageError(f"{path}: {problem}; move them elsewhere")


# A temporary folder has a marker, an empty file that names its host and is locked while the writer
# lives, and up to three folders: what is being written, an old folder under its own name, and what
# only has to be removed.
_SCRATCH = re.compile(r"\.touche-llm-[0-9a-f]{16}")
_HOST = quote(platform.node(), safe="", errors="surrogateescape")
# A file name has at most 255 bytes.
_MARKER = f"lock-{_HOST[:200]}"
_NEW = "new"
_OLD = "old"
_REMOVED = "removed"
# Temporary folders of this process.
_own_folders: set[Path] = set()


@contextmanager
def open_scratch(path: Path) -> Iterator[Path]:
    """Yield a temporary folder for the content of `path`, and remove it at the end of the block.

    It lies beside `path`, whose parents are created, and what dead processes left there is
    recovered first. Errors of the temporary folder and of a full disk name `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    recover(path.parent)
    with _name_target_in_errors(path):
        scratch, lock = _create_scratch(path.parent)
        try:
            content = scratch / _NEW
            content.mkdir()
            yield content
        finally:
            # What is still there is left to `recover`.
            with suppress(OSError):
                _clear(scratch)
            _own_folders.discard(scratch)
            os.close(lock)


def _remove_own_folders() -> None:
    """Remove the temporary folders of this process, as far as possible."""
    for scratch in list(_own_folders):
        # What is still there is left to `recover`.
        with suppress(OSError):
            _clear(scratch)
        # Without a marker, it was being created or removed.
        with suppress(OSError):
            scratch.rmdir()


removals.append(_remove_own_folders)


@contextmanager
def open_private_folder() -> Iterator[Path]:
    """Yield a folder that only this user can read, and remove it at the end of the block.

    It lies in the system's folder for temporary files.
    """
    folder = Path(tempfile.mkdtemp(prefix="touche-llm-"))
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    removals.append(remove)
    try:
        yield folder
    finally:
        remove()
        removals.remove(remove)


def recover(folder: Path) -> None:
    """Restore or remove what dead processes of this host left in a folder.

    An old folder that has no successor gets its name back. Left alone are temporary folders

    - of living processes, which hold the lock;
    - of other hosts, since some file systems keep locks local to a host;
    - on a file system without locks;
    - without a marker: an empty one, left by a process that was killed within the microseconds
      between making the folder and its marker, or between removing the two, names no host.
    """
    names = os.listdir(folder) if os.access(folder, os.R_OK) else []
    for name in filter(_SCRATCH.fullmatch, names):
        scratch = folder / name
        # The marker is missing or locked, or belongs to another user.
        with suppress(OSError):
            lock = os.open(scratch / _MARKER, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _clear(scratch)
            finally:
                os.close(lock)


def _create_scratch(parent: Path) -> tuple[Path, int]:
    """Create a temporary folder, and return it and the descriptor of its locked marker.

    On a file system without locks the marker stays unlocked.
    """
    while True:
        scratch = parent / f".touche-llm-{secrets.token_hex(8)}"
        # Before it exists, so that an interrupt at any time removes it.
        _own_folders.add(scratch)
        scratch.mkdir()
        marker = scratch / _MARKER
        try:
            lock = os.open(marker, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            scratch.rmdir()
            raise
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        # Before it was locked, another process may have removed it as abandoned.
        if marker.exists():
            return scratch, lock
        os.close(lock)


def _clear(scratch: Path) -> None:
    """Restore an old folder that has no successor, and remove a temporary folder, marker last.

    The caller holds the lock. After an OSError, the marker is still there for another attempt.
    """
    old = scratch / _OLD
    if old.exists():
        for folder in old.iterdir():
            target = scratch.with_name(folder.name)
            if not os.path.lexists(target):
                folder.rename(target)
        # Or a later attempt could restore a folder of which a part is removed.
        old.rename(scratch / _REMOVED)
    for content in (scratch / _NEW, scratch / _REMOVED):
        if content.exists():
            shutil.rmtree(content)
    (scratch / _MARKER).unlink()
    scratch.rmdir()


def _is_scratch(folder: Path) -> bool:
    """Return whether a folder is a temporary folder of this program, of whichever host."""
    return _SCRATCH.fullmatch(folder.name) is not None and any(folder.glob("lock-*"))


@contextmanager
def _name_target_in_errors(path: Path) -> Iterator[None]:
    """Name `path` in errors of a temporary folder, whose own name says nothing, or a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # numpy reports how much it could not write, not why
            raise OSError(f"{path}: not written completely: {error}; is the disk full?") from error
        is_unnamed = error.filename is None
        is_disk_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        is_temporary = _SCRATCH.search(str(error.filename)) is not None
        if is_temporary or (is_unnamed and is_disk_full):
            error.filename = str(path)
        raise
    except sqlite3.Error as error:
        raise add_path(error, path) from None
