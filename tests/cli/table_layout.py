"""The layout of the tables of a command: columns and cells, whatever the width of the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pytest

from touche_llm.cli import emit
from touche_llm.cli.emit import Column, format_row, show_table


@dataclass(frozen=True)
class ShownTable:
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]

    @property
    def groups(self) -> list[list[str]]:
        """Names of the columns that are always shown, then of those that get the room that is left, in their order."""
        ordered = sorted(self.columns, key=lambda column: column.drop)
        return [[column.name for column in group] for _, group in groupby(ordered, key=lambda column: column.drop)]

    @property
    def texts(self) -> set[str]:
        """Names of the columns that are aligned at their beginning."""
        return {column.name for column in self.columns if column.is_text or column.cut}

    def cells(self, name: str) -> list[str]:
        """Return the cells of a column."""
        (number,) = (number for number, column in enumerate(self.columns) if column.name == name)
        return [row[number] for row in self.rows if len(row) > 1]


def record_tables(monkeypatch: pytest.MonkeyPatch, module: str) -> list[ShownTable]:
    """Return the list that the tables which this module of the command line prints are added to."""
    shown: list[ShownTable] = []

    def record(columns: Sequence[Column], rows: Iterable[Any], **how: Any) -> None:
        shown.append(ShownTable(columns, [tuple(format_row(columns, row)) for row in rows]))
        show_table(columns, shown[-1].rows, **how)

    monkeypatch.setattr(emit, "show_table", record)
    for name in (module, "measured_runs"):
        monkeypatch.setattr(f"touche_llm.cli.{name}.show_table", record, raising=False)
    return shown
