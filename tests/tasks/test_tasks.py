from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from touche_llm.errors import UsageError
from touche_llm.llm.answer_schema import get_labels
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.parts import TiraTopics
from touche_llm.tasks.published import DIGITS, Table, find_place, read_tables


def test_tira_finds_one_task_for_each_kind_of_topics() -> None:
    kinds = [task.corpus.tira for task in TASKS.values() if task.corpus.tira]
    assert sorted(kinds) == sorted(get_args(TiraTopics))
    # A file name stands for one task.
    names = [name for task in TASKS.values() for name in task.corpus.files]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", list(TASKS))
def test_the_labels_of_a_task_are_those_its_prompt_asks_for(name: str) -> None:
    task = TASKS[name]
    labels = get_labels(task.question.answer)
    assert labels.get("stance", ()) == task.stances
    assert task.unknown_stance is None or task.unknown_stance in task.run_labels
    assert set(task.objectives["both"]) == set(task.weight_names)
    assert "relevance" in task.question.grades and "stance" not in task.question.grades


def test_an_unknown_task_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match="'arguments'.*arguments_2020, .*comparative, .*sentence_pairs"
    ):
        get_task("arguments")


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


@settings(deadline=None)
@given(table=st.sampled_from(list(PUBLISHED.values())), value=SHARES)
def test_a_place_counts_the_better_runs(table: Table, value: float) -> None:
    place = find_place(table, value)
    assert 1 <= place <= len(table.runs) + 1
    assert all(run.value > round(value, DIGITS) for run in table.runs[: place - 1])
    assert all(run.value <= round(value, DIGITS) for run in table.runs[place - 1 :])
