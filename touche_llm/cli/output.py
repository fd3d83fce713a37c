"""Output of the commands: lines for people, or rows for other programs."""

from __future__ import annotations

import csv
import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from touche_llm.cli.streams import write_as_utf8
from touche_llm.cli.tables import show_lines
from touche_llm.data.files import shorten_path
from touche_llm.errors import to_printable

_SCRIPT = "touche-llm"


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


def print_rows(output: Format, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Print rows for other programs: a list of objects, or a header and tab-separated lines.

    None and NaN are null in JSON, and empty in TSV. Control characters in text are replaced; paths stay as given. The
    encoding is UTF-8.

    Args:
        output: JSON or TSV.
        rows: Flat mappings with the same keys.
        columns: The keys; only needed if there may be no row.
    """
    values = [{name: _value(value) for name, value in row.items()} for row in rows]
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


def format_program() -> str:
    """Return how this program was called, for commands that a user copies to a shell; a path if it is not on PATH."""
    script = Path(sys.argv[0])
    if script.name != _SCRIPT:
        python = Path(sys.executable)
        found = shutil.which(python.name)
        # The file of two environments can be the same, so the paths decide.
        is_on_path = found is not None and os.path.abspath(found) == os.path.abspath(python)
        return f"{python.name if is_on_path else shlex.quote(shorten_path(python))} -m touche_llm"
    found = shutil.which(_SCRIPT)
    is_on_path = script == Path(_SCRIPT) or (found is not None and os.path.samefile(found, script))
    return _SCRIPT if is_on_path else shlex.quote(shorten_path(script))


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
