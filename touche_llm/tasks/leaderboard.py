"""Published results of a task, in the file beside its definition, and the place of a run among them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from touche_llm.errors import DataError
from touche_llm.tasks.base import Task
from touche_llm.tasks.definition import TASK_FILE, Strict, Url, read_definition

LEADERBOARD_FILE = "leaderboard.yaml"
# Decimal places of the published values.
DIGITS = 3

_Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1)]


class PublishedRun(Strict):
    """A line of a published table.

    Attributes:
        value: Value of the table's measure, from 0 to 1.
        low: Lower end of the published 95 % interval; None if none is published.
        high: Upper end of the interval; None if none is published.
        judged: Number of the run's stance labels that were judged; only for stance.
        team: Team that submitted the run.
        tag: Name of the run.
    """

    value: _Share
    low: _Share | None = None
    high: _Share | None = None
    judged: int | None = Field(default=None, ge=1)
    team: _Name
    tag: _Name


class Table(Strict):
    """The published results of one task by one measure, best first.

    Attributes:
        measure: Aspect that was measured, or `stance`; the task's official measure of it is compared with the values.
        published_as: Name of the column in the source.
        url: Page with the table.
        runs: All runs of the table.
    """

    measure: _Name
    published_as: _Name
    url: Url
    runs: list[PublishedRun] = Field(min_length=1)


class Board(Strict):
    """The published results of one task: title, year and page of the source, notes, and a table per measure."""

    title: _Name
    year: int
    url: Url
    notes: list[_Name] = []
    tables: list[Table] = Field(min_length=1)


@cache
def read_board(path: Path) -> Board:
    """Read a file of published results; raises DataError if it is invalid."""
    return read_definition(path, Board)


def read_tables(task: Task) -> list[Table]:
    """Read the published tables of a task; none if nothing is published.

    Raises:
        DataError: The file is invalid, or has a table without an official measure; names file and key.
    """
    path = task.folder / LEADERBOARD_FILE
    if not path.is_file():
        return []
    tables = read_board(path).tables
    for table in tables:
        if table.measure not in task.definition.measures:
            known = ", ".join(task.definition.measures) or "none"
            raise DataError(
                f"{path}: tables: {table.measure!r:.40} has no official measure in {TASK_FILE}; it must be {known}"
            )
    return tables


def find_place(table: Table, value: float) -> int:
    """Find the place, from 1, of a run with this value of the measure; of tied places the best one.

    The value is rounded like the published ones, so that differences they would not show do not separate runs.
    """
    return 1 + sum(run.value > round(value, DIGITS) for run in table.runs)
