"""The commands that keep a run as a test, as a user meets them."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from tests.data.scratches import leave_scratch
from tests.regression.conftest import contents, edit, overlay, take_templates
from tests.write_regressions import FOLDER, make_run

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


def test_differences_are_rows_for_other_programs(
    touche: Touche, copies: Path, tmp_path: Path
) -> None:
    mine = overlay(tmp_path / "mine", "controversial", judge=("You are an assessor", "You assess"))
    take_templates(copies / "controversial", mine)
    options = ("regress", "check", "controversial", "--format")
    done = touche(*options, "json")
    rows = json.loads(done.stdout)
    assert done.returncode == 1 and "controversial: differs\n" in done.stderr
    kinds = [row["difference"] for row in rows]
    assert Counter(kinds) == {"topic": 2, "template": 1, "answer": 8}
    assert {row["prompt"] for row in rows if row["difference"] != "topic"} == {"judge"}
    assert all(row["run"] == "controversial" for row in rows)
    answers = [row for row in rows if row["difference"] == "answer"]
    assert all(row["topic"] and row["document"] for row in answers)
    assert touche(*options, "tsv").stdout.splitlines()[0].split("\t") == list(rows[0])


def test_ranks_labels_and_errors_are_rows_too(touche: Touche, copies: Path) -> None:
    run = copies / "comparative" / "run.txt"
    lines = run.read_text().splitlines()
    topic, label, document, rank, *_ = lines[-1].split()
    other = "SECOND" if label == "FIRST" else "FIRST"
    changed = lines[-1].replace(f" {label} ", f" {other} ")
    # Without the first line, all documents of its topic move.
    run.write_text("".join(f"{line}\n" for line in [*lines[1:-1], changed]))
    (copies / "controversial" / "recorded.json").unlink()
    rows = json.loads(touche("regress", "check", "--format", "json").stdout)
    by_kind: dict[str, list[dict[str, object]]] = {}
    for row in rows:
        by_kind.setdefault(row["difference"], []).append(row)
    assert set(by_kind) == {"topic", "rank", "label", "error"}
    (label_row,) = by_kind["label"]
    assert (label_row["topic"], label_row["document"]) == (topic, document)
    assert (label_row["recorded"], label_row["replayed"]) == (other, label)
    first = lines[0].split()
    came = [row for row in by_kind["rank"] if row["recorded"] is None]
    assert [(row["topic"], row["document"], row["replayed"]) for row in came] == [
        (first[0], first[2], 1)
    ]
    (error,) = by_kind["error"]
    assert error["run"] == "controversial" and "recorded.json" in str(error["error"])


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
