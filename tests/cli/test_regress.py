"""The commands that keep a run as a test, as a user meets them."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from tests.data.scratches import leave_scratch
from tests.regression.conftest import contents, edit, overlay, take_templates
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
    done = touche("regress", "record", str(run), "first")
    assert done.returncode == 0, done.stderr
    size = sum(path.stat().st_size for path in (tmp_path / "regress").rglob("*") if path.is_file())
    assert done.stdout.startswith("recorded: regress/first (2 topics, 8 documents, ")
    assert done.stdout.endswith(f" cassette entries, {size:,} bytes)\n")
    assert touche("regress", "check").stdout == "first: as recorded\n"
    again = touche("regress", "record", str(run), "first")
    assert again.returncode == 2 and "regress/first: " in again.stderr
    assert "--overwrite" in again.stderr
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
def test_overwriting_removes_no_file_of_the_user(
    touche: Touche, copies: Path, tmp_path: Path, name: str
) -> None:
    run = asyncio.run(make_run("comparative", tmp_path))
    folder = copies / "comparative"
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    before = contents(folder)
    done = touche("regress", "record", str(run), "comparative", "--overwrite")
    assert done.returncode == 2 and name in done.stderr
    assert contents(folder) == before


@pytest.mark.parametrize("kind", ["file", "link"])
def test_overwriting_replaces_nothing_but_a_folder(
    touche: Touche, copies: Path, tmp_path: Path, kind: str
) -> None:
    run = asyncio.run(make_run("comparative", tmp_path))
    target = copies / "mine"
    if kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to(copies / "comparative")
    done = touche("regress", "record", str(run), "mine", "--overwrite")
    assert done.returncode == 2 and "regress/mine: " in done.stderr
    assert target.is_symlink() or target.read_text() == "mine"


def test_a_recording_whose_replacement_was_killed_between_two_renames_is_put_back(
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


def test_a_recording_is_replaced_only_when_told_to(
    touche: Touche, copies: Path, tmp_path: Path
) -> None:
    folder = copies / "comparative"
    before = contents(folder)
    run = asyncio.run(make_run("comparative", tmp_path / "new", rank=("judge", "listwise:4")))
    record = ("regress", "record", str(run), "comparative")
    assert touche(*record).returncode == 2
    assert contents(folder) == before

    done = touche(*record, "--overwrite")
    assert done.returncode == 0, done.stderr
    assert (folder / "run.txt").read_bytes() == (run / "run.txt").read_bytes()
    assert contents(folder) != before
    assert touche("regress", "check").returncode == 0
    assert {path.name for path in copies.iterdir()} == {"comparative", "controversial"}
    # Only the omitted step sent requests of this prompt.
    assert not (folder / "prompts" / "best").exists()


def test_a_run_that_cannot_be_recorded_leaves_the_older_recording(
    touche: Touche, copies: Path, tmp_path: Path
) -> None:
    before = contents(copies)
    run = asyncio.run(make_run("comparative", tmp_path / "new"))
    edit(run / "run.txt", " regress\n", " other\n")
    done = touche("regress", "record", str(run), "comparative", "--overwrite")
    assert done.returncode == 1 and "not recorded" in done.stderr
    assert contents(copies) == before
