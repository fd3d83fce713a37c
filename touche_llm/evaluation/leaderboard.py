"""Published results of the shared tasks, and the place of a run among them; the values are in a data file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from touche_llm.data.yaml_text import read_yaml

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


class Board(_Strict):
    """The published results of one task: title, year and page of the source, notes, and a table per measure."""

    task: _Name
    title: _Name
    year: int
    url: Annotated[str, Field(pattern=r"^https://\S+$")]
    notes: list[_Name]
    tables: list[Table] = Field(min_length=1)


@cache
def read_boards() -> dict[str, Board]:
    """Read the published results by task; every task has some."""
    boards = [Board.model_validate(board) for board in read_yaml(FILE)["boards"]]
    return {board.task: board for board in boards}


def find_place(table: Table, value: float) -> int:
    """Find the place, from 1, of a run with this value of the measure `table.ours`; of tied places the best one.

    The value is rounded like the published ones, so that differences they would not show do not separate runs.
    """
    return 1 + sum(run.value > round(value, DIGITS) for run in table.runs)
