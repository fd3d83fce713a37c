"""Recorded folders that somebody changed: each is an error that says what and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.expect import raises_at
from tests.regression.conftest import Copy, checked
from tests.write_regressions import FOLDER
from touche_llm.errors import UsageError
from touche_llm.regression.snapshot import find_snapshots


@pytest.mark.parametrize("name", ["../comparative", "", "/etc", ".hidden", "nothing"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with raises_at(UsageError, FOLDER / name, "comparative, controversial"):
        find_snapshots(FOLDER, [name])


def test_a_folder_without_recorded_runs_is_told(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / ".name.building-x").mkdir()
    (tmp_path / ".name.building-x" / "recorded.json").write_text("{}")
    with raises_at(UsageError, tmp_path, "`touche-llm regress record"):
        find_snapshots(tmp_path, [])


@pytest.mark.parametrize("values", [{"format": 1}, {"more": 1}])
def test_a_manifest_of_another_form_is_refused(copy_of: Copy, values: dict[str, object]) -> None:
    folder = copy_of("comparative")
    manifest = json.loads((folder / "recorded.json").read_text())
    (folder / "recorded.json").write_text(json.dumps(manifest | values))
    error = checked(folder).error
    assert error is not None
    assert all(part in error for part in (str(folder / "recorded.json"), *values))


# The problem that is reported, after the name of the file; None stands for a missing file.
@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("config.yaml", None, "config.yaml: "),
        ("topics.jsonl", None, "topics.jsonl: no such file"),
        ("recorded.json", None, "recorded.json: "),
        ("prompts/judge/judge.jinja", None, "prompts/judge/judge.jinja: no such file"),
        ("documents.jsonl", "no json\n", "documents.jsonl:1: not JSON"),
        ("cassette.jsonl", "{}\n", "cassette.jsonl:1: not one of the cache entries"),
        ("cassette.jsonl", "", "nothing to replay of model written-for-the-demo"),
        (
            "candidates.run.txt",
            "3 Q0 unknown 1 1.0 x\n",
            "1 of its documents are not in the corpus",
        ),
        ("topics.jsonl", "{}\n", "topics.jsonl: topic in line 1: <number>"),
        ("run.txt", "3 NO x\n", "run.txt:1: 3 columns"),
    ],
)
def test_a_missing_or_damaged_file_makes_the_run_differ_and_is_named(
    copy_of: Copy, name: str, content: str | None, problem: str
) -> None:
    folder = copy_of("comparative")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    error = checked(folder).error
    assert error is not None and problem in error
    assert str(folder.parent) in error or "cassette" in error
