"""The published results of the shared tasks, and where a run would stand among them; the figures are in a data file."""

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
# Strict: YAML has numbers, none in quotes, and no `yes` for 1.
_Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False, strict=True)]
_Name = Annotated[str, Field(min_length=1, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedRun(_Strict):
    """A line of a published table.

    Attributes:
        value: of the table's measure, 0 to 1.
        low: lower end of the published 95 % interval, with `high`; None where none is published.
        high: its upper end.
        judged: how many of the run's stance labels were judged; only for stance.
        team: who sent the run.
        tag: the run's name.
    """

    value: _Share
    low: _Share | None = None
    high: _Share | None = None
    judged: int | None = Field(default=None, ge=1)
    team: _Name
    tag: _Name

    @model_validator(mode="after")
    def _interval(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval has two ends, `low` and `high`")
        if self.low is not None and self.high is not None and not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} is not within its interval, {self.low} to {self.high}")
        return self


class Table(_Strict):
    """The published results of one task by one measure, best first.

    Attributes:
        measure: what was measured.
        published_as: the column's name in the source.
        ours: our measure to hold against it.
        url: the page with the table.
        runs: all runs of the table.
    """

    measure: Measure
    published_as: _Name
    ours: Literal["nDCG@5", "nDCG@10", "stance macro-F1"]
    url: Annotated[str, Field(pattern=r"^https://\S+$")]
    runs: list[PublishedRun] = Field(min_length=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        seen: set[tuple[str, str]] = set()
        for number, run in enumerate(self.runs):
            if (run.team, run.tag) in seen:
                raise ValueError(f"{self.measure}: run {run.tag!r} of {run.team} is there twice")
            seen.add((run.team, run.tag))
            if number and run.value > self.runs[number - 1].value:
                raise ValueError(f"{self.measure}: run {run.tag!r} of {run.team} is better than the one before it")
        return self


class Board(_Strict):
    """What is published of one task: the source's title, year and page, what to know of it, and a table per measure."""

    task: _Name
    title: _Name
    year: int
    url: Annotated[str, Field(pattern=r"^https://\S+$")]
    notes: list[_Name]
    tables: list[Table] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_table_each(self) -> Self:
        measures = [table.measure for table in self.tables]
        if len(set(measures)) < len(measures):
            raise ValueError(f"{self.task}: two tables of one measure")
        return self


class _Content(_Strict):
    boards: list[Board] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_board_each(self) -> Self:
        tasks = [board.task for board in self.boards]
        if len(set(tasks)) < len(tasks):
            raise ValueError("two boards of one task")
        return self


@dataclass(frozen=True, slots=True)
class LeaderboardEntry:
    """A published run with its place, from 1; runs of the same value share the better of their places."""

    place: int
    run: PublishedRun


def read_boards(path: Path) -> dict[str, Board]:
    """The published results by task; raises DataError where the file does not hold them, with the place in the file."""
    try:
        content = _Content.model_validate(read_yaml(path))
    except OSError as error:
        raise DataError(f"{path}: cannot read the published results: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise DataError(f"{path}: {where} (counted from 0): {first['msg']}; mend the data file") from error
    except YamlError as error:
        raise DataError(f"{path}: the published results are not YAML: {error}; mend the data file") from error
    return {find_board.task: find_board for find_board in content.boards}


@cache
def _published() -> dict[str, Board]:
    return read_boards(FILE)


def find_board(task: str) -> Board:
    """What is published of a task; raises UsageError with the tasks that have results."""
    boards = _published()
    if task not in boards:
        raise UsageError(f"no published results of task {task!r}; there are some of {', '.join(boards)}")
    return boards[task]


def find_table(task: str, measure: str) -> Table:
    """The published results of a task by a measure; raises UsageError with the measures that have some."""
    tables: dict[str, Table] = {each.measure: each for each in find_board(task).tables}
    if measure not in tables:
        raise UsageError(f"no published results of {task} by {measure!r}; there are some by {', '.join(tables)}")
    return tables[measure]


def list_standings(task: str, measure: str, *, each_team: bool = False) -> list[LeaderboardEntry]:
    """The published runs, best first.

    Args:
        task: the task's name.
        measure: relevance, quality, coherence or stance.
        each_team: only the best run of each team, as the task pages show first; of runs that tie, the source's first.

    Raises:
        UsageError: nothing is published of this task by this measure.
    """
    runs = find_table(task, measure).runs
    if each_team:
        best: dict[str, PublishedRun] = {}
        for run in runs:
            best.setdefault(run.team, run)
        runs = list(best.values())
    return [LeaderboardEntry(_place(run.value, runs), run) for run in runs]


def find_place(task: str, measure: str, value: float, *, each_team: bool = False) -> int:
    """The place, from 1, at which a run of this value would stand; of the places of a tie the better one.

    The value is rounded as the published ones are: what they would not show does not part two runs.

    Args:
        task: the task's name.
        measure: relevance, quality, coherence or stance.
        value: of the measure that `find_table(task, measure).ours` names.
        each_team: among the best runs of the teams, not among all runs.

    Raises:
        UsageError: a value that is not between 0 and 1, or nothing is published of this task by this measure.
    """
    if math.isnan(value) or not 0.0 <= value <= 1.0:
        raise UsageError(f"{value} is no value by {measure} of {task}: give one between 0 and 1")
    return _place(round(value, DIGITS), [entry.run for entry in list_standings(task, measure, each_team=each_team)])


def _place(value: float, runs: list[PublishedRun]) -> int:
    return 1 + sum(run.value > value for run in runs)
