from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from touche_llm.tasks import TASKS
from touche_llm.tasks.published import DIGITS, Table, find_place, read_tables

PUBLISHED: dict[tuple[str, str], Table] = {
    (name, table.measure): table for name, task in TASKS.items() for table in read_tables(task)
}
SHARES = st.floats(0.0, 1.0)
each_table = pytest.mark.parametrize(
    "table", [pytest.param(table, id=" ".join(key)) for key, table in PUBLISHED.items()]
)


@each_table
def test_runs_are_listed_once_and_the_best_first(table: Table) -> None:
    assert len({(run.team, run.tag) for run in table.runs}) == len(table.runs)
    values = [run.value for run in table.runs]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("task", "measure", "team", "value"),
    [
        ("arguments_2020", "relevance", "Dread Pirate Roberts", 0.808),
        ("arguments_2021", "relevance", "Elrond", 0.720),
        ("arguments_2021", "quality", "Heimdall", 0.841),
        ("comparative_2020", "relevance", "Bilbo Baggins", 0.580),
        ("comparative_2021", "relevance", "Katana", 0.489),
        ("comparative_2021", "quality", "Rayla", 0.688),
        ("comparative", "relevance", "Captain Levi", 0.758),
        ("comparative", "quality", "Aldo Nadi", 0.774),
        ("comparative", "stance", "Grimjack", 0.313),
        ("controversial", "relevance", "Puss in Boots", 0.834),
        ("controversial", "quality", "Puss in Boots", 0.831),
        ("controversial", "stance", "Renji Abarai", 0.599),
        ("sentence_pairs", "relevance", "Porthos", 0.742),
        ("sentence_pairs", "quality", "Daario Naharis", 0.913),
        ("sentence_pairs", "coherence", "Daario Naharis", 0.458),
        ("webis_touche2020_v2", "relevance", "Thakur et al.", 0.367),
        ("webis_touche2020_v3", "relevance", "Thakur et al.", 0.785),
    ],
)
def test_the_best_is_the_one_that_the_organisers_name(task: str, measure: str, team: str, value: float) -> None:
    best = PUBLISHED[task, measure].runs[0]
    assert (best.team, best.value) == (team, value)


@settings(deadline=None)
@given(table=st.sampled_from(list(PUBLISHED.values())), value=SHARES)
def test_a_place_counts_the_better_runs(table: Table, value: float) -> None:
    place = find_place(table, value)
    assert 1 <= place <= len(table.runs) + 1
    assert all(run.value > round(value, DIGITS) for run in table.runs[: place - 1])
    assert all(run.value <= round(value, DIGITS) for run in table.runs[place - 1 :])
