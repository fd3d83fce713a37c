from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import touche_llm
from touche_llm.errors import UsageError
from touche_llm.llm.answers import get_labels
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.definition import TiraTopics

PACKAGE = Path(touche_llm.__file__).parent


def test_no_module_beside_the_tasks_knows_a_task_by_name() -> None:
    """What differs between tasks lives in `tasks/`; elsewhere a name in the code would be a condition on it."""
    modules = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "tasks"]
    assert len(modules) > 40
    # Names of modules, such as `judging.sentence_pairs`, follow a dot.
    name = re.compile(rf"(?<![.\w])({'|'.join(TASKS)})(?!\w)")
    named = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.value}"
        for path in modules
        for tree in [ast.parse(path.read_text(encoding="utf-8"))]
        for node in set(ast.walk(tree)) - set(docstrings_of(tree))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and name.search(node.value)
    ]
    assert named == []


def docstrings_of(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the docstrings of a module, which may have examples."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant() as docstring), *_]:
                    yield docstring


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
