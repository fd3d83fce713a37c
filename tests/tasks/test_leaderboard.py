from __future__ import annotations

from math import nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from touche_llm.tasks import TASKS
from touche_llm.tasks.published import DIGITS, LEADERBOARD_FILE, Table, find_place, read_board, read_tables

BOARDS = {name: read_board(task.folder / LEADERBOARD_FILE) for name, task in TASKS.items()}
PUBLISHED: dict[tuple[str, str], Table] = {
    (name, table.measure): table for name, task in TASKS.items() for table in read_tables(task)
}
SHARES = st.floats(0.0, 1.0)
each_table = pytest.mark.parametrize(
    "table", [pytest.param(table, id=" ".join(key)) for key, table in PUBLISHED.items()]
)


def test_every_task_has_one_board_and_one_table_of_each_measure() -> None:
    for board in BOARDS.values():
        measures = [table.measure for table in board.tables]
        assert len(set(measures)) == len(measures)


def test_every_grade_of_a_task_has_a_table() -> None:
    for name, task in TASKS.items():
        assert {table.measure for table in BOARDS[name].tables} >= set(task.question.grades)


@each_table
def test_runs_are_listed_once_and_the_best_first(table: Table) -> None:
    assert len({(run.team, run.tag) for run in table.runs}) == len(table.runs)
    values = [run.value for run in table.runs]
    assert values == sorted(values, reverse=True)


@each_table
def test_values_have_the_digits_that_places_are_compared_in(table: Table) -> None:
    for run in table.runs:
        assert round(run.value, DIGITS) == run.value


@each_table
def test_a_ranking_measure_has_an_interval_and_a_stance_measure_its_number_of_labels(table: Table) -> None:
    for run in table.runs:
        assert (run.judged is None) == (table.measure != "stance")
        if table.measure == "stance":
            assert run.low is None and run.high is None
        else:
            # No interval was published in 2020, nor with the best runs alone.
            assert (run.low is None) == (run.high is None) == (table.runs[0].low is None)
            assert run.low is None or run.high is None or run.low <= run.value <= run.high


def test_the_ranking_measures_of_a_task_list_the_same_runs() -> None:
    # A slip of the pen in a tag shows here; stance has a baseline of its own and not all runs, and a table without
    # intervals has the best run of each team.
    for board in BOARDS.values():
        tables = [table for table in board.tables if table.measure != "stance"]
        complete = {(run.team, run.tag) for run in tables[0].runs}
        for table in tables[1:]:
            if table.runs[0].low is None:
                assert {run.team for run in table.runs} == {team for team, _ in complete}
            else:
                assert {(run.team, run.tag) for run in table.runs} == complete


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


def test_the_tables_since_2023_are_compared_by_ndcg_at_10() -> None:
    for name, board in BOARDS.items():
        for table in board.tables:
            if table.measure != "stance":
                ours = TASKS[name].measures[table.measure]
                assert ours == ("nDCG@10" if board.year >= 2023 else "nDCG@5")
                assert ours.lower() in table.published_as.lower()


@each_table
def test_a_published_value_has_its_own_place(table: Table) -> None:
    places = [find_place(table, run.value) for run in table.runs]
    assert places == sorted(places)
    assert all(place <= number for number, place in enumerate(places, start=1))


@settings(deadline=None)
@given(table=st.sampled_from(list(PUBLISHED.values())), value=SHARES)
def test_a_place_counts_the_better_runs(table: Table, value: float) -> None:
    place = find_place(table, value)
    assert 1 <= place <= len(table.runs) + 1
    assert all(run.value > round(value, DIGITS) for run in table.runs[: place - 1])
    assert all(run.value <= round(value, DIGITS) for run in table.runs[place - 1 :])


@each_table
def test_the_best_possible_value_is_first_and_the_worst_last(table: Table) -> None:
    # Two runs of 2021 have 0.000.
    above = sum(run.value > 0.0 for run in table.runs)
    assert (find_place(table, 1.0), find_place(table, 0.0)) == (1, above + 1) and above >= len(table.runs) - 2


def test_digits_that_are_not_published_separate_no_runs() -> None:
    table = PUBLISHED["comparative", "relevance"]
    best = table.runs[0].value
    assert (find_place(table, best - 0.0004), find_place(table, best - 0.0006)) == (1, 2)


@pytest.mark.parametrize(
    "wrong",
    [{"value": "0.5"}, {"value": True}, {"value": 1.1}, {"low": -0.1}, {"high": nan}, {"judged": 0}, {"tag": ""}],
)
def test_only_shares_with_a_name_are_published_values(wrong: dict[str, object]) -> None:
    table = PUBLISHED["comparative", "relevance"].model_dump()
    run = {"value": 0.5, "team": "a", "tag": "b"}
    assert find_place(Table.model_validate(table | {"runs": [run]}), 0.4) == 2
    for runs in ([run | wrong], []):
        with pytest.raises(ValidationError):
            Table.model_validate(table | {"runs": runs})


def test_each_board_and_table_names_its_source() -> None:
    for board in BOARDS.values():
        assert str(board.year) in board.title
        assert all("webis.de" in table.url or "arxiv.org" in board.url for table in board.tables)
