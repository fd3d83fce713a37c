"""The commands that keep a run as a test, as a user meets them."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from tests.data.scratches import leave_scratch
from tests.regression.conftest import edit, overlay, take_templates
from tests.report.reports import write_qrels
from tests.write_regressions import FOLDER, make_run
from touche_llm.regression.check import COLUMNS

# Runs are recorded and replayed whole.
pytestmark = pytest.mark.slow


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """Copies of two of the project's recorded runs, to be changed, where they lie by default."""
    for task in ("comparative", "controversial"):
        shutil.copytree(FOLDER / task, tmp_path / "regress" / task)
    return tmp_path / "regress"


def test_a_run_is_recorded_checked_and_not_recorded_twice(touche: Touche, tmp_path: Path) -> None:
    run = asyncio.run(make_run("comparative", tmp_path, depth=4))
    qrels = write_qrels(run, tmp_path)
    done = touche("regress", "record", str(run), "first", "--relevance", str(qrels["relevance"]))
    assert done.returncode == 0, done.stderr
    size = sum(path.stat().st_size for path in (tmp_path / "regress").rglob("*") if path.is_file())
    assert done.stdout.startswith("recorded: regress/first (2 topics, 8 documents, ")
    assert done.stdout.endswith(f" cassette entries, {size:,} bytes)\n")
    assert (tmp_path / "regress/first/qrels-relevance.txt").read_bytes() == qrels[
        "relevance"
    ].read_bytes()
    assert touche("regress", "check").stdout == "first: as recorded\n"
    again = touche("regress", "record", str(run), "first")
    assert again.returncode == 2 and "exists; `touche-llm regress update first" in again.stderr
    other = touche("regress", "record", str(run), "--dir", "other", "--format", "json")
    assert json.loads(other.stdout)[0]["folder"] == "other/run"


def test_all_runs_are_checked_and_the_exit_code_tells(touche: Touche, copies: Path) -> None:
    done = touche("regress", "check")
    assert (done.returncode, done.stdout) == (
        0,
        "comparative: as recorded\ncontroversial: as recorded\n",
    )
    assert json.loads(touche("regress", "check", "--format", "json").stdout) == []
    edit(copies / "comparative" / "config.yaml", "- pairwise:3\n", "")
    done = touche("regress", "check")
    assert done.returncode == 1 and "comparative: differs\n" in done.stdout
    assert "controversial: as recorded\n" in done.stdout
    assert touche("regress", "check", "controversial").returncode == 0
    # A damaged one does not keep the others from being checked.
    (copies / "comparative" / "recorded.json").unlink()
    done = touche("regress", "check")
    assert done.returncode == 1 and done.stdout.startswith("comparative: differs\n")
    assert "comparative/recorded.json: " in done.stdout and done.stdout.endswith(
        "\ncontroversial: as recorded\n"
    )


@pytest.mark.parametrize("name", ["README.md", "prompts/note.txt"])
def test_an_update_removes_no_file_of_the_user(touche: Touche, copies: Path, name: str) -> None:
    folder = copies / "comparative"
    edit(folder / "config.yaml", "- pairwise:3\n", "")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = touche("regress", "update", "comparative", "--yes")
    assert done.returncode == 2 and name in done.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_run_whose_update_was_killed_between_two_renames_is_put_back(
    touche: Touche, copies: Path
) -> None:
    left = leave_scratch(copies)
    (left / "old").mkdir()
    (copies / "comparative").rename(left / "old" / "comparative")
    done = touche("regress", "check")
    assert (done.returncode, done.stdout) == (
        0,
        "comparative: as recorded\ncontroversial: as recorded\n",
    )
    assert {path.name for path in copies.iterdir()} == {"comparative", "controversial"}


def test_findings_are_rows_for_other_programs(touche: Touche, copies: Path, tmp_path: Path) -> None:
    mine = overlay(tmp_path / "mine", "controversial", judge=("You are an assessor", "You assess"))
    take_templates(copies / "controversial", mine)
    given = ("regress", "check", "controversial", "--format")
    done = touche(*given, "json")
    rows = json.loads(done.stdout)
    assert done.returncode == 1 and "prompt judge changed:" in done.stderr
    assert all(list(row) == list(COLUMNS) for row in rows)
    (prompt,) = [row for row in rows if row["kind"] == "prompt"]
    assert "\n+You assess" in prompt["text"]
    assert len([row for row in rows if row["kind"] == "missing"]) == 8
    assert touche(*given, "tsv").stdout.splitlines()[0].split("\t") == list(COLUMNS)


def test_an_update_shows_the_difference_and_stores_the_replay_only_when_told_to(
    touche: Touche, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copies / "comparative"
    edit(folder / "config.yaml", "- pairwise:3\n", "")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    done = touche("regress", "update", "comparative")
    assert (
        done.returncode == 0 and "setting rank: " in done.stdout and "recorded:" not in done.stdout
    )
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    shown = touche("regress", "check", "comparative").stdout
    rows = json.loads(touche("regress", "update", "comparative", "--format", "json").stdout)
    assert {row["kind"] for row in rows} == {"setting", "run"}
    done = touche("regress", "update", "comparative", "--yes")
    assert (
        done.returncode == 0
        and done.stdout.startswith(shown)
        and "recorded: regress/comparative (" in done.stdout
    )
    assert touche("regress", "check").returncode == 0
    assert [path.name for path in copies.parent.iterdir()] == ["regress"]
    assert {path.name for path in copies.iterdir()} == {"comparative", "controversial"}
    # What only the dropped step asked is gone, and judgments are still there.
    assert "best" not in json.loads((folder / "recorded.json").read_text())["templates"]
    assert (folder / "qrels-stance.txt").read_bytes() == before[folder / "qrels-stance.txt"]
    done = touche("regress", "update", "comparative", "--yes")
    assert done.stdout == "comparative: as recorded\nnothing to update\n"


def test_where_answers_are_missing_an_update_wants_a_new_run(
    touche: Touche, copies: Path, tmp_path: Path
) -> None:
    mine = overlay(tmp_path / "mine", "controversial", judge=("You are an assessor", "You assess"))
    take_templates(copies / "controversial", mine)
    given = ("regress", "update", "controversial", "--yes")
    done = touche(*given)
    assert (
        done.returncode == 2 and "answers missing: 8\n" in done.stdout and "(--run)" in done.stderr
    )
    run = asyncio.run(
        make_run("controversial", tmp_path / "new", prompts__folder=str(mine), depth=3)
    )
    done = touche(*given, "--run", str(run))
    assert done.returncode == 0, done.stderr
    assert "setting depth: 4 → 3" in done.stdout
    assert "ranks moved: 6\n" in done.stdout and "→ none\n" in done.stdout
    assert touche("regress", "check", "controversial").returncode == 0
    assert (copies / "controversial" / "run.txt").read_bytes() == (run / "run.txt").read_bytes()


def test_a_new_run_of_another_task_or_for_several_runs_is_wrong_usage(
    touche: Touche, copies: Path, tmp_path: Path
) -> None:
    run = asyncio.run(make_run("sentence_pairs", tmp_path / "new"))
    done = touche("regress", "update", "comparative", "--yes", "--run", str(run))
    assert (
        done.returncode == 2
        and "a run of sentence_pairs; regress/comparative is one of comparative" in done.stderr
    )
    done = touche("regress", "update", "comparative", "controversial", "--yes", "--run", str(run))
    assert done.returncode == 2 and "give a single NAME" in done.stderr
