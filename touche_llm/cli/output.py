"""Output of the commands: tables and lines for people, or rows for other programs."""

from __future__ import annotations

import csv
import io
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import orjson
import typer

from touche_llm.data.measure import Measure
from touche_llm.errors import to_printable

if TYPE_CHECKING:  # slow to load, and most commands print no table
    from rich.text import Text

# Width of a table where the output is not a terminal, and of a column of cut texts.
_UNLIMITED, _MAX_CUT = 10_000, 60
# Widths that cut and wrapped texts keep while there are columns to leave out.
_MIN_CUT, _MIN_WRAPPED = 12, 24


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    TSV = "tsv"


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        metavar="NAME",
        help="table; json or tsv print rows alone.",
        rich_help_panel="Output",
    ),
]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its head, and the key of its values in rows, unless `value` is given.
        is_text: Whether cells are left-aligned and, on a narrow terminal, wrapped.
        is_cut: Whether cells are cut at the end rather than wrapped.
        value: Key of its values if it is not the name, or a function of the row.
        digits: Digits of floats after the point.
        sign: "+" if floats are differences.
        drop: Where a terminal is too narrow, columns with the highest numbers are left out first;
            those with 0 never.
    """

    name: str
    is_text: bool = False
    is_cut: bool = False
    value: str | Callable[[Any], Any] = ""
    digits: int = 4
    sign: str = ""
    drop: int = 0

    def format(self, row: Mapping[str, Any]) -> Text:
        """Format its cell of a row: counts with commas, floats by `format_value`, None as nothing."""
        from rich.text import Text

        value = self.value(row) if callable(self.value) else row[self.value or self.name]
        match value:
            case None:
                text = ""
            case bool():
                text = "yes" if value else "no"
            case float():
                text = format_value(value, sign=self.sign, digits=self.digits)
            case int():
                text = f"{value:,}"
            case _:
                text = to_printable(str(value)).replace("\n", " ")
        return Text(text, no_wrap=True, overflow="ellipsis") if self.is_cut else Text(text)

    @property
    def min_width(self) -> int:
        """Width that texts keep while there are columns to leave out."""
        return _MIN_CUT if self.is_cut else _MIN_WRAPPED

    def measure(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Return the width that it needs: that of its widest cell, or less if texts can be cut or wrapped."""
        width = max([len(self.name), *(self.format(row).cell_len for row in rows)])
        return min(width, self.min_width) if self.is_text or self.is_cut else width


def emit(
    output: Format,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    names: Sequence[str] = (),
    title: str = "",
) -> None:
    """Print the same rows as a table for people, or for other programs with the keys `names`, see `print_rows`."""
    if output is Format.TABLE:
        show_table(columns, rows, title)
    else:
        print_rows(output, rows, names)


def show_table(
    columns: Sequence[Column],
    rows: Iterable[Mapping[str, Any]],
    title: str = "",
    below: Iterable[str] = (),
) -> None:
    """Print a table, with a line above it and lines below that one.

    A narrow terminal gets texts wrapped or cut, and where that is not enough, not all columns.

    Text from outside is printed literally: without markup and control characters.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    width = None if sys.stdout.isatty() else _UNLIMITED
    console = Console(file=sys.stdout, width=width, color_system=None)
    rows, shown = list(rows), list(columns)
    widths = {column.name: column.measure(rows) for column in columns}
    while not (is_fitting := sum(widths[column.name] + 2 for column in shown) <= console.width + 2):
        last = max(shown, key=lambda column: column.drop)
        if not last.drop:
            break
        shown.remove(last)
    for column in shown:
        is_text = column.is_text or column.is_cut
        table.add_column(
            Text(to_printable(column.name)),
            justify="left" if is_text else "right",
            no_wrap=not is_text or (is_fitting and widths[column.name] < column.min_width),
            overflow="fold" if is_text else "ellipsis",
            max_width=_MAX_CUT if column.is_cut else None,
        )
    for row in rows:
        table.add_row(*(column.format(row) for column in shown))
    show_lines((*([title] if title else []), *(f"  {line}" for line in below)))
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def show_lines(lines: Iterable[str], file: IO[str] | None = None) -> None:
    """Print lines, on standard output unless a file is given."""
    for line in lines:
        print(to_printable(line), file=file)


def say(output: Format, line: str) -> None:
    """Print a line for people: on standard output with tables, and on standard error beside rows for programs."""
    show_lines([line], sys.stdout if output is Format.TABLE else sys.stderr)


def format_value(value: float, *, sign: str = "", digits: int = 4) -> str:
    """Format a value; an undefined one is a dash. `sign` is "+" for differences."""
    return "–" if math.isnan(value) else f"{value:{sign}.{digits}f}"


def format_interval(row: Mapping[str, Any], sign: str = "") -> str:
    """Format the interval of a row from `low` to `high`."""
    return "–" if math.isnan(row["low"]) else f"{row['low']:{sign}.4f} to {row['high']:{sign}.4f}"


def print_rows(
    output: Format, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = ()
) -> None:
    """Print rows for other programs: a list of objects, or a header and tab-separated lines.

    None and NaN are null in JSON, and empty in TSV. Control characters in text are replaced; paths
    stay as given. The encoding is UTF-8.

    Args:
        output: JSON or TSV.
        rows: Flat mappings with the same keys; a measure is printed as its text.
        columns: The keys to print; only needed if there may be no row, or rows have more.
    """
    values = [{name: _to_plain(row[name]) for name in columns or row} for row in rows]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    if output is Format.JSON:
        print(orjson.dumps(values, option=orjson.OPT_INDENT_2).decode())
        return
    writer = csv.DictWriter(
        sys.stdout, columns or list(values[0]), delimiter="\t", lineterminator="\n"
    )
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
        case Measure():
            return str(value)
        case float() if math.isnan(value):
            return None
        case _:
            return value
