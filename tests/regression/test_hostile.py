"""Recorded folders that somebody changed: each is an error that says what and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.expect import raises_at
from tests.regression.conftest import Copy, checked
from tests.write_regressions import FOLDER
from touche_llm.errors import DataError, ToucheError, UsageError
from touche_llm.regression.snapshot import find_snapshots, open_snapshot


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "topics.jsonl",
        "cassette.jsonl",
        "run.txt",
        "recorded.json",
        "prompts/judge/judge.jinja",
    ],
)
def test_a_file_that_is_not_there_is_named(copy_of: Copy, name: str) -> None:
    folder = copy_of("sentence_pairs")
    (folder / name).unlink()
    with raises_at(DataError, folder / name):
        open_snapshot(folder)


@pytest.mark.parametrize("name", ["../comparative", "", "/etc", "-x", ".hidden", "nothing"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"letters, digits, `\.`, `_` and `-`|comparative, controversial"):
        find_snapshots(FOLDER, [name])


def test_a_folder_without_recorded_runs_is_told(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / ".name.building-x").mkdir()
    (tmp_path / ".name.building-x" / "recorded.json").write_text("{}")
    with raises_at(UsageError, tmp_path, "`touche-llm regress record"):
        find_snapshots(tmp_path, [])


@pytest.mark.parametrize(
    ("values", "quoted"),
    [
        ({"format": 2}, ["format"]),
        ({"more": 1}, ["more"]),
    ],
)
def test_a_manifest_of_another_form_is_refused(copy_of: Copy, values: dict[str, object], quoted: list[str]) -> None:
    folder = copy_of("comparative")
    manifest = json.loads((folder / "recorded.json").read_text())
    (folder / "recorded.json").write_text(json.dumps(manifest | values))
    with raises_at(DataError, folder / "recorded.json", *quoted):
        open_snapshot(folder)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("documents.jsonl", "no json\n", "documents.jsonl:1: not JSON"),
        ("cassette.jsonl", "{}\n", "cassette.jsonl:1: not one of the cache entries"),
        ("cassette.jsonl", "", "nothing to replay of model written-for-the-demo"),
        ("candidates.run.txt", "3 Q0 unknown 1 1.0 x\n", "1 of its documents are not in the corpus"),
        ("topics.jsonl", "{}\n", r"topics.jsonl: topic in line 1: <number>"),
        ("prompts/judge/judge.jinja", "{{ 1", None),
    ],
)
def test_a_damaged_file_makes_the_run_differ_and_is_named(
    copy_of: Copy, name: str, content: str, problem: str | None
) -> None:
    folder = copy_of("comparative")
    (folder / name).write_text(content)
    differences = checked(folder)
    if problem is None:
        assert not differences  # the recorded templates are only for the diff
        return
    (finding,) = differences
    assert finding.kind == "error" and problem.replace("\\", "") in finding.text
    assert str(folder.parent) in finding.text or "cassette" in finding.text


def test_an_expected_run_that_is_none_is_named(copy_of: Copy) -> None:
    folder = copy_of("comparative")
    (folder / "run.txt").write_text("3 NO x\n")
    with pytest.raises(ToucheError, match=r"run\.txt"):
        checked(folder)
