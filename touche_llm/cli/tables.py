"""Tables that fit the width of the terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from touche_llm.errors import to_printable

# Width of a table with cut texts where the output is not a terminal.
_DEFAULT_WIDTH = 140
# A column of texts that would be narrower than this is dropped.
_MIN_TEXT_WIDTH = 16
_GAP = "  "
_CUT = "\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its head.
        drop: Place in the order in which columns are dropped if the terminal is too narrow: the highest number goes
            first, 0 never.
        is_text: Whether cells are left-aligned.
        is_cut: Whether the column takes the width that the others leave, and cuts its cells at the end.
    """

    name: str
    drop: int = 0
    is_text: bool = False
    is_cut: bool = False


def show_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    below: Iterable[str] = (),
    file: IO[str] | None = None,
) -> None:
    """Print a table without line breaks in cells; drop columns, in their order, that the terminal has no room for.

    Text from outside is shown as it is: without markup and control characters.

    Args:
        columns: Columns; the first one is neither dropped nor cut.
        rows: Cells of each row; a row without cells is a line between sections.
        title: Line above the table.
        below: Lines between title and table.
        file: Where to print; standard output if None.
    """
    file = sys.stdout if file is None else file
    cells = [[to_printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [
        max(cell_len(text) for text in (column.name, *(row[number] for row in cells if row)))
        for number, column in enumerate(columns)
    ]
    room = Console(file=file).width if file.isatty() else None
    kept = _fit_columns(columns, widths, room)

    def print_row(row: Sequence[str]) -> None:
        fitted = []
        for number in kept:
            text, width = row[number], widths[number]
            if cell_len(text) > width:
                text = set_cell_size(text, width - 1) + _CUT
            pad = " " * (width - cell_len(text))
            fitted.append(text + pad if columns[number].is_text else pad + text)
        print(_GAP.join(fitted).rstrip(), file=file)

    line = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (sum(widths[number] for number in kept) + len(_GAP) * (len(kept) - 1))
    for text in (*([to_printable(title)] if title else []), *(f"  {each}" for each in below)):
        print(text, file=file)
    print_row([column.name for column in columns])
    print(line, file=file)
    for row in cells:
        print_row(row) if row else print(line, file=file)
    if dropped := [column.name for number, column in enumerate(columns) if number not in kept]:
        print(f"(no room for {', '.join(dropped)}; --format tsv has all columns)", file=file)


def _fit_columns(columns: Sequence[Column], widths: list[int], room: int | None) -> list[int]:
    """Return the columns that fit, by number; reduce the widths of those whose cells are cut."""
    kept = list(range(len(columns)))
    cut = [number for number, column in enumerate(columns) if column.is_cut]
    least = [min(width, _MIN_TEXT_WIDTH) if number in cut else width for number, width in enumerate(widths)]

    def measure_rest() -> int:
        return (room or _DEFAULT_WIDTH) - sum(least[number] for number in kept) - len(_GAP) * (len(kept) - 1)

    while room is not None and measure_rest() < 0 and (droppable := [each for each in kept if columns[each].drop]):
        kept.remove(max(droppable, key=lambda number: (columns[number].drop, number)))
    for number in cut:
        widths[number] = min(widths[number], least[number] + max(measure_rest(), 0))
        least[number] = widths[number]
    return kept


def show_lines(lines: Iterable[str], file: IO[str] | None = None) -> None:
    """Print lines, on a terminal broken between words; an indented line, which is a command to copy, is not broken."""
    file = sys.stdout if file is None else file
    console = Console(file=file, highlight=False)
    for line in lines:
        console.print(Text(to_printable(line)), soft_wrap=line.startswith(" ") or not file.isatty())


def format_value(value: float, *, sign: str = "", digits: int = 4) -> str:
    """Format a value; an undefined one is a dash. `sign` is "+" for differences."""
    return "–" if math.isnan(value) else f"{value:{sign}.{digits}f}"


def format_interval(low: float, high: float, *, sign: str = "", digits: int = 4) -> str:
    """Format an interval as `format_value` does."""
    if math.isnan(low):
        return "–"
    return f"{format_value(low, sign=sign, digits=digits)} to {format_value(high, sign=sign, digits=digits)}"
