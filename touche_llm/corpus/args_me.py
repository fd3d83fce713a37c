"""Streaming readers for the arguments of args.me, whole or with their sentences."""

from __future__ import annotations

import ast
import csv
import re
import tarfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import ijson

from touche_llm.corpus.json_lines import OnBadLine, parse_documents
from touche_llm.data.io import (
    ID_FORM,
    MAX_LINE,
    is_word,
    open_maybe_gzip,
    parse_json_object,
    read_lines,
    report_unreadable,
)
from touche_llm.data.records import Document, Part
from touche_llm.data.topics import recognize, require_kind
from touche_llm.errors import BadLine, DataError


def read_json_arguments(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield `(number, value)` for each value in the list `arguments` of a JSON object, one in memory at a time.

    args.me 2020-04-01 has five such files; several of them, concatenated into one file, are read in their order
    and numbered consecutively. The file may be gzipped.

    Raises:
        DataError: The file cannot be read, is not UTF-8 or not JSON, or is truncated.
    """
    number = 0
    with report_unreadable(path), open_maybe_gzip(path) as stream:
        try:
            values = ijson.items(stream, "arguments.item", use_float=True, multiple_values=True)
            for number, value in enumerate(values, start=1):
                yield number, value
        except ijson.JSONError as error:
            problem = " ".join(str(error).split())
            raise DataError(
                f"{path}:{number + 1}: not JSON, or truncated ({problem:.100}); download it again"
            ) from error


HEADER = ["id", "conclusion", "premises", "context", "sentences"]
# An argument without a stance has none of them.
SIDES = ("PRO", "CON")
# A real argument has tens of thousands of bytes, a web page in its context hundreds of thousands.
MAX_ROW_BYTES = 16 * 2**20
# Max characters given to Python's parser, which takes a hundred times the memory. The real corpus never needs it.
MAX_PARSED = 2**17

# A string literal without prefix on one line; possessive, so that untrusted text cannot cause backtracking.
_STRING = r"""(?:'[^'\\\r\n\0]*+(?:\\[^\r\n\0][^'\\\r\n\0]*+)*+'|"[^"\\\r\n\0]*+(?:\\[^\r\n\0][^"\\\r\n\0]*+)*+")"""
_NEXT = r"(?:, (?=\{)|\]\Z)"
_SENTENCE = re.compile(rf"\{{'sent_id': ({_STRING}), 'sent_text': ({_STRING})\}}{_NEXT}")
_PREMISE = re.compile(rf"\{{'text': ({_STRING}), 'stance': ({_STRING}), 'annotations': \[\]\}}{_NEXT}")


def read_arguments(path: Path, on_bad_line: OnBadLine | None = None) -> Iterator[tuple[int, Document]]:
    """Yield `(line number, argument)` for each row of `args_processed_04_01.csv`, one row in memory at a time.

    `text` joins the premise sentences with spaces (empty for the few arguments without premise), `title` is the
    conclusion with white space collapsed, `side` the stance of the first premise, and `parts` are all non-blank
    sentences, including those of the conclusion. `context` is not parsed. The line number is that of the first line of
    the row. Duplicate ids are detected by the store.

    Raises:
        BadLine: The row is not UTF-8, not CSV, longer than `MAX_ROW_BYTES`, or has the wrong number of fields; an id
            is not one printable word or contains a comma (a pair has the id `a,b`); `premises` or `sentences` is not
            the expected Python literal; a stance is unknown, a sentence id occurs twice, or there is no sentence.
        DataError: The header is wrong, or the file cannot be read, is damaged or truncated.
    """
    require_kind(path, "argument table")
    return parse_documents(_read_rows(path), lambda row, line: _parse_row(row, path, line, is_whole=False), on_bad_line)


def read_whole_arguments(path: Path, on_bad_line: OnBadLine | None = None) -> Iterator[tuple[int, Document]]:
    """Yield `(number, argument)` for each argument of args.me, without its sentences.

    The file is JSON, see `read_json_arguments`, JSON Lines of BEIR, with the keys `_id`, `title`, `text` and
    `metadata.stance`, or the table of `read_arguments`; its beginning decides. The number is that of the argument, or
    that of the first line of its row. `text` has the premises, separated by line feeds, `title` the conclusion with
    white space collapsed, and `side` the stance of the first premise, which BEIR's may lack.

    Raises:
        BadLine: An argument has no valid id or stance, neither conclusion nor premise, or another form.
        DataError: The file cannot be read, or is none of the three.
    """
    start = recognize(path)
    require_kind(path, "arguments", "argument table", start=start)
    if start.keys:  # an object for each argument, as in BEIR
        return parse_documents(
            read_lines(path, MAX_LINE),
            lambda raw, line: _parse_beir_record(parse_json_object(raw, path, line), path, line),
            on_bad_line,
        )
    if start.kind == "arguments":
        return parse_documents(
            read_json_arguments(path),
            lambda record, number: parse_argument(record, path, number, is_whole=True),
            on_bad_line,
        )
    return parse_documents(_read_rows(path), lambda row, line: _parse_row(row, path, line, is_whole=True), on_bad_line)


@contextmanager
def _open_csv(path: Path) -> Iterator[IO[bytes]]:
    with open_maybe_gzip(path) as stream:
        start = stream.read(512)
        stream.seek(0)
        if start[257:262] != b"ustar":
            yield stream
            return
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                members = (member for member in archive if member.isfile() and member.name.endswith(".csv"))
                # macOS adds a hidden file `._x.csv` for x.csv.
                tables = (member for member in members if not PurePosixPath(member.name).name.startswith("."))
                table = next(tables, None)
                if table is None:
                    raise DataError(f"{path}: no file in this tar archive ends in .csv; is it the processed args.me?")
                with cast(IO[bytes], archive.extractfile(table)) as content:
                    yield content
                if another := next(tables, None):
                    raise DataError(f"{path}: holds {table.name} and {another.name}; give one .csv file")
            while stream.read(2**20):
                pass  # to the checksum at the end
        except tarfile.TarError as error:
            raise DataError(f"{path}: damaged tar archive: {error}; download it again") from error


def _read_rows(path: Path) -> Iterator[tuple[int, list[str] | BadLine]]:
    """Yield `(first line, row)` without the header, with a BadLine for each unreadable row."""
    # The limit is global; it ends a row whose quotation mark is never closed.
    csv.field_size_limit(MAX_ROW_BYTES)
    # Bytes that are not UTF-8 become lone surrogates, so that only their rows are unreadable.
    lines = (raw.decode("utf-8", "surrogateescape") for _, raw in read_lines(path, MAX_ROW_BYTES, _open_csv))
    reader = csv.reader(lines, strict=True)
    try:
        row = next(reader, None)
    except csv.Error:
        row = None
    if row != HEADER:
        raise DataError(f"{path}: does not begin with {','.join(HEADER)}; is this args_processed_04_01.csv?")
    while row is not None:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield line, BadLine(path, line, f"not CSV: {error}; is a quotation mark unclosed?")
        else:
            if row is not None:
                yield line, row


def _parse_row(row: list[str] | BadLine, path: Path, line: int, *, is_whole: bool) -> Document:
    if isinstance(row, BadLine):
        raise row
    if len(row) != len(HEADER):
        raise BadLine(path, line, f"{len(row)} fields, not {len(HEADER)} ({', '.join(HEADER)})")
    text = "".join(row)
    if "\0" in text or not _is_utf8(text):
        raise BadLine(path, line, "holds a NUL byte" if "\0" in text else "not UTF-8")
    identifier, conclusion, premises, _, sentences = row
    _check_id(identifier, path, line)
    try:
        parsed = _parse_entries(premises, _PREMISE, ("text", "stance"))
        parts = None if is_whole else _parse_entries(sentences, _SENTENCE, ("sent_id", "sent_text"))
        return _make_argument(identifier, conclusion, parsed, parts)
    except _InvalidField as error:
        raise BadLine(path, line, f"argument {identifier}: {error}") from error


def parse_argument(record: object, source: object, number: int, *, is_whole: bool) -> Document:
    """Parse an argument from an object of JSON: `id`, `conclusion`, `premises`, and `sentences` unless `is_whole`.

    Errors give its `number` in the `source`.

    Raises:
        BadLine: It has no valid id or stance, no text, or another form.
    """
    if not isinstance(record, dict):
        raise BadLine(source, number, f"not a JSON object but {type(record).__name__}")
    identifier = _check_id(record.get("id"), source, number)
    try:
        premises = _check_entries(record.get("premises"), ("text", "stance"))
        conclusion = _check_text(record.get("conclusion"), "conclusion")
        parts = None if is_whole else _check_entries(record.get("sentences"), ("sent_id", "sent_text"))
        return _make_argument(identifier, conclusion, premises, parts)
    except _InvalidField as error:
        raise BadLine(source, number, f"argument {identifier}: {error}") from error


def _parse_beir_record(record: dict[str, Any], path: Path, line: int) -> Document:
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise BadLine(path, line, "`metadata` is not a JSON object")
    premise = {"text": record.get("text"), "stance": metadata.get("stance", "")}
    values = {"id": record.get("_id"), "conclusion": record.get("title"), "premises": [premise]}
    return parse_argument(values, path, line, is_whole=True)


def _check_id(identifier: object, source: object, number: int) -> str:
    if not is_word(identifier) or "," in identifier:
        raise BadLine(source, number, f"`id` must be {ID_FORM}, without a comma, not {identifier!r:.80}")
    return identifier


class _InvalidField(ValueError):
    """Invalid field of a row."""


def _make_argument(
    identifier: str, conclusion: str, premises: list[tuple[str, str]], sentences: list[tuple[str, str]] | None
) -> Document:
    """Make an argument with its sentences, or a whole one, with the texts of its premises, if `sentences` is None."""
    for _, stance in premises:
        if stance not in SIDES and stance:
            raise _InvalidField(f"unknown stance {stance!r:.40}, not one of {', '.join(SIDES)}")
    if not premises:
        raise _InvalidField("no premise, so no stance")
    side, title = premises[0][1], " ".join(conclusion.split())
    if sentences is not None:
        parts = _make_parts(sentences)
        text = " ".join(part.text for part in parts if "__CONC__" not in part.id)
        return Document(identifier, text, title=title, side=side, parts=parts)
    text = "\n".join(text.strip() for text, _ in premises).strip()
    if not text and not title:
        raise _InvalidField("neither a conclusion nor the text of a premise")
    return Document(identifier, text, title=title, side=side)


def _make_parts(sentences: list[tuple[str, str]]) -> tuple[Part, ...]:
    for identifier, _ in sentences:
        if not is_word(identifier) or "," in identifier:
            raise _InvalidField(f"`sent_id` must be {ID_FORM}, without a comma, not {identifier!r:.80}")
    if len(dict(sentences)) < len(sentences):
        raise _InvalidField("a `sent_id` occurs twice")
    parts = tuple([Part(identifier, text) for identifier, text in sentences if text and not text.isspace()])
    if not parts:
        raise _InvalidField("no sentence")
    return parts


def _parse_entries(field: str, entry: re.Pattern[str], keys: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the values of two keys of each dictionary in a list, as parsed by `ast.literal_eval`.

    A list in which all items match `entry` is parsed with it, ten times as fast.
    """
    found: list[tuple[str, str]] = []
    position = 1
    while field.startswith("[") and (match := entry.match(field, position)):
        position = match.end()
        first, second = map(_unescape, match.groups(), keys)
        found.append((first, second))
    if position == len(field) and found:
        return found
    return _check_entries(_parse_literal(field), keys)


def _check_entries(value: Any, keys: tuple[str, str]) -> list[tuple[str, str]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) and item.keys() >= set(keys) for item in value):
        raise _InvalidField(f"not a list of dictionaries with `{keys[0]}` and `{keys[1]}`")
    return [(_check_text(item[keys[0]], keys[0]), _check_text(item[keys[1]], keys[1])) for item in value]


def _unescape(literal: str, key: str) -> str:
    if "\\" not in literal:
        return literal[1:-1]
    if literal.count("\\") == literal.count("\\'"):
        return literal[1:-1].replace("\\'", "'")  # the only escape in most texts
    return _check_text(_parse_literal(literal), key)


def _parse_literal(text: str) -> Any:
    if len(text) > MAX_PARSED:
        raise _InvalidField(f"a Python literal unlike those of args.me, with more than {MAX_PARSED:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of invalid escapes such as "\d"
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise _InvalidField(f"not a Python literal: {text[:40]!r}") from error


def _check_text(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise _InvalidField(f"`{key}` is not a string")
    if not _is_utf8(value):
        raise _InvalidField(f"`{key}` contains a lone surrogate")
    return value


def _is_utf8(text: str) -> bool:
    """Return whether a text has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
