"""Standard output as shells and pipes give it: of another encoding, closed, full, with a reader that leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.report.reports import sample_run, write_qrels
from tests.write_regressions import FOLDER
from touche_llm.cli.demo import SAMPLES

SAMPLE = SAMPLES / "comparative"
TOUCHE = [sys.executable, "-m", "touche_llm"]
DATA = ["--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl")]
REPLAY = ["--cache", str(SAMPLE / "cassette.jsonl"), "--cache-mode", "replay"]
VALID = "3 FIRST a 1 9.5 t\n3 SECOND b 2 9.1 t\n"
BROKEN = "3 FIRST a 1\n" * 20


def call(folder: Path, *arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    variables = os.environ | environment
    return subprocess.run([*TOUCHE, *arguments], cwd=folder, env=variables, capture_output=True, timeout=120)


def in_shell(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `$@` is the command; PIPESTATUS and the like are the line's own."""
    command = ["bash", "-c", script, "bash", *TOUCHE, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def is_ascii(done: subprocess.CompletedProcess[bytes]) -> bool:
    return done.stdout.isascii() and done.stderr.isascii() and b"Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["prompts", "show", "judge"]])
def test_text_that_the_encoding_lacks_is_printed_all_the_same(tmp_path: Path, arguments: list[str]) -> None:
    done = call(tmp_path, *arguments, PYTHONIOENCODING="ascii")
    assert (done.returncode, is_ascii(done)) == (0, True), done.stderr
    assert done.stdout


@pytest.mark.slow
def test_every_kind_of_output_fits_an_encoding_that_lacks_most_of_it(tmp_path: Path) -> None:
    run = sample_run("comparative", tmp_path)
    qrels = [part for aspect, path in write_qrels(run, tmp_path).items() for part in (f"--{aspect}", str(path))]
    (tmp_path / "bad.txt").write_text("3 FIRST caf\u00e9 1 9 \u2013\n3 \u00c9 a 2\n")
    commands = {
        ("run", *DATA, *REPLAY, "--out", "new", "--depth", "5"): 0,
        ("demo", "--task", "controversial", "--out", "demo"): 0,
        ("validate", "bad.txt", "--task", "comparative"): 1,
        ("evaluate", str(run), "--task", "comparative", *qrels): 0,
        ("compare", str(run), "new/run.txt", "--baseline", "new/run.txt", "--task", "comparative", *qrels): 0,
        ("prompts", "list"): 0,
        ("regress", "check", "--dir", str(FOLDER)): 0,
        ("cache", "stats", "--cache", str(SAMPLE / "cassette.jsonl")): 0,
    }
    for arguments, code in commands.items():
        done = call(tmp_path, *arguments, PYTHONIOENCODING="ascii")
        assert (done.returncode, is_ascii(done)) == (code, True), done.stderr


@pytest.mark.slow
def test_rows_for_programs_are_utf_8_whatever_the_terminal_s_encoding(tmp_path: Path) -> None:
    (tmp_path / "run.txt").write_text("3 FIRST caf\u00e9 1 9 t\n3 \u00c9\u2013 b 2 8 t\n")
    for output in ("json", "tsv"):
        done = call(
            tmp_path, "validate", "run.txt", "--task", "comparative", "--format", output, PYTHONIOENCODING="ascii"
        )
        assert done.returncode == 1
        assert "\u00c9\u2013" in done.stdout.decode()


@pytest.mark.parametrize(("lines", "code"), [(VALID, 0), (BROKEN, 1)])
def test_a_reader_that_leaves_changes_neither_the_exit_code_nor_standard_error(
    tmp_path: Path, lines: str, code: int
) -> None:
    (tmp_path / "run.txt").write_text(lines)
    # The reader is gone before anything is printed, and nothing is flushed but at the end.
    done = in_shell(
        tmp_path, '{ sleep 0.3; "$@"; echo $? >code; } | true', "validate", "run.txt", "--task", "comparative"
    )
    assert ((tmp_path / "code").read_text(), done.stderr) == (f"{code}\n", "")


@pytest.mark.slow
def test_a_reader_that_leaves_halfway_gets_what_it_read(tmp_path: Path) -> None:
    done = in_shell(tmp_path, '"$@" 2>&1 | head -n 1; exit ${PIPESTATUS[0]}', "prompts", "list", "--format", "tsv")
    assert (done.returncode, done.stdout.split("\t")[0], done.stderr) == (0, "task", "")


@pytest.mark.parametrize("closed", [">&-", pytest.param("<&- >&- 2>&-", marks=pytest.mark.slow)])
def test_closed_streams_leave_the_exit_code_and_the_files(tmp_path: Path, closed: str) -> None:
    arguments = ["cache", "import", str(SAMPLE / "cassette.jsonl"), "--cache", "c.sqlite"]
    done = in_shell(tmp_path, f'"$@" {closed}', *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    stats = call(tmp_path, "cache", "stats", "--cache", "c.sqlite", "--format", "json")
    assert sum(row["entries"] for row in json.loads(stats.stdout)) == len(
        (SAMPLE / "cassette.jsonl").read_text().splitlines()
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")
def test_a_full_standard_output_is_an_error_that_names_it(tmp_path: Path) -> None:
    done = in_shell(tmp_path, '"$@" >/dev/full', "--version")
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard output: No space left on device") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["validate", b"r\xff.txt", "--task", "comparative"],
        ["run", "--topics", b"t\xff.xml", "--corpus", "c.jsonl", "--out", "o"],
        ["cache", "export", b"\xff.jsonl"],
    ],
)
def test_an_argument_that_is_not_utf_8_is_wrong_usage(tmp_path: Path, arguments: list[str | bytes]) -> None:
    done = call(tmp_path, *arguments)
    assert (done.returncode, done.stdout, b"Traceback" in done.stderr) == (2, b"", False)
    assert "\ufffd".encode() in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_in_a_folder_whose_name_is_not_utf_8_needs_its_corpus_elsewhere(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("the file system takes names of UTF-8 alone")
    done = call(folder, "retrieve", *DATA, "--out", "run", "--depth", "3")
    assert (done.returncode, (folder / "run" / "candidates.run.txt").is_file()) == (0, True), done.stderr
    shutil.copy(SAMPLE / "passages.jsonl", folder)
    done = call(folder, "index", "--corpus", "passages.jsonl", "--index", str(tmp_path / "index"))
    assert (done.returncode, b"Traceback" in done.stderr, (tmp_path / "index").exists()) == (2, False, False)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width and the encoding of the machine that runs the tests are none of their concern."""
    settings: Mapping[str, str] = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for name in ("PYTHONIOENCODING", "PYTHONUTF8", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
