"""Reading and writing of files: bounded lines, sealed records, atomic writes."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shutil
import sqlite3
import stat
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeGuard, TypeVar, cast

import orjson

from touche_llm.data.databases import add_path
from touche_llm.data.records import JsonRecord, Malformed
from touche_llm.data.scratch import BUILDING, RETIRED, WRITING, is_scratch, open_scratch, recover, remove_abandoned
from touche_llm.errors import BadLine, DataError, UsageError, shorten

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


# Max bytes and commas of a file of records. In memory a byte takes up to four bytes, a value about a hundred. The
# largest file of a shared task, 50 topics of 1,000 documents, has 35 MiB and 1.8 million commas.
MAX_RECORDS, MAX_VALUES = 192 * 2**20, 7_000_000
# Blocks hashed to detect a change, and their size: a file of up to 4 MiB is hashed completely, a larger one in
# milliseconds.
_BLOCKS, _BLOCK = 64, 2**16

RecordT = TypeVar("RecordT", bound=JsonRecord)


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
    recover(path.parent)
    _check_own_files(path, own)
    with _add_output_to_errors(path), open_scratch(path, BUILDING) as (building, _):
        with _explain_short_writes(building):
            yield building
        building.chmod(0o777 & ~_umask())
        if path.exists():
            _check_own_files(path, own)  # Again, since building takes minutes.
            with open_scratch(path, RETIRED) as (retired, _):
                # It keeps its name, so that `recover` can restore it.
                old = retired / path.name
                try:
                    path.rename(old)
                    building.rename(path)
                except BaseException:
                    if not path.exists():
                        old.rename(path)
                    raise
                shutil.rmtree(retired)
        else:
            building.rename(path)
    remove_abandoned(path.parent)


def _check_own_files(folder: Path, own: Collection[str]) -> None:
    others = []
    for root, folders, files in os.walk(folder):
        # Temporary folders belong to killed builds.
        folders[:] = [name for name in folders if not is_scratch(name)]
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        names = (os.path.relpath(os.path.join(root, name), folder) for name in files + links if not is_scratch(name))
        others += [name for name in names if not any(fnmatchcase(name, pattern) for pattern in own)]
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
        if error.filename is None and error.errno in (None, errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.filename = str(path)
        raise
    except sqlite3.Error as error:
        raise add_path(error, path) from None


@contextmanager
def _explain_short_writes(folder: Path) -> Iterator[None]:
    """Find the cause of a write to a file in a folder that numpy broke off: it reports how much is missing, not why."""
    try:
        yield
    except OSError as error:
        if error.errno is None and (files := [file for file in folder.iterdir() if file.is_file()]):
            try:
                with max(files, key=lambda file: file.stat().st_mtime_ns).open("ab") as stream:
                    stream.write(bytes(_BLOCK))
            except OSError as cause:
                raise OSError(cause.errno, cause.strerror) from error
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class FileState(NamedTuple):
    """Fingerprint that detects a change without reading the whole file; `sample` hashes evenly spaced blocks."""

    size: int
    mtime_ns: int
    sample: str


def read_file_state(path: Path) -> FileState:
    """Return the current state of a file."""
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        status = os.fstat(stream.fileno())
        last = max(0, status.st_size - _BLOCK)
        for block in range(_BLOCKS):
            stream.seek(last * block // (_BLOCKS - 1))
            digest.update(stream.read(_BLOCK))
    return FileState(status.st_size, status.st_mtime_ns, digest.hexdigest())


def write_records(path: Path, records: Iterable[JsonRecord]) -> None:
    """Write records as JSON Lines, atomically."""
    with open_atomic(path) as stream:
        for record in records:
            stream.write(encode_line(record))


def encode_line(record: JsonRecord) -> bytes:
    """Return a record as a line of JSON."""
    return record.to_json() + b"\n"


def read_records(path: Path, record: type[RecordT], what: str, *, max_bytes: int = MAX_RECORDS) -> list[RecordT]:
    """Read JSON Lines written by `write_records`.

    Raises:
        DataError: The file cannot be read, exceeds `max_bytes` or `MAX_VALUES`, or a line is not such a record.
    """
    found: list[RecordT] = []
    size = values = 0
    for number, line in _read_record_lines(path, what):
        size += len(line)
        values += line.count(b",")
        if size > max_bytes or values > MAX_VALUES:
            raise DataError(
                f"{path}:{number}: too large: at most {max_bytes:,} bytes and {MAX_VALUES:,} values are read into "
                "memory; restore the file, or divide a larger run by topics (`topic: ID`)"
            )
        found.append(_parse_record(path, number, line, record, what))
    return found


def read_record(path: Path, record: type[RecordT], what: str) -> RecordT:
    """Read the only record of a file; raises DataError as `read_records`, and unless there is exactly one."""
    records = list(islice(iterate_records(path, record, f"{what}s"), 2))
    if len(records) != 1:
        raise DataError(f"{path}: {'more than one line' if records else 'no line'}, not one {what}")
    return records[0]


def iterate_records(path: Path, record: type[RecordT], what: str) -> Iterator[RecordT]:
    """Yield one parsed record a line, for files that need not fit into memory."""
    for number, line in _read_record_lines(path, what):
        yield _parse_record(path, number, line, record, what)


def _read_record_lines(path: Path, what: str) -> Iterator[tuple[int, bytes]]:
    try:
        with open_regular(path) as stream:
            for number, line in read_bounded_lines(stream, MAX_LINE):
                if len(line) > MAX_LINE:
                    raise DataError(f"{path}:{number}: longer than {MAX_LINE:,} bytes; not one of the {what}")
                yield number, line
    except OSError as error:
        raise DataError(f"{path}: cannot read the {what}: {error.strerror}") from error


def _parse_record(path: Path, number: int, line: bytes, record: type[RecordT], what: str) -> RecordT:
    try:
        return record.from_json(line)
    except Malformed as error:
        raise DataError(f"{path}:{number}: not one of the {what}: {error}") from error
