"""`touche-llm data` lists where the files of the tasks are, and checks downloaded ones."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Touche
from touche_llm.tasks import TASKS
from touche_llm.tasks.published import read_published


def test_the_list_has_each_file_of_a_task_with_its_facts(touche: Touche) -> None:
    rows = json.loads(touche("data", "--format", "json").stdout)
    found = {(row["task"], row["name"], row["bytes"]) for row in rows}
    assert found == {
        (task, file.name, file.bytes) for file in read_published() for task in file.tasks
    }
    # Passages are of any collection.
    assert {row["task"] for row in rows} == set(TASKS) - {"passages"}
    done = touche("data", "--task", "comparative")
    assert done.returncode == 0
    for file in read_published():
        assert file.url in done.stdout or "comparative" not in file.tasks


def test_a_problem_of_one_file_is_the_exit_code(touche: Touche, tmp_path: Path) -> None:
    (tmp_path / "run.txt").write_text("60 FIRST clueweb12-0001wb-05-12311___3 1 2.0 t\n")
    (tmp_path / "other").write_text("nothing known\n")
    assert touche("data", "run.txt").returncode == 0
    done = touche("data", "run.txt", "other", "--format", "json")
    good, bad = json.loads(done.stdout)
    assert done.returncode == 1
    assert (good["kind"], good["tasks"], good["problem"]) == ("run", None, None)
    assert bad["problem"] and bad["tasks"] is None


def test_a_check_takes_no_task(touche: Touche, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert touche("data", "file", "--task", "comparative").returncode == 2
    assert touche("data", "--task", "nothing").returncode == 2
    assert touche("data", "nowhere").returncode == 1
