"""Streaming readers for the arguments of args.me, whole or with their sentences."""

from __future__ import annotations

import ast
import csv
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, Literal, cast

import ijson
import msgspec

from touche_llm.corpus.json_lines import OnBadLine, parse_documents
from touche_llm.data.files import (
    ID_FORM,
    MAX_LINE,
    is_word,
    open_maybe_gzip,
    parse_json_object,
    read_lines,
    report_unreadable,
)
from touche_llm.data.recognize import is_tar, recognize, require_kind
from touche_llm.data.records import Document, Part
from touche_llm.errors import BadLine, DataError

HEADER = ["id", "conclusion", "premises", "context", "sentences"]
# A real argument has tens of thousands of bytes, a web page in its context hundreds of thousands.
MAX_ROW_BYTES = 16 * 2**20

# A string literal without prefix on one line; possessive, so that untrusted text cannot cause
# backtracking.
_STRING = r"""(?:'[^'\\\r\n\0]*+(?:\\[^\r\n\0][^'\\\r\n\0]*+)*+'|"[^"\\\r\n\0]*+(?:\\[^\r\n\0][^"\\\r\n\0]*+)*+")"""
_NEXT = r"(?:, (?=\{)|\]\Z)"
_SENTENCE = re.compile(rf"\{{'(sent_id)': ({_STRING}), '(sent_text)': ({_STRING})\}}{_NEXT}")
_PREMISE = re.compile(
    rf"\{{'(text)': ({_STRING}), '(stance)': ({_STRING}), 'annotations': \[\]\}}{_NEXT}"
)


class _Premise(msgspec.Struct):
    text: str
    stance: Literal["PRO", "CON", ""]


class _Sentence(msgspec.Struct):
    sent_id: str
    sent_text: str


class _WholeArgument(msgspec.Struct):
    conclusion: str
    premises: Annotated[list[_Premise], msgspec.Meta(min_length=1)]


class _Argument(_WholeArgument):
    sentences: list[_Sentence]


def read_arguments(
    path: Path, on_bad_line: OnBadLine | None = None
) -> Iterator[tuple[int, Document]]:
    """Yield `(line number, argument)` for each row of `args_processed_04_01.csv`, one row in memory at a time.

    The file may be gzipped, or packed as a tar archive. `text` joins the premise sentences with
    spaces (empty for the few arguments without premise), `title` is the conclusion with white space
    collapsed, `side` the stance of the first premise, and `parts` are all non-blank sentences,
    including those of the conclusion. The line number is that of the first line of the row.
    Duplicate ids are detected by the store.

    Raises:
        BadLine: A row is not an argument; an id must be one printable word without a comma (a pair
            has the id `a,b`).
        DataError: The header is wrong, or the file cannot be read, is damaged or truncated.
    """
    require_kind(path, "argument table")
    return parse_documents(
        _read_rows(path), lambda row, line: _parse_row(row, path, line, is_whole=False), on_bad_line
    )


def read_whole_arguments(
    path: Path, on_bad_line: OnBadLine | None = None
) -> Iterator[tuple[int, Document]]:
    """Yield `(number, argument)` for each argument of args.me, without its sentences.

    The file is JSON with a list `arguments` (several of them concatenated are read in their order),
    JSON Lines of BEIR, with the keys `_id`, `title`, `text` and `metadata.stance`, or the table of
    `read_arguments`; its beginning decides. The number is that of the argument, or that of the
    first line of its row. `text` has the premises, separated by line feeds, `title` the conclusion
    with white space collapsed, and `side` the stance of the first premise, which BEIR's may lack.

    Raises:
        BadLine: An argument has no valid id or stance, neither conclusion nor premise, or another
            form.
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
            _read_json(path),
            lambda record, number: parse_argument(record, path, number, is_whole=True),
            on_bad_line,
        )
    return parse_documents(
        _read_rows(path), lambda row, line: _parse_row(row, path, line, is_whole=True), on_bad_line
    )


def _read_json(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield `(number, value)` for each value in the list `arguments` of a JSON object, one in memory at a time."""
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


@contextmanager
def _open_csv(path: Path) -> Iterator[IO[bytes]]:
    with open_maybe_gzip(path) as stream:
        start = stream.read(512)
        stream.seek(0)
        if not is_tar(start):
            yield stream
            return
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                # macOS adds a hidden file `._x.csv` for x.csv.
                tables = (
                    file for file in archive if file.name.endswith(".csv") and "._" not in file.name
                )
                table = next((file for file in tables if file.isfile()), None)
                if table is None:
                    raise DataError(
                        f"{path}: no file in this tar archive ends in .csv; is it the processed args.me?"
                    )
                yield cast(IO[bytes], archive.extractfile(table))
            while stream.read(2**20):
                pass  # to the checksum at the end
        except tarfile.TarError as error:
            raise DataError(f"{path}: damaged tar archive: {error}; download it again") from error


def _read_rows(path: Path) -> Iterator[tuple[int, list[str] | BadLine]]:
    """Yield `(first line, row)` without the header, with a BadLine for each unreadable row."""
    # The limit is global; it ends a row whose quotation mark is never closed.
    csv.field_size_limit(MAX_ROW_BYTES)
    # Bytes that are not UTF-8 become lone surrogates, so that only their rows are unreadable.
    lines = (
        raw.decode("utf-8", "surrogateescape")
        for _, raw in read_lines(path, MAX_ROW_BYTES, _open_csv)
    )
    reader = csv.reader(lines, strict=True)
    try:
        row = next(reader, None)
    except csv.Error:
        row = None
    if row != HEADER:
        raise DataError(
            f"{path}: does not begin with {','.join(HEADER)}; is this args_processed_04_01.csv?"
        )
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
    identifier, conclusion, premises, _, sentences = row
    record: dict[str, Any] = {"id": identifier, "conclusion": conclusion}
    try:
        record["premises"] = _parse_entries(premises, _PREMISE)
        if not is_whole:
            record["sentences"] = _parse_entries(sentences, _SENTENCE)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise BadLine(
            path, line, f"argument {identifier:.80}: not Python literals: {error!s:.80}"
        ) from error
    return parse_argument(record, path, line, is_whole=is_whole)


def _parse_entries(field: str, entry: re.Pattern[str]) -> Any:
    """Return a list of dictionaries as `ast.literal_eval`.

    One in which all match `entry` is parsed ten times as fast.

    Of an entry that matches, only the named keys are returned.
    """
    found: list[dict[str, str]] = []
    position = 1
    while field.startswith("[") and (match := entry.match(field, position)):
        position = match.end()
        first, first_value, second, second_value = match.groups()
        found.append({first: _unescape(first_value), second: _unescape(second_value)})
    return found if position == len(field) and found else ast.literal_eval(field)


def _unescape(literal: str) -> str:
    return cast(str, ast.literal_eval(literal)) if "\\" in literal else literal[1:-1]


def parse_argument(record: object, source: object, number: int, *, is_whole: bool) -> Document:
    """Parse an argument from an object of JSON: `id`, `conclusion`, `premises`, and `sentences` unless `is_whole`.

    Errors give its `number` in the `source`.

    Raises:
        BadLine: It has no valid id or stance, no text, or another form.
    """
    identifier = record.get("id") if isinstance(record, dict) else None
    if not is_word(identifier) or "," in identifier:
        raise BadLine(
            source, number, f"`id` must be {ID_FORM}, without a comma, not {identifier!r:.80}"
        )
    try:
        argument = msgspec.convert(record, _WholeArgument if is_whole else _Argument)
        side, title = argument.premises[0].stance, " ".join(argument.conclusion.split())
        parts: tuple[Part, ...] = ()
        if isinstance(argument, _Argument):
            parts = _make_parts(argument.sentences)
            text = " ".join(part.text for part in parts if "__CONC__" not in part.id)
        else:
            text = "\n".join(premise.text.strip() for premise in argument.premises).strip()
        "".join(
            (title, text, *(part.text for part in parts))
        ).encode()  # raises if a surrogate stands alone
    except (msgspec.ValidationError, ValueError) as error:
        raise BadLine(source, number, f"argument {identifier}: {error}") from error
    if not (text or title if is_whole else parts):
        raise BadLine(source, number, f"argument {identifier}: no text")
    return Document(identifier, text, title=title, side=side, parts=parts)


def _make_parts(sentences: list[_Sentence]) -> tuple[Part, ...]:
    for sentence in sentences:
        if not is_word(sentence.sent_id) or "," in sentence.sent_id:
            raise ValueError(
                f"`sent_id` must be {ID_FORM}, without a comma, not {sentence.sent_id!r:.80}"
            )
    return tuple(
        [Part(each.sent_id, each.sent_text) for each in sentences if each.sent_text.strip()]
    )


def _parse_beir_record(record: dict[str, Any], path: Path, line: int) -> Document:
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise BadLine(path, line, "`metadata` is not a JSON object")
    premise = {"text": record.get("text"), "stance": metadata.get("stance", "")}
    values = {"id": record.get("_id"), "conclusion": record.get("title"), "premises": [premise]}
    return parse_argument(values, path, line, is_whole=True)
