from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

import touche_llm
from touche_llm.errors import UsageError
from touche_llm.llm.answers import get_labels
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.definition import TiraTopics

PACKAGE = Path(touche_llm.__file__).parent


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
    with pytest.raises(UsageError, match="'arguments'.*arguments_2020, .*comparative, .*sentence_pairs"):
        get_task("arguments")
