"""Output of the commands: tables and lines for people, or rows for other programs."""

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

from touche_llm.errors import to_printable

# Width of a table with cut texts where the output is not a terminal.
_DEFAULT_WIDTH = 140
# Usual least width of a column of texts.
TEXT_WIDTH = 16
_GAP = "  "
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
_LINE = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    TSV = "tsv"


FormatOption = Annotated[
    Format,
    typer.Option("--format", metavar="NAME", help="table; json or tsv print rows alone.", rich_help_panel="Output"),
]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its head, and the key of its values in rows, unless it computes them.
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

    def format(self, row: Mapping[str, Any]) -> str:
        """Format its cell of a row: counts with commas, floats by `format_value`, None as nothing."""
        value = self.value(row) if callable(self.value) else row[self.value or self.name]
        match value:
            case None:
                return ""
            case bool():
                return "yes" if value else "no"
            case float():
                return format_value(value, sign=self.sign, digits=self.digits)
            case int():
                return f"{value:,}"
            case _:
                return to_printable(str(value)).replace("\n", " ")

    def fit(self, text: str, width: int) -> str:
        """Return a cell of this width."""
        if cell_len(text) > width:
            kept = text[::-1] if self.keeps_end else text
            kept = set_cell_size(kept, width - 1)
            return f"{_ELLIPSIS}{kept[::-1]}" if self.keeps_end else f"{kept}{_ELLIPSIS}"
        pad = " " * (width - cell_len(text))
        return text + pad if self.is_text or self.cut else pad + text


def emit(
    output: Format,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    names: Sequence[str] = (),
    **layout: Any,
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
    rows: Iterable[Mapping[str, Any] | str],
    *,
    title: str = "",
    below: Iterable[str] = (),
    blanks_repeats: bool = False,
) -> None:
    """Print a table without line breaks in cells; drop columns, in their order, that the terminal has no room for.

    Text from outside is printed literally: without markup and control characters.

    Args:
        columns: Columns; the first one is neither dropped nor cut.
        rows: Rows; a text is a heading between them.
        title: Line above the table.
        below: Lines between title and table.
        blanks_repeats: Whether the first cell is left out where it repeats that of the row above.
    """
    cells = [row if isinstance(row, str) else [column.format(row) for column in columns] for row in rows]
    found = [row for row in cells if not isinstance(row, str)]
    if blanks_repeats:
        firsts = [row[0] for row in found]
        for row, before, first in zip(found[1:], firsts, firsts[1:], strict=False):
            row[0] = "" if first == before else first
    widths = [max(map(cell_len, (column.name, *(row[n] for row in found)))) for n, column in enumerate(columns)]
    room = get_width()
    kept = _fit_columns(columns, widths, room)

    def print_row(row: Sequence[str]) -> None:
        print(_GAP.join(columns[n].fit(row[n], widths[n]) for n in kept).rstrip())

    show_lines((*([title] if title else []), *(f"  {line}" for line in below)))
    print_row([column.name for column in columns])
    print(_LINE * (sum(widths[n] for n in kept) + len(_GAP) * (len(kept) - 1)))
    for line in cells:
        if isinstance(line, str):
            show_lines([line])
        else:
            print_row(line)
    if dropped := [column.name for n, column in enumerate(columns) if n not in kept]:
        show_lines([f"(not shown in {room} columns: {', '.join(dropped)}; --format tsv has all)"])


def _fit_columns(columns: Sequence[Column], widths: list[int], room: int | None) -> list[int]:
    """Return the columns that fit, by number; reduce the widths of those whose cells are cut."""
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
    for number in (number for number, column in enumerate(columns) if column.cut):
        widths[number] = min(widths[number], needed[number] + max(rest, 0))
        rest -= widths[number] - needed[number]
    return sorted(kept)


def get_width(file: IO[str] | None = None) -> int | None:
    """Return the width of the terminal that `file`, or standard output, is; None if it is a file or a pipe."""
    file = sys.stdout if file is None else file
    return Console(file=file).width if file.isatty() else None


def show_lines(lines: Iterable[str], file: IO[str] | None = None, indent: int = 2) -> None:
    """Print lines; a terminal gets them broken between words, apart from commands to copy, which are indented by four.

    Args:
        lines: The lines.
        file: Where to print; standard output if None.
        indent: Width by which the continuation of a broken line is indented.
    """
    file = sys.stdout if file is None else file
    width = get_width(file)
    for line in map(to_printable, lines):
        if width is not None and not line.startswith("    "):
            line = textwrap.fill(
                line, width - 1, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
            )
        print(line, file=file)


def say(output: Format, line: str) -> None:
    """Print a line for people: on standard output with tables, and on standard error beside rows for programs."""
    show_lines([line], sys.stdout if output is Format.TABLE else sys.stderr)


def format_value(value: float, *, sign: str = "", digits: int = 4) -> str:
    """Format a value; an undefined one is a dash. `sign` is "+" for differences."""
    return "–" if math.isnan(value) else f"{value:{sign}.{digits}f}"


def format_interval(row: Mapping[str, Any], sign: str = "") -> str:
    """Format the interval of a row from `low` to `high`."""
    return "–" if math.isnan(row["low"]) else f"{row['low']:{sign}.4f} to {row['high']:{sign}.4f}"


def print_rows(output: Format, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Print rows for other programs: a list of objects, or a header and tab-separated lines.

    None and NaN are null in JSON, and empty in TSV. Control characters in text are replaced; paths stay as given. The
    encoding is UTF-8.

    Args:
        output: JSON or TSV.
        rows: Flat mappings with the same keys.
        columns: The keys to print; only needed if there may be no row, or rows have more.
    """
    values = [{name: _to_plain(row[name]) for name in columns or row} for row in rows]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    if output is Format.JSON:
        print(orjson.dumps(values, option=orjson.OPT_INDENT_2).decode())
        return
    writer = csv.DictWriter(sys.stdout, columns or list(values[0]), delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(values)


def print_result(output: Format, sentence: str, row: Mapping[str, Any]) -> None:
    """Print what a command has done: a sentence for people, or a row for other programs."""
    if output is Format.TABLE:
        show_lines([sentence])
    else:
        print_rows(output, [row])


def _to_plain(value: Any) -> Any:
    match value:
        case Path():
            return os.fsencode(value).decode(errors="replace")
        case str():
            return to_printable(value)
        case float() if math.isnan(value):
            return None
        case _:
            return value
