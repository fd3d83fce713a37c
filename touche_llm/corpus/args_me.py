"""Streaming reader for the arguments of args.me with their sentences, as Touché 2022 task 1 publishes them."""

from __future__ import annotations

import ast
import csv
import math
import re
import tarfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from touche_llm.corpus.json_lines import parse_documents
from touche_llm.data.lines import ID_FORM, is_word, open_maybe_gzip, read_lines
from touche_llm.data.records import Document, Part
from touche_llm.errors import BadLine, DataError

HEADER = ["id", "conclusion", "premises", "context", "sentences"]
SIDES = ("PRO", "CON")
# An argument of the real corpus has a few ten thousand bytes, a web page in its context some hundred thousand.
MAX_ROW_BYTES = 16 * 2**20
MAX_ROW_LINES = 100_000
# Bytes of an archive beside its table: headers, other files, padding.
MAX_BESIDE = 64 * 2**20
# Python's parser takes a hundred times the memory of what it parses. Only literals of another shape than that of the
# real corpus, which has none, come to it whole.
MAX_PARSED = 2**17

# A string literal without prefix on one line. Possessive, so that text from outside cannot make it go back and forth.
_STRING = r"""(?:'[^'\\\r\n\0]*+(?:\\[^\r\n\0][^'\\\r\n\0]*+)*+'|"[^"\\\r\n\0]*+(?:\\[^\r\n\0][^"\\\r\n\0]*+)*+")"""
_NEXT = r"(?:, (?=\{)|\]\Z)"
_SENTENCE = re.compile(rf"\{{'sent_id': ({_STRING}), 'sent_text': ({_STRING})\}}{_NEXT}")
_PREMISE = re.compile(rf"\{{'text': ({_STRING}), 'stance': ({_STRING}), 'annotations': \[\]\}}{_NEXT}")


def read_arguments(path: Path, on_bad_line: Callable[[BadLine], None] | None = None) -> Iterator[tuple[int, Document]]:
    """Yield `(line number, argument)` for each row of `args_processed_04_01.csv`, one row in memory at a time.

    A document's `text` is its premise sentences with a space between (empty for the few arguments that are only a
    conclusion), `title` the conclusion with white space collapsed, `side` the stance of the first premise, `parts` all
    its sentences that are not blank, those of the conclusion too. `context` is not parsed. The line number is that of
    the line in which the row begins. Whether an id occurs twice is noticed by the store.

    Args:
        path: the CSV file, plain or gzipped, or the tar archive with it, told by content; nothing is unpacked to disk.
        on_bad_line: called with each bad row, which is then left out; without it, the first one is raised.

    Raises:
        BadLine: not UTF-8, not CSV, longer than `MAX_ROW_BYTES`, another number of fields than the header's, an id
            that is not one printable word or holds a comma (a pair's id is `a,b`), `premises` or `sentences` that are
            not such a Python literal, an unknown stance, a sentence id twice, no sentence.
        DataError: another header, or the file cannot be read, is damaged or ends too early.
    """
    return parse_documents(_rows(path), lambda row, line: _argument(row, path, line), on_bad_line)


@contextmanager
def _open_csv(path: Path) -> Iterator[IO[bytes]]:
    with open_maybe_gzip(path) as stream:
        start = stream.read(512)
        stream.seek(0)
        if start[257:262] != b"ustar":
            yield stream
            return
        try:
            metered = _Metered(stream)
            with tarfile.open(fileobj=cast(IO[bytes], metered), mode="r|") as archive:
                tables = (member for member in archive if _is_table(member))
                table = next(tables, None)
                if table is None:
                    raise DataError(f"{path}: no file in this tar archive ends in .csv; is it the processed args.me?")
                metered.left = math.inf
                with cast(IO[bytes], archive.extractfile(table)) as content:
                    yield content
                metered.left = MAX_BESIDE
                if another := next(tables, None):
                    raise DataError(f"{path}: holds {table.name} and {another.name}; give the .csv that is meant")
            while metered.read(2**20):
                pass  # the checksum stands at the end
        except tarfile.TarError as error:
            raise DataError(f"{path}: damaged tar archive: {error}; download it again") from error


class _Metered:
    """A stream of which at most `left` bytes are still read: a small archive can hold a header of gigabytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.left: float = MAX_BESIDE
        self._stream = stream

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise tarfile.ReadError(f"more than {MAX_BESIDE:,} bytes beside the table")
        return content


def _is_table(member: tarfile.TarInfo) -> bool:
    # macOS packs a hidden file `._x.csv` beside x.csv.
    return member.isfile() and member.name.endswith(".csv") and not PurePosixPath(member.name).name.startswith(".")


class _Lines:
    """The lines of the CSV, decoded; `fault` is what is wrong with the bytes of the row that is being read."""

    def __init__(self, lines: Iterator[tuple[int, bytes]]) -> None:
        self._lines = lines
        self.number = 0
        self.begins_with_json = False
        self.begin_row()

    def begin_row(self) -> None:
        self._bytes = self._count = 0
        self.fault = ""

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        self.number, raw = next(self._lines)
        self._bytes += len(raw)
        if self.number == 1:
            self.begins_with_json = raw.lstrip().startswith(b"{")
        if self._bytes > MAX_ROW_BYTES:
            raise csv.Error(f"longer than {MAX_ROW_BYTES:,} bytes; is a quotation mark not closed?")
        self._count += 1
        if self._count > MAX_ROW_LINES:
            raise csv.Error(f"longer than {MAX_ROW_LINES:,} lines; is a quotation mark not closed?")
        if b"\0" in raw:
            self.fault = "holds a NUL byte"
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self.fault = f"not UTF-8: {error.reason}"
            return raw.decode("utf-8", errors="replace")


def _rows(path: Path) -> Iterator[tuple[int, list[str] | BadLine]]:
    """Yield `(line in which it begins, row)`, the header left out; a BadLine stands for a row that cannot be read."""
    # The limit is the process's own. It is raised and never put back: another reader may be in the middle of a row.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))
    lines = _Lines(read_lines(path, MAX_ROW_BYTES, _open_csv))
    reader = csv.reader(lines, strict=True)
    header_seen = False
    while True:
        lines.begin_row()
        line = lines.number + 1
        row: list[str] | BadLine | None
        try:
            row = next(reader, None)
        except csv.Error as error:
            row = BadLine(path, line, f"not CSV: {error}")
        if row is not None and lines.fault:
            row = BadLine(path, line, lines.fault)
        if header_seen and row is None:
            return
        if header_seen and row is not None:
            yield line, row
        elif row != HEADER:
            hint = "is this args_processed_04_01.csv?"
            if lines.begins_with_json:
                hint = "it begins with a JSON object: did you mean --task comparative or --task controversial?"
            raise DataError(f"{path}: does not begin with {','.join(HEADER)}; {hint}")
        header_seen = True


def _argument(row: list[str] | BadLine, path: Path, line: int) -> Document:
    if isinstance(row, BadLine):
        raise row
    if len(row) != len(HEADER):
        raise BadLine(path, line, f"{len(row)} fields, not {len(HEADER)} ({', '.join(HEADER)})")
    identifier, conclusion, premises, _, sentences = row
    if not is_word(identifier) or "," in identifier:
        raise BadLine(path, line, f"`id` must be {ID_FORM}, without a comma, not {identifier!r:.80}")
    try:
        side = _side(_entries(premises, _PREMISE, ("text", "stance")))
        parts = _parts(_entries(sentences, _SENTENCE, ("sent_id", "sent_text")))
    except _Malformed as error:
        raise BadLine(path, line, f"argument {identifier}: {error}") from error
    text = " ".join(part.text for part in parts if "__CONC__" not in part.id)
    return Document(identifier, text, title=" ".join(conclusion.split()), side=side, parts=parts)


class _Malformed(ValueError):
    """A field that does not hold what it should; the message says what is wrong with it."""


def _side(premises: list[tuple[str, str]]) -> str:
    for _, stance in premises:
        if stance not in SIDES:
            raise _Malformed(f"unknown stance {stance!r:.40}, not one of {', '.join(SIDES)}")
    if not premises:
        raise _Malformed("no premise, so no stance")
    return premises[0][1]


def _parts(sentences: list[tuple[str, str]]) -> tuple[Part, ...]:
    for identifier, _ in sentences:
        if not is_word(identifier) or "," in identifier:
            raise _Malformed(f"`sent_id` must be {ID_FORM}, without a comma, not {identifier!r:.80}")
    if len(dict(sentences)) < len(sentences):
        raise _Malformed("a `sent_id` occurs twice")
    parts = tuple([Part(identifier, text) for identifier, text in sentences if text and not text.isspace()])
    if not parts:
        raise _Malformed("no sentence")
    return parts


def _entries(field: str, entry: re.Pattern[str], keys: tuple[str, str]) -> list[tuple[str, str]]:
    """The two named texts of each dictionary in a list, as `ast.literal_eval` reads the field.

    A field that is exactly a list of what `entry` matches is taken apart by it, ten times as fast.
    """
    found: list[tuple[str, str]] = []
    position = 1
    while field.startswith("[") and (match := entry.match(field, position)):
        first, second = match.groups()
        position = match.end()
        found.append(
            (
                first[1:-1] if "\\" not in first else _unescaped(first, keys[0]),
                second[1:-1] if "\\" not in second else _unescaped(second, keys[1]),
            )
        )
    if position == len(field) and found:
        return found
    value = _literal(field)
    if not isinstance(value, list) or not all(isinstance(item, dict) and item.keys() >= set(keys) for item in value):
        raise _Malformed(f"not a list of dictionaries with `{keys[0]}` and `{keys[1]}`")
    return [(_text(item[keys[0]], keys[0]), _text(item[keys[1]], keys[1])) for item in value]


def _unescaped(literal: str, key: str) -> str:
    if literal.count("\\") == literal.count("\\'"):
        return literal[1:-1].replace("\\'", "'")  # the only escape that most texts have
    return _text(_literal(literal), key)


def _literal(text: str) -> Any:
    if len(text) > MAX_PARSED:
        raise _Malformed(f"a Python literal of another shape than args.me's, with more than {MAX_PARSED:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" is a string to Python, but one that it warns of
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise _Malformed(f"not a Python literal: {text[:40]!r}") from error


def _text(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise _Malformed(f"`{key}` is not a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _Malformed(f"`{key}` holds half a surrogate pair, which is no text") from error
    return value
