"""Output of the commands: lines for people, or rows for other programs."""

from __future__ import annotations

import csv
import io
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import IO, Annotated, Any

import orjson
import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console

from touche_llm.errors import UsageError, to_printable

# Width of a table with cut texts where the output is not a terminal.
_DEFAULT_WIDTH = 140
# Usual least width of a column of texts.
TEXT_WIDTH = 16
_GAP = "  "
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    TSV = "tsv"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its head, and the key of its values in rows that are mappings, unless it computes them.
        drop: Place in the order in which columns get the room of a narrow terminal; columns of the same place are shown
            together, and those of place 0 always.
        is_text: Whether cells are left-aligned.
        cut: Least width of a column of texts that takes the width that the others leave and cuts its cells at the end;
            0 for columns that are not cut.
        keeps_end: Whether cells are cut at the start: names of runs differ at their ends.
        value: Key of its values if it is not the name, or a function of the row, for what rows for other programs do
            not have, or have otherwise.
        digits: Digits of floats after the point.
        sign: "+" if floats are differences.
    """

    name: str
    drop: int = 0
    is_text: bool = False
    cut: int = 0
    keeps_end: bool = False
    value: str | Callable[[Any], Any] = ""
    digits: int = 4
    sign: str = ""

    def format(self, row: Any) -> str:
        """Format its cell of a row: counts with commas, floats by `format_value`, None as nothing."""
        value = self.value(row) if callable(self.value) else row[self.value or self.name]
        match value:
            case None:
                return ""
            case float():
                return format_value(value, sign=self.sign, digits=self.digits)
            case int():
                return f"{value:,}"
            case _:
                return str(value)


# A row of a table: a list or tuple of cells, or a mapping or record that the columns have their values from.
Row = Any


def format_row(columns: Sequence[Column], row: Row) -> Sequence[str]:
    """Return the cells of a row."""
    return row if isinstance(row, list | tuple) else [column.format(row) for column in columns]


def emit(
    output: Format, rows: Sequence[Row], columns: Sequence[Column], names: Sequence[str] = (), **layout: Any
) -> None:
    """Print the same rows as a table for people, or for other programs.

    Args:
        output: Format.
        rows: Flat mappings.
        columns: Columns of the table.
        names: Keys for other programs, see `print_rows`.
        layout: Arguments of `show_table`.
    """
    if output is Format.TABLE:
        show_table(columns, rows, **layout)
    else:
        print_rows(output, rows, names)


def show_table(
    columns: Sequence[Column],
    rows: Iterable[Row],
    *,
    title: str = "",
    below: Iterable[str] = (),
    blanks_repeats: bool = False,
    file: IO[str] | None = None,
    width: int | None = None,
) -> None:
    """Print a table without line breaks in cells; drop columns, in their order, that the terminal has no room for.

    Text from outside is printed literally: without markup and control characters.

    Args:
        columns: Columns; the first one is neither dropped nor cut.
        rows: Rows; one of a single cell is a heading, and one without cells a line between sections.
        title: Line above the table.
        below: Lines between title and table.
        blanks_repeats: Whether the first cell is left out where it repeats that of the row above.
        file: Where to print; standard output if None.
        width: Columns that a file or pipe has room for; no column is dropped there if None.
    """
    file = sys.stdout if file is None else file
    cells = [[to_printable(cell).replace("\n", " ") for cell in format_row(columns, row)] for row in rows]
    if blanks_repeats:
        firsts = [row[0] for row in cells]
        cells = [["" if n and first == firsts[n - 1] else first, *cells[n][1:]] for n, first in enumerate(firsts)]
    widths = [
        max(cell_len(text) for text in (column.name, *(row[number] for row in cells if len(row) > 1)))
        for number, column in enumerate(columns)
    ]
    room = get_width(file) or width
    kept = _fit_columns(columns, widths, room)

    def print_row(row: Sequence[str]) -> None:
        fitted = []
        for number in kept:
            width = widths[number]
            text = _cut(row[number], width, columns[number].keeps_end)
            pad = " " * (width - cell_len(text))
            is_left = columns[number].is_text or columns[number].cut
            fitted.append(text + pad if is_left else pad + text)
        print(_GAP.join(fitted).rstrip(), file=file)

    line = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (sum(widths[number] for number in kept) + len(_GAP) * (len(kept) - 1))
    show_lines((*([title] if title else []), *(f"  {each}" for each in below)), file, 2, keeps_indented=False)
    print_row([column.name for column in columns])
    print(line, file=file)
    for row in cells:
        if len(row) > 1:
            print_row(row)
        else:
            print(_cut(row[0], room or _DEFAULT_WIDTH) if row else line, file=file)
    if dropped := [column.name for number, column in enumerate(columns) if number not in kept]:
        show_lines([f"(not shown in {room} columns: {', '.join(dropped)}; --format tsv has all)"], file)


def _cut(text: str, width: int, keeps_end: bool = False) -> str:
    if cell_len(text) <= width:
        return text
    if keeps_end:
        return _ELLIPSIS + set_cell_size(text[::-1], width - 1)[::-1]
    return set_cell_size(text, width - 1) + _ELLIPSIS


def _fit_columns(columns: Sequence[Column], widths: list[int], room: int | None) -> list[int]:
    """Return the columns that fit, by number; reduce the widths of those whose cells are cut."""
    cut = [number for number, column in enumerate(columns) if column.cut]
    needed = [min(width, column.cut or width) for width, column in zip(widths, columns, strict=True)]
    kept: list[int] = []
    rest = (room or _DEFAULT_WIDTH) + len(_GAP)
    numbers = sorted(range(len(columns)), key=lambda number: columns[number].drop)
    for drop, group in groupby(numbers, key=lambda number: columns[number].drop):
        added = list(group)
        width = sum(needed[number] + len(_GAP) for number in added)
        if room is None or not drop or width <= rest:
            kept += added
            rest -= width
    for number in cut:
        widths[number] = min(widths[number], needed[number] + max(rest, 0))
        rest -= widths[number] - needed[number]
    return sorted(kept)


def get_width(file: IO[str] | None = None) -> int | None:
    """Return the width of the terminal that `file`, or standard output, is; None if it is a file or a pipe."""
    file = sys.stdout if file is None else file
    return Console(file=file).width if file.isatty() else None


def show_lines(
    lines: Iterable[str], file: IO[str] | None = None, indent: int = 0, *, keeps_indented: bool = True
) -> None:
    """Print lines; a terminal gets them broken between words, apart from indented ones, which are commands to copy.

    Args:
        lines: The lines.
        file: Where to print; standard output if None.
        indent: Width by which the continuation of a broken line is indented.
        keeps_indented: Whether indented lines are commands; if not, they are broken too.
    """
    file = sys.stdout if file is None else file
    width = get_width(file)
    for line in map(to_printable, lines):
        if width is None or cell_len(line) <= width or (keeps_indented and line.startswith(" ")):
            print(line, file=file)
        else:
            wrapped = textwrap.wrap(
                line,
                max(width - 1, indent + 20),
                subsequent_indent=" " * indent,
                break_on_hyphens=False,
                break_long_words=False,
            )
            print("\n".join(wrapped), file=file)


def format_value(value: float, *, sign: str = "", digits: int = 4) -> str:
    """Format a value; an undefined one is a dash. `sign` is "+" for differences."""
    return "–" if math.isnan(value) else f"{value:{sign}.{digits}f}"


def format_interval(low: float, high: float, *, sign: str = "", digits: int = 4) -> str:
    """Format an interval as `format_value` does."""
    if math.isnan(low):
        return "–"
    return f"{format_value(low, sign=sign, digits=digits)} to {format_value(high, sign=sign, digits=digits)}"


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        metavar="NAME",
        help="table; json or tsv print rows alone.",
        rich_help_panel="Output",
    ),
]


def print_rows(output: Format, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Print rows for other programs: a list of objects, or a header and tab-separated lines.

    None and NaN are null in JSON, and empty in TSV. Control characters in text are replaced; paths stay as given. The
    encoding is UTF-8.

    Args:
        output: JSON or TSV.
        rows: Flat mappings with the same keys.
        columns: The keys to print; only needed if there may be no row, or rows have more.
    """
    values = [{name: _value(row[name]) for name in columns or row} for row in rows]
    write_as_utf8()
    if output is Format.JSON:
        print(orjson.dumps(values, option=orjson.OPT_INDENT_2).decode())
        return
    names = columns or list(values[0])
    writer = csv.writer(sys.stdout, delimiter="\t", lineterminator="\n")
    writer.writerow(names)
    writer.writerows([row[name] for name in names] for row in values)


def print_result(output: Format, sentence: str, row: Mapping[str, Any]) -> None:
    """Print what a command has done: a sentence for people, or a row for other programs."""
    if output is Format.TABLE:
        show_lines([sentence])
    else:
        print_rows(output, [row])


def say(output: Format, line: str) -> None:
    """Print a line for people: on standard output with tables, and on standard error beside rows for programs."""
    show_lines([line], sys.stdout if output is Format.TABLE else sys.stderr)


def write_as_utf8() -> None:
    """Switch standard output to UTF-8, so that rows for programs do not depend on the terminal's encoding."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


def require_cache(cache: Path) -> None:
    """Raise UsageError if a cache does not exist, instead of creating it."""
    if not cache.is_file():
        raise UsageError(f"{cache}: no such cache; name one with --cache")


def _value(value: Any) -> Any:
    match value:
        case Path():
            return os.fsencode(value).decode(errors="replace")
        case str():
            return to_printable(value)
        case float() if math.isnan(value):
            return None
        case _:
            return value
