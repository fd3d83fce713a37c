"""Answers in a template that a model could copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import list_copyable_answers, load, purposes_of
from touche_llm.tasks import TASKS, get_task

JUDGE_LINE = 'stance "F", "S" or "N"]'
PURPOSES = [(task, purpose) for task in TASKS for purpose in purposes_of(get_task(task))]


def changed(folder: Path, purpose: str, old: str, new: str) -> Prompt:
    task = get_task("comparative")
    path = folder / f"{purpose}.jinja"
    text = task.find_template(path.name).read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return load(task, purposes_of(task)[purpose], str(path))


@pytest.mark.parametrize(("task", "purpose"), PURPOSES)
def test_no_template_of_the_project_shows_an_answer(task: str, purpose: str) -> None:
    found = get_task(task)
    if found.find_template(f"{purpose}.jinja").exists():
        assert list_copyable_answers(load(found, purposes_of(found)[purpose], purpose)) == []


@pytest.mark.parametrize(
    ("purpose", "old", "shown"),
    [
        ("judge", JUDGE_LINE, '[ 3, 0, "N", "N" ]'),
        ("stance", JUDGE_LINE, '["Y","S"]'),
    ],
)
def test_a_complete_answer_in_the_text_is_found(
    tmp_path: Path, purpose: str, old: str, shown: str
) -> None:
    (problem,) = list_copyable_answers(changed(tmp_path, purpose, old, f"{old}, say {shown}"))
    assert shown in problem and f"{purpose}.jinja" in problem


@pytest.mark.parametrize(
    "shown", ['[1,2,"Y"]', "[1,2]", '{"relevance": 0 to 3}', '[1,2,"Y","X"]', "[", "{{ first }}"]
)
def test_parts_of_an_answer_are_not(tmp_path: Path, shown: str) -> None:
    assert (
        list_copyable_answers(changed(tmp_path, "judge", JUDGE_LINE, f"{JUDGE_LINE}, say {shown}"))
        == []
    )


def test_an_object_is_found_where_answers_are_objects(tmp_path: Path) -> None:
    shown = '{"relevance": 1, "quality": 2, "position": "YES", "stance": "FIRST"}'
    prompt = changed(tmp_path, "judge", "form: letters", f"form: object # {shown}")
    assert [shown in problem for problem in list_copyable_answers(prompt)] == [True]
