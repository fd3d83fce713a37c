"""The tables of published runs with ours between them."""

from __future__ import annotations

from math import nan

import pandas as pd
import pytest

from tests.cli.table_layout import ShownTable, record_tables
from touche_llm.cli.evaluate import show_standings
from touche_llm.tasks import get_task
from touche_llm.tasks.published import find_place, read_tables

COMPARATIVE = get_task("comparative")
TABLES = {table.measure: table for table in read_tables(COMPARATIVE)}


def shown(aspect: str, values: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> ShownTable:
    tables = record_tables(monkeypatch, "evaluate")
    measure = f"{aspect} {COMPARATIVE.measures[aspect]}"
    common = {"measure": measure, "low": nan, "high": nan, "n": 50, "best_place": nan, "worst_place": nan}
    rows = [
        {"run": run, "value": value, "place": find_place(TABLES[aspect], value)} | common
        for run, value in values.items()
    ]
    show_standings(COMPARATIVE, pd.DataFrame(rows), [])
    (table,) = tables
    return table


def test_ours_stand_by_their_values_among_the_published_runs_before_and_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published = [run.value for run in TABLES["relevance"].runs]
    # Better than the tenth, and than none.
    table = shown("relevance", {"last": 0.0, "mine": published[9] + 0.001}, monkeypatch)
    places = table.cells("place")
    at = places.index("→ 10")
    assert (
        places[:2] == ["1", "…"] and places[at - 2 : at] == ["8", "9"] and places[at + 1 : at + 4] == ["10", "11", "…"]
    )
    assert places[-4:] == ["…", "25", "26", "→ 27"]
    values = [float(value) for value in table.cells("value") if value]
    assert values == sorted(values, reverse=True)
    names = dict(zip(places, table.cells("run"), strict=True))
    assert (names["→ 10"], names["→ 27"]) == ("mine", "last")
    assert names["1"] == f"{TABLES['relevance'].runs[0].team}: {TABLES['relevance'].runs[0].tag}"


def test_the_official_ndcg_is_named_below_tables_by_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown("stance", {"mine": 0.5}, monkeypatch)
    assert "nDCG" not in capsys.readouterr().out
    shown("relevance", {"mine": 0.5}, monkeypatch)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "touche_nDCG@5" in line)
    assert line.startswith("nDCG@5: the official measure")


@pytest.mark.parametrize("aspect", ["relevance", "stance"])
def test_only_published_intervals_are_shown(aspect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = shown(aspect, {"mine": 1.0}, monkeypatch)
    best = TABLES[aspect].runs[0]
    expected = "–" if best.low is None else f"{best.low:.3f} to {best.high:.3f}"
    assert dict(zip(table.cells("place"), table.cells("95 % interval"), strict=True))["1"] == expected
    assert (best.low is None) is (aspect == "stance")
