"""`touche-llm fuse` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from tests.sample_runs import run_lines
from touche_llm.cli.demo import SAMPLES

SAMPLE = SAMPLES / "comparative"
DATA = ["--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl")]

ONE = "1 FIRST a 1 9.5 one\n1 SECOND b 2 9.1 one\n1 NO c 3 0.5 one\n"
TWO = "1 Q0 c 1 20 two (final)\n1 Q0 b 2 19 two (final)\n1 Q0 d 3 5 two (final)\n"
THREE = "1\tSECOND\ta\t1\t3.5\tthree\n2\tNO\tz\t1\t2\tthree\n"
SIDES = "1 PRO a 1 2 t\n1 CON b 2 1 t\n"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, text in (("one", ONE), ("two", TWO), ("three", THREE), ("sides", SIDES)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_judged_run_and_its_first_stage_make_a_valid_run(
    touche: Touche, tmp_path: Path
) -> None:
    cache = ["--cache", str(SAMPLE / "cassette.jsonl"), "--cache-mode", "replay"]
    assert touche("retrieve", *DATA, "--out", "bm25", "--depth", "9").returncode == 0
    assert touche("run", *DATA, *cache, "--out", "judged", "--depth", "5").returncode == 0
    files = ["judged/run.txt", "bm25/candidates.run.txt"]
    # The task is that of the folder.
    for method in ("rrf", "interpolation"):
        done = touche("fuse", *files, "--out", "fused.txt", "--method", method, "--overwrite")
        assert done.returncode == 0, done.stderr
        judged, both = run_lines(tmp_path / files[0]), run_lines(tmp_path / "fused.txt")
        assert {(line.topic_id, line.document_id, line.stance) for line in judged} <= {
            (line.topic_id, line.document_id, line.stance) for line in both
        }
        assert f"documents without a stance, labelled NO: {len(both) - len(judged)}" in done.stdout
        checked = touche("validate", "fused.txt", "--task", "comparative", *DATA)
        assert checked.returncode == 0, checked.stdout
    done = touche("fuse", "judged", *files, "--out", "other.txt", "--task", "controversial")
    assert done.returncode == 2 and done.stderr.startswith(
        "error: judged: a run of comparative, not of controversial"
    )
    assert not Path("other.txt").exists()


def test_weights_and_method_and_depth_are_taken(touche: Touche, runs: Path) -> None:
    def documents(*options: str) -> list[str]:
        done = touche(
            "fuse", "one", "two", "--out", "out", "--task", "comparative", "--overwrite", *options
        )
        assert done.returncode == 0, done.stderr
        return [line.document_id for line in run_lines(runs / "out")]

    assert documents("--weight", "1", "--weight", "0") == ["a", "b", "c", "d"]
    assert documents("--weight", "0", "--weight", "1") == ["c", "b", "d", "a"]
    # b: (8.6/9 + 14/15)/2 is more than the half that a and c have from one run each.
    assert documents("--method", "interpolation", "--depth", "3") == ["b", "a", "c"]
    assert documents("--k", "0", "--depth", "2") == ["c", "a"]


def test_runs_without_stances_make_one_without(touche: Touche, runs: Path) -> None:
    (runs / "four").write_text("1 Q0 d 1 3 t\n")
    done = touche("fuse", "two", "four", "--out", "out")
    assert done.stdout == "run: out (3 lines, 1 topics)\n"
    assert {line.stance for line in run_lines(runs / "out")} == {"Q0"}


def test_documents_are_left_out_and_counted_where_the_task_has_no_label_for_them(
    touche: Touche, runs: Path
) -> None:
    (runs / "pairs").write_text("1 PRO s1,s2 1 2 t\n1 CON s3,s4 2 1 t\n")
    (runs / "stage").write_text("1 Q0 s5,s6 1 2 t\n1 Q0 s1,s2 2 1 t\n")
    done = touche("fuse", "pairs", "stage", "--out", "out", "--task", "sentence_pairs")
    assert done.returncode == 0, done.stderr
    assert "documents without a stance, left out" in done.stdout
    assert [line.document_id for line in run_lines(runs / "out")] == ["s1,s2", "s3,s4"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["one", "--out", "o"], 2, "name two or more"),
        (["one", "two", "--out", "o", "--weight", "1"], 2, "2 runs"),
        (["one", "two", "--out", "o", "--weight", "0", "--weight", "0"], 2, "not all 0"),
        (["one", "two", "--out", "o", "--tag", "my run"], 2, "not one word"),
        (
            ["one", "two", "--out", "o", "--depth", "1001", "--task", "comparative"],
            2,
            "at most 1000",
        ),
        (["one", "two", "--out", "o"], 2, "topic 1, document d"),
        (["one", "two", "--out", "two", "--task", "comparative"], 2, "also reads the file"),
        (
            ["one", "two", "--out", "o", "--task", "controversial"],
            1,
            "one:1: topic 1, document a: stance 'FIRST'",
        ),
        (["one", "broken", "--out", "o"], 1, "broken:2: 3 columns"),
    ],
)
def test_what_cannot_be_fused_is_told_and_nothing_is_written(
    touche: Touche, runs: Path, arguments: list[str], code: int, message: str
) -> None:
    (runs / "broken").write_text("1 Q0 a 1 2 t\n1 Q0 b\n")
    before = {path.name: path.read_bytes() for path in runs.iterdir()}
    done = touche("fuse", *arguments)
    assert (done.returncode, message in " ".join(done.stderr.split())) == (code, True), done.stderr
    assert {path.name: path.read_bytes() for path in runs.iterdir()} == before
