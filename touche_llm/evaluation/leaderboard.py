"""Published results of the shared tasks, and the place of a run among them; the values are in a data file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from touche_llm.data.yaml_text import YamlError, read_yaml
from touche_llm.errors import DataError, UsageError

FILE = Path(__file__).with_name("leaderboards.yaml")
# Decimal places of the published values.
DIGITS = 3

Measure = Literal["relevance", "quality", "coherence", "stance"]
# Strict, so that neither numbers in quotation marks nor `yes` for 1 are accepted.
_Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False, strict=True)]
_Name = Annotated[str, Field(min_length=1, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedRun(_Strict):
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

    @model_validator(mode="after")
    def _check_interval(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval needs both `low` and `high`")
        if self.low is not None and self.high is not None and not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} is not within its interval, {self.low} to {self.high}")
        return self


class Table(_Strict):
    """The published results of one task by one measure, best first.

    Attributes:
        measure: Aspect that was measured.
        published_as: Name of the column in the source.
        ours: Our measure to compare with it.
        url: Page with the table.
        runs: All runs of the table.
    """

    measure: Measure
    published_as: _Name
    ours: Literal["nDCG@5", "nDCG@10", "stance macro-F1"]
    url: Annotated[str, Field(pattern=r"^https://\S+$")]
    runs: list[PublishedRun] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        seen: set[tuple[str, str]] = set()
        for number, run in enumerate(self.runs):
            if (run.team, run.tag) in seen:
                raise ValueError(f"{self.measure}: run {run.tag!r} of {run.team} occurs twice")
            seen.add((run.team, run.tag))
            if number and run.value > self.runs[number - 1].value:
                raise ValueError(f"{self.measure}: run {run.tag!r} of {run.team} is better than the one before it")
        return self


class Board(_Strict):
    """The published results of one task: title, year and page of the source, notes, and a table per measure."""

    task: _Name
    title: _Name
    year: int
    url: Annotated[str, Field(pattern=r"^https://\S+$")]
    notes: list[_Name]
    tables: list[Table] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_measures(self) -> Self:
        measures = [table.measure for table in self.tables]
        if len(set(measures)) < len(measures):
            raise ValueError(f"{self.task}: two tables of one measure")
        return self


class _Content(_Strict):
    boards: list[Board] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_tasks(self) -> Self:
        tasks = [board.task for board in self.boards]
        if len(set(tasks)) < len(tasks):
            raise ValueError("two boards of one task")
        return self


@dataclass(frozen=True, slots=True)
class LeaderboardEntry:
    """A published run with its place, from 1; runs of the same value share the best of their places."""

    place: int
    run: PublishedRun


def read_boards(path: Path) -> dict[str, Board]:
    """Read the published results by task; raise DataError, with the place in the file, if they are invalid."""
    try:
        content = _Content.model_validate(read_yaml(path))
    except OSError as error:
        raise DataError(f"{path}: cannot read the published results: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise DataError(f"{path}: {where} (counted from 0): {first['msg']}; correct the data file") from error
    except YamlError as error:
        raise DataError(f"{path}: the published results are not YAML: {error}; correct the data file") from error
    return {find_board.task: find_board for find_board in content.boards}


@cache
def _read_published() -> dict[str, Board]:
    return read_boards(FILE)


def find_board(task: str) -> Board:
    """Return the published results of a task; raise UsageError, with the known tasks, if there are none."""
    boards = _read_published()
    if task not in boards:
        raise UsageError(f"no published results of task {task!r}; known: {', '.join(boards)}")
    return boards[task]


def find_table(task: str, measure: str) -> Table:
    """Return the published results by a measure; raise UsageError, with the known measures, if there are none."""
    tables: dict[str, Table] = {table.measure: table for table in find_board(task).tables}
    if measure not in tables:
        raise UsageError(f"no published results of {task} by {measure!r}; known: {', '.join(tables)}")
    return tables[measure]


def list_standings(task: str, measure: str, *, each_team: bool = False) -> list[LeaderboardEntry]:
    """List the published runs, best first.

    Args:
        task: Name of the task.
        measure: relevance, quality, coherence or stance.
        each_team: Whether to list only the best run of each team; of tied runs, the first in the source.

    Raises:
        UsageError: No results are published for this task and measure.
    """
    runs = find_table(task, measure).runs
    if each_team:
        best: dict[str, PublishedRun] = {}
        for run in runs:
            best.setdefault(run.team, run)
        runs = list(best.values())
    return [LeaderboardEntry(_count_place(run.value, runs), run) for run in runs]


def find_place(task: str, measure: str, value: float, *, each_team: bool = False) -> int:
    """Find the place, from 1, of a run with this value; of tied places the best one.

    The value is rounded like the published ones, so that differences they would not show do not separate runs.

    Args:
        task: Name of the task.
        measure: relevance, quality, coherence or stance.
        value: Value of the measure that `find_table(task, measure).ours` names.
        each_team: Whether to compare with the best runs of the teams only.

    Raises:
        UsageError: The value is not between 0 and 1, or no results are published for this task and measure.
    """
    if math.isnan(value) or not 0.0 <= value <= 1.0:
        raise UsageError(f"{value} is not a value of {measure} for {task}; give one between 0 and 1")
    return _count_place(
        round(value, DIGITS), [entry.run for entry in list_standings(task, measure, each_team=each_team)]
    )


def _count_place(value: float, runs: list[PublishedRun]) -> int:
    return 1 + sum(run.value > value for run in runs)
